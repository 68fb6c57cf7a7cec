"""A partition drawn small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transferqueue.coordinator import picture as module
from transferqueue.coordinator.picture import FULL, Picture, picture

if TYPE_CHECKING:
    from tests.coordinator.conftest import Driver


def draw(driver: Driver, num_columns: int = 4) -> Picture:
    return picture(driver.plane.partitions.known("train"), num_columns)


def test_a_column_says_how_much_of_its_stretch_has_the_field(driver: Driver) -> None:
    uids = driver.put(8, ("x", "none"))
    driver.fill(uids[:3], ("y",))
    made = draw(driver)
    assert made.ends.tolist() == [2, 4, 6, 8]
    assert made.fields["x"].tolist() == [FULL] * 4
    assert made.fields["y"].tolist() == [FULL, 127, 0, 0]
    assert made.num_ready == {"x": 8, "none": 8, "y": 3}


def test_one_hole_and_one_cell_among_many_are_seen(driver: Driver) -> None:
    uids = driver.put(10_000)
    driver.fill(uids[1:], ("almost",))
    driver.fill(uids[:1], ("hardly",))
    made = draw(driver, 1)
    assert made.fields["almost"].tolist() == [FULL - 1]
    assert made.fields["hardly"].tolist() == [1]


def test_rows_that_are_gone_leave_no_gap(driver: Driver) -> None:
    uids = driver.put(8)
    driver.fill(uids[4:], ("y",))
    driver.clear(uids[:4])
    made = draw(driver)
    assert made.num_rows == 4
    assert made.fields["y"].tolist() == [FULL] * 4


def test_fewer_samples_than_columns_are_a_column_each(driver: Driver) -> None:
    driver.put(3)
    assert draw(driver, 100).ends.tolist() == [1, 2, 3]


def test_an_empty_partition_has_no_columns(driver: Driver) -> None:
    driver.declare(tasks=["actor"])
    made = draw(driver)
    assert (made.num_rows, made.ends.tolist(), made.tasks) == (0, [], {"actor": {}})


def test_tasks_show_what_they_have_taken(driver: Driver) -> None:
    driver.put(8)
    driver.claim(4, fields=("x",), task="actor")
    made = draw(driver)
    assert made.tasks["actor"]["claimed"].tolist() == [FULL, FULL, 0, 0]
    assert set(made.tasks["actor"]) == {"claimed"}


def test_staleness_counts_versions_behind_the_newest(driver: Driver) -> None:
    driver.put(6, tags={"policy_version": np.array([9, 9, 8, 5, 0, -50])})
    made = draw(driver)
    assert made.newest_version == 9
    assert made.staleness[:5] == [2, 1, 0, 0, 1]
    assert (made.staleness[9], made.staleness[-1], sum(made.staleness)) == (1, 1, 6)


def test_more_rows_than_it_looks_at_are_sampled(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 1000)
    uids = driver.put(2500)
    driver.fill(uids[1250:], ("y",))
    made = draw(driver, 2)
    assert (made.step, made.ends[-1], made.num_rows) == (3, 2500, 2500)
    assert made.fields["y"].tolist()[1] == FULL
    assert made.fields["y"].tolist()[0] < 2


@pytest.mark.parametrize("num", [1, 2, 7, 100])
def test_stretches_are_as_equal_as_they_can_be(driver: Driver, num: int) -> None:
    driver.put(997)
    ends: Any = draw(driver, num).ends
    sizes = np.diff(np.concatenate(([0], ends)))
    assert (len(sizes), sizes.sum()) == (num, 997)
    assert sizes.max() - sizes.min() <= 1
