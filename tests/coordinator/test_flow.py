"""Quotas, and the rate between puts and claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from transferqueue.coordinator.effects import Admitted
from transferqueue.coordinator.policy import PartitionPolicy, Retention, SamplesPerInsert
from transferqueue.coordinator.quotas import FieldBytes
from transferqueue.errors import ClaimTooLarge, InvalidInput, QuotaExceeded

if TYPE_CHECKING:
    from conftest import CELL_BYTES, Driver
else:
    CELL_BYTES = 32

CONSUMED = {"retention": Retention.CONSUMED, "tasks": ("t",)}


def _is_in(driver: Driver, waiter_id: int) -> bool:
    return isinstance(driver.answers.get(waiter_id), Admitted)


def test_a_put_over_the_quota_waits_for_the_free_that_admits_it(driver: Driver) -> None:
    driver.declare(max_rows=8, **CONSUMED)
    assert _is_in(driver, driver.admit(8))
    driver.put(8)
    waiting = driver.admit(4)
    grant = driver.take(4)
    driver.ack(grant)
    assert not _is_in(driver, waiting), "the shard has not freed them yet"
    driver.free()
    assert _is_in(driver, waiting)


def test_room_that_was_promised_counts_until_it_is_used_or_returned(driver: Driver) -> None:
    driver.declare(max_rows=8)
    driver.admit(5, slot=1)
    driver.put(3, slot=1)
    third = driver.admit(4, slot=2)
    assert not _is_in(driver, third)
    driver.carry_out(
        driver.plane.return_credit(
            now_s=driver.now_s, slot=1, partition="train", num_rows=2, num_bytes=0
        )
    )
    assert _is_in(driver, third)


def test_room_promised_to_a_shard_that_was_started_again_is_free(driver: Driver) -> None:
    driver.declare(max_rows=8)
    driver.admit(8, slot=1)
    waiting = driver.admit(8, slot=2)
    driver.carry_out(driver.plane.slot_joined(1, now_s=driver.now_s))
    assert _is_in(driver, waiting)


def test_puts_are_let_in_in_the_order_they_came(driver: Driver) -> None:
    driver.declare(max_rows=8)
    driver.admit(6)
    large, small = driver.admit(4), driver.admit(1)
    assert not _is_in(driver, small), "a small put does not starve the large one before it"
    driver.carry_out(driver.plane.cancel(large, now_s=driver.now_s))
    assert _is_in(driver, small)


def test_a_put_that_waited_too_long_is_told_who_holds_the_rows(driver: Driver) -> None:
    driver.declare(max_rows=8, max_bytes=None, **CONSUMED)
    driver.put(8)
    driver.take(3)
    waiting = driver.admit(2, timeout_s=5)
    driver.pass_time(5)
    error = driver.answers[waiting]
    assert isinstance(error, QuotaExceeded)
    assert str(error) == (
        "partition 'train': 8 + 2 rows over the limit 8; held by task 't' "
        "(5 not taken yet, 3 not acked yet)."
    )


def test_a_put_that_waited_for_the_one_before_it_is_told_so(driver: Driver) -> None:
    driver.declare(max_rows=8, max_bytes=None, **CONSUMED)
    driver.put(6)
    driver.admit(4, timeout_s=100)
    behind = driver.admit(1, timeout_s=5)
    driver.pass_time(5)
    assert str(driver.answers[behind]) == (
        "partition 'train': 10 + 1 rows over the limit 8; held by task 't' "
        "(6 not taken yet); puts that came before it: 1."
    )


def test_bytes_count_as_rows_do(driver: Driver) -> None:
    driver.declare(max_bytes=10 * CELL_BYTES, **CONSUMED)
    uids = driver.put(8)
    waiting = driver.admit(4, 4 * CELL_BYTES, timeout_s=5)
    late = driver.admit(1, 3 * CELL_BYTES, timeout_s=100)
    driver.pass_time(5)
    assert "256 + 128 bytes over the limit 320" in str(driver.answers[waiting])
    driver.clear(uids[:1])
    assert _is_in(driver, late)


def test_further_fields_of_rows_that_are_in_never_wait(driver: Driver) -> None:
    driver.declare(max_bytes=8 * CELL_BYTES, **CONSUMED)
    uids = driver.put(8)
    driver.fill(uids, ("values",))
    assert driver.status()["bytes"] == 16 * CELL_BYTES


def test_what_can_never_fit_is_refused_at_once(driver: Driver) -> None:
    driver.declare(max_rows=8, max_bytes=100)
    with pytest.raises(InvalidInput, match="a put of 9 rows can never fit, max_rows is 8"):
        driver.admit(9)
    with pytest.raises(InvalidInput, match="a put of 101 bytes can never fit, max_bytes is 100"):
        driver.admit(1, 101)


# -- a put and a claim that wait for each other ---------------------------------------------------


def test_a_put_that_a_claim_waits_for_is_let_past_the_limit(driver: Driver) -> None:
    driver.declare(max_rows=7, **CONSUMED)
    driver.put(4)
    put = driver.admit(4)
    assert not _is_in(driver, put)
    claim = driver.claim(5)
    assert _is_in(driver, put), "4 rows cannot make 5, and nobody else can free them"
    driver.put(4)
    assert len(driver.answers[claim].uids) == 5
    assert driver.status()["puts_let_past_quota"] == 1


def test_the_order_of_the_two_does_not_matter(driver: Driver) -> None:
    driver.declare(max_rows=7, **CONSUMED)
    driver.put(4)
    claim = driver.claim(5)
    assert _is_in(driver, driver.admit(4))
    assert claim not in driver.answers


def test_a_put_waits_when_other_tasks_can_still_make_room(driver: Driver) -> None:
    driver.declare(max_rows=7, retention=Retention.CONSUMED, tasks=("a", "b"))
    driver.put(4)
    for _ in range(4):
        driver.ack(driver.take(1, task="a"))
    claim = driver.claim(3, task="a")
    put = driver.admit(4)
    assert not _is_in(driver, put), "b has all it needs to free rows"
    for _ in range(2):
        driver.ack(driver.take(1, task="b"))
        driver.free()
    assert _is_in(driver, put)
    driver.put(4)
    assert claim in driver.answers


def test_a_claim_of_more_bytes_than_the_quota_is_refused_when_it_blocks(driver: Driver) -> None:
    driver.declare(max_bytes=4 * CELL_BYTES, **CONSUMED)
    driver.put(3)
    claim = driver.claim(5)
    driver.admit(2, 2 * CELL_BYTES)
    assert isinstance(driver.answers[claim], ClaimTooLarge)
    assert "5 rows of 32 bytes is 160 bytes, but max_bytes is 128" in str(driver.answers[claim])


def test_more_bytes_than_the_quota_lets_in_are_refused_once_it_is_full(driver: Driver) -> None:
    driver.declare(max_bytes=4 * CELL_BYTES)
    driver.put(3)
    waiting = driver.claim(5)
    assert waiting not in driver.answers, "later rows may be smaller"
    driver.put(1)
    with pytest.raises(ClaimTooLarge, match="5 rows of 32 bytes is 160 bytes, but max_bytes is 12"):
        driver.claim(5)
    driver.claim(4)


def test_a_smaller_claim_in_bytes_breaks_the_tie(driver: Driver) -> None:
    driver.declare(max_bytes=4 * CELL_BYTES, **CONSUMED)
    driver.put(3)
    driver.claim(4)
    assert _is_in(driver, driver.admit(2, 2 * CELL_BYTES))


# -- samples per insert ---------------------------------------------------------------------------


def _ratio(ratio: float, slack_rows: float, min_rows: int = 0) -> dict[str, object]:
    return {
        "samples_per_insert": SamplesPerInsert(
            ratio=ratio, slack_rows=slack_rows, min_rows=min_rows
        )
    }


def _put(driver: Driver, rows: int) -> int:
    waiter_id = driver.admit(rows)
    if _is_in(driver, waiter_id):
        driver.put(rows)
    return waiter_id


def test_puts_that_are_ahead_wait_for_claims(driver: Driver) -> None:
    driver.declare(**_ratio(1.0, 4.0))
    assert _is_in(driver, _put(driver, 4))
    ahead = driver.admit(1)
    assert not _is_in(driver, ahead)
    driver.take(1)
    assert _is_in(driver, ahead)


def test_claims_that_are_ahead_wait_for_puts(driver: Driver) -> None:
    driver.declare(**_ratio(1.0, 4.0))
    _put(driver, 4)
    for task in ("a", "b"):
        driver.take(4, task=task)
    waiting = driver.claim(1, task="c")
    assert waiting not in driver.answers, "8 rows handed out of 4 put: 4 ahead"
    _put(driver, 1)
    assert waiting in driver.answers


def test_the_first_rows_come_before_any_claim(driver: Driver) -> None:
    driver.declare(**_ratio(1.0, 2.0, min_rows=4))
    driver.put(2)
    waiting = driver.claim(1)
    assert waiting not in driver.answers
    driver.put(1)
    assert waiting in driver.answers


def test_a_put_that_waits_for_claims_that_wait_for_rows_is_let_in(driver: Driver) -> None:
    driver.declare(**_ratio(1.0, 4.0))
    _put(driver, 3)
    driver.claim(4)
    assert _is_in(driver, driver.admit(3))


def test_rows_given_back_too_often_do_not_stop_a_full_partition_for_ever(driver: Driver) -> None:
    """Each delivery counts as handed out, so claims get ahead; a full partition lets no put in."""
    driver.declare(max_rows=4, **_ratio(1.0, 4.0), **CONSUMED)
    _put(driver, 4)
    for _ in range(2):
        driver.give_back(driver.take(4))
    claim = driver.claim(1)
    assert claim not in driver.answers, "4 put, 8 handed out: 4 ahead"
    put = driver.admit(1)
    assert claim in driver.answers, "nobody frees a row before it is claimed"
    assert not _is_in(driver, put)
    driver.ack(driver.answers[claim])
    driver.free()
    assert _is_in(driver, put)


def test_a_claim_that_is_ahead_waits_while_others_may_make_room(driver: Driver) -> None:
    driver.declare(max_rows=4, **_ratio(1.0, 4.0), **CONSUMED)
    _put(driver, 4)
    driver.give_back(driver.take(4))
    working = driver.take(4)
    ahead = driver.claim(1)
    put = driver.admit(1)
    assert ahead not in driver.answers
    driver.ack(working)
    driver.free()
    assert _is_in(driver, put)
    assert ahead not in driver.answers


def test_a_put_waits_for_the_claims_that_are_out(driver: Driver) -> None:
    """What they ack makes room; only if they give it back is the limit in the way."""
    driver.declare(max_rows=7, **CONSUMED)
    driver.put(4)
    working = driver.take(2)
    driver.claim(5)
    put = driver.admit(4)
    assert not _is_in(driver, put), "when the two are acked it fits"
    driver.give_back(working)
    assert _is_in(driver, put)


def test_two_tasks_that_hold_half_the_rows_each_do_not_wait_for_ever(driver: Driver) -> None:
    driver.declare(max_rows=8, retention=Retention.CONSUMED, tasks=("a", "b"))
    uids = driver.put(8)
    driver.ack(driver.take(4, task="a", uids=uids[:4]))
    driver.ack(driver.take(4, task="b", uids=uids[4:]))
    claims = [driver.claim(6, task=task) for task in ("a", "b")]
    put = driver.admit(2)
    assert _is_in(driver, put), "no row is free before one of the two has six"
    driver.put(2)
    assert all(claim in driver.answers for claim in claims)


def test_a_ratio_that_lets_no_row_reach_every_task_is_refused() -> None:
    settings: dict[str, Any] = {"retention": Retention.CONSUMED, "tasks": ("a", "b")}
    with pytest.raises(InvalidInput, match=r"each of the 2 tasks has every row once, .* got 1;"):
        PartitionPolicy(**settings, **_ratio(1.0, 4.0))
    PartitionPolicy(**settings, **_ratio(2.0, 4.0))


def test_a_claim_past_the_slack_is_refused_with_the_arithmetic(driver: Driver) -> None:
    driver.declare(**_ratio(1.0, 4.0))
    with pytest.raises(ClaimTooLarge, match="2 x slack_rows = 8"):
        driver.claim(9)


def test_a_slack_that_lets_nothing_pass_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least max"):
        SamplesPerInsert(ratio=4.0, slack_rows=2.0)


# -- counting bytes -------------------------------------------------------------------------------


def test_bytes_of_the_last_cell_go_with_it_whatever_was_estimated() -> None:
    held = FieldBytes()
    held.add("x", 3, 100)
    assert held.remove("x", 1) == 33
    assert held.remove("x", 1, 60) == 60
    assert held.remove("x", 1, 999) == 7
    assert held.total == 0
    assert held.by_field() == {}
    assert held.remove("y", 1) == 0
