"""Waiting for cells, and looking rows up without taking them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.coordinator.predicate import tag
from transferqueue.errors import (
    FieldSpecMismatch,
    InvalidInput,
    NotReady,
    RowsGone,
    UnknownTag,
)

if TYPE_CHECKING:
    from conftest import Driver


# -- cells ----------------------------------------------------------------------------------------


def test_a_wait_for_cells_that_are_there_is_answered_at_once(driver: Driver) -> None:
    uids = driver.put(3, ("x", "y"))
    waiting = driver.wait(uids[[2, 0, 0]], ("y", "x"))
    assert driver.answers[waiting].fields.keys() == {"x", "y"}


def test_a_wait_is_answered_by_the_commit_of_its_last_cell(driver: Driver) -> None:
    uids = driver.put(4, ("x",))
    waiting = driver.wait(uids, ("x", "y", "z"))
    driver.fill(uids[:2], ("y", "z"))
    driver.fill(uids[3:], ("y", "z"))
    driver.fill(uids[2:3], ("z",))
    assert waiting not in driver.answers
    driver.fill(uids[2:3], ("y",))
    assert waiting in driver.answers


def test_a_wait_for_rows_whose_commit_is_on_its_way_waits(driver: Driver) -> None:
    waiting = driver.wait(np.array([0, 1]), ("x",))
    driver.put(3)
    assert waiting in driver.answers


def test_a_wait_that_ends_says_what_is_missing(driver: Driver) -> None:
    uids = driver.put(4, ("x",))
    driver.fill(uids[:1], ("y",))
    waiting = driver.wait(np.append(uids, 99), ("x", "y"), timeout_s=2)
    driver.pass_time(2)
    error = driver.answers[waiting]
    assert isinstance(error, NotReady)
    assert "1 of 5 samples ready after 2.0 s" in str(error)
    assert "x (1 samples), y (4 samples)" in str(error)


def test_a_wait_for_rows_that_go_is_refused(driver: Driver) -> None:
    uids = driver.put(4)
    waiting, unrelated = driver.wait(uids[:3], ("y",)), driver.wait(uids[3:], ("y",))
    driver.clear(uids[:1])
    assert isinstance(driver.answers[waiting], RowsGone)
    assert str(driver.answers[waiting]).startswith("1 of 3 rows were cleared")
    assert unrelated not in driver.answers


def test_a_wait_for_rows_that_cannot_be_one_batch_is_refused(driver: Driver) -> None:
    first = driver.put(1, spec=("int64", (2,), None, "tensor"))
    second = driver.put(1, spec=("object", (), None, "object"))
    waiting = driver.wait(np.concatenate((first, second)))
    assert isinstance(driver.answers[waiting], FieldSpecMismatch)


def test_a_wait_names_rows_and_fields(driver: Driver) -> None:
    with pytest.raises(InvalidInput, match="at least one field"):
        driver.wait(np.array([1]), ())
    with pytest.raises(InvalidInput, match="at least one row"):
        driver.wait(np.array([], dtype=np.int64))
    with pytest.raises(InvalidInput, match="int64"):
        driver.wait(np.array([1.5]))


def test_a_cancelled_wait_is_not_answered(driver: Driver) -> None:
    uids = driver.put(1)
    waiting = driver.wait(uids, ("y",))
    driver.carry_out(driver.plane.cancel(waiting, now_s=driver.now_s))
    driver.fill(uids, ("y",))
    driver.pass_time(100)
    assert driver.answers == {}


# -- selects --------------------------------------------------------------------------------------


def test_the_latest_weights_are_looked_up_and_stay(driver: Driver) -> None:
    driver.put(3, ("layer",), partition="weights", tags={"version": [5, 7, 6]})
    for _ in range(2):
        found = driver.select(partition="weights", order_by="version", n=1)
        selection = driver.answers[found]
        assert selection.uids.tolist() == [1]
        assert selection.tags["version"].tolist() == [7]
        assert selection.fields.keys() == {"layer"}


def test_a_select_waits_for_what_is_newer(driver: Driver) -> None:
    waiting = driver.select(
        partition="weights",
        where=tag("version") > 6,
        order_by="version",
        n=1,
        min_rows=1,
        timeout_s=30,
    )
    driver.put(1, partition="weights", tags={"version": 6})
    assert waiting not in driver.answers
    driver.put(1, partition="weights", tags={"version": 8})
    assert driver.answers[waiting].tags["version"].tolist() == [8]


def test_a_select_that_waited_too_long_says_so(driver: Driver) -> None:
    driver.put(1)
    waiting = driver.select(min_rows=2, timeout_s=3)
    driver.pass_time(3)
    assert str(driver.answers[waiting]) == "1 of 2 samples ready after 3.0 s."


def test_a_select_without_a_deadline_gives_what_there_is(driver: Driver) -> None:
    driver.put(4, tags={"name": ["b", None, "a", "c"]})
    driver.take(1)
    every = driver.answers[driver.select(fields=("x",))]
    assert every.uids.tolist() == [0, 1, 2, 3]
    ordered = driver.answers[driver.select(order_by="name", descending=False)]
    assert ordered.uids.tolist() == [2, 0, 3]
    nothing = driver.answers[driver.select(fields=("y",), min_rows=3)]
    assert nothing.uids.tolist() == []
    assert nothing.fields == {}


def test_a_select_shows_the_fields_that_all_of_its_rows_have(driver: Driver) -> None:
    driver.put(1, ("x", "y"))
    driver.put(1, ("x",))
    assert driver.answers[driver.select()].fields.keys() == {"x"}
    assert driver.answers[driver.select(n=1)].fields.keys() == {"x", "y"}


def test_a_select_of_rows_that_differ_fails_only_for_fields_it_asks_for(driver: Driver) -> None:
    driver.put(1, spec=("int64", (2,), None, "tensor"))
    driver.put(1, spec=("object", (), None, "object"))
    assert driver.answers[driver.select()].fields == {}
    assert isinstance(driver.answers[driver.select(fields=("x",))], FieldSpecMismatch)


def test_a_select_that_makes_no_sense_is_refused(driver: Driver) -> None:
    driver.put(1, tags={"version": 1})
    with pytest.raises(UnknownTag, match="did you mean 'version'"):
        driver.select(order_by="versoin")
    with pytest.raises(UnknownTag):
        driver.select(where=tag("versoin") > 1)
    with pytest.raises(InvalidInput, match="can never match"):
        driver.select(n=1, min_rows=2, timeout_s=3)
    with pytest.raises(InvalidInput, match="at least 1"):
        driver.select(n=0)


def test_a_commit_that_is_malformed_is_refused(driver: Driver) -> None:
    for uids, message in (
        (np.array([1, 1]), "names a row twice"),
        (np.array([1 << 48]), "rows of another slot"),
        (np.array([[1]]), "int64"),
    ):
        with pytest.raises(InvalidInput, match=message):
            driver.plane.commit(
                now_s=0.0, slot=0, partition="train", uids=uids, fields={}, tags=None
            )


def test_a_commit_may_name_its_rows_in_any_order(driver: Driver) -> None:
    driver.fill(np.array([5, 3, 4]), ("x",), tags={"at": [50, 30, 40]})
    grant = driver.take(3)
    assert grant.uids.tolist() == [3, 4, 5]
    assert grant.tags["at"].tolist() == [30, 40, 50]


def test_to_look_at_a_partition_makes_none(driver: Driver) -> None:
    assert driver.answers[driver.select(partition="nowhere")].uids.tolist() == []
    assert "nowhere" not in driver.plane.status(now_s=driver.now_s)


def test_a_partition_that_was_only_waited_on_is_forgotten_with_the_last_who_waits(
    driver: Driver,
) -> None:
    driver.claim(1, partition="meant", timeout_s=9)
    driver.select(partition="meant", min_rows=1, timeout_s=5)
    driver.pass_time(6)
    assert "meant" in driver.plane.status(now_s=driver.now_s), "somebody still waits"
    driver.pass_time(6)
    assert "meant" not in driver.plane.status(now_s=driver.now_s)


def test_a_partition_that_was_declared_or_used_stays_when_nobody_waits(driver: Driver) -> None:
    driver.declare("declared")
    driver.clear(driver.put(1, partition="used"), "used")
    for partition in ("declared", "used"):
        driver.claim(1, partition=partition, timeout_s=1)
    driver.pass_time(2)
    assert {"declared", "used"} <= driver.plane.status(now_s=driver.now_s).keys()
