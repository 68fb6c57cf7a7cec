"""Who waits for what, and what the report says is in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transferqueue.coordinator.predicate import tag
from transferqueue.coordinator.samplers import Groups
from transferqueue.coordinator.table import Table
from transferqueue.coordinator.waiting_report import MAX_FEEDS
from transferqueue.errors import UnknownPartition

if TYPE_CHECKING:
    from conftest import Driver

KEYS = {
    "kind", "partition", "task", "who", "fields", "wanted", "ready", "ready_by_field",
    "since_s", "left_s", "why",
}  # fmt: skip


def waits(driver: Driver, **kwargs: Any) -> list[dict[str, Any]]:
    entries, num_waits = driver.plane.waits(now_s=driver.now_s, **{"limit": 100, **kwargs})
    assert len(entries) == min(num_waits, kwargs.get("limit", 100))
    return entries


def test_a_claim_that_waits_says_how_many_samples_have_each_field(driver: Driver) -> None:
    uids = driver.put(8, ("prompt",))
    driver.fill(uids[:5], ("reward",))
    driver.claim(8, task="actor", fields=("prompt", "reward"), client="node:7/ab", timeout_s=30)
    driver.pass_time(4)
    (entry,) = waits(driver)
    assert entry.keys() == KEYS
    assert (entry["kind"], entry["task"], entry["who"]) == ("claim", "actor", "node:7/ab")
    assert (entry["wanted"], entry["ready"]) == (8, 5)
    assert entry["ready_by_field"] == {"prompt": 8, "reward": 5}
    assert (entry["since_s"], entry["left_s"]) == (4, 26)
    assert entry["why"] == "reward: 5 of 8"


def test_samples_that_the_task_has_taken_are_not_counted_as_available(driver: Driver) -> None:
    driver.put(4)
    driver.take(3)
    driver.claim(2)
    (entry,) = waits(driver)
    assert (entry["ready"], entry["ready_by_field"]) == (1, {"x": 1})
    assert entry["why"] == "1 samples that the task has not taken match, 2 are wanted"


def test_only_samples_that_match_the_condition_are_counted(driver: Driver) -> None:
    driver.put(4, tags={"version": [1, 1, 1, 2]})
    driver.claim(2, where=tag("version") >= 2)
    (entry,) = waits(driver)
    assert (entry["ready"], entry["ready_by_field"]) == (1, {"x": 1})


def test_a_claim_behind_others_says_so(driver: Driver) -> None:
    driver.put(3)
    driver.claim(8)
    driver.claim(2)
    first, second = waits(driver)
    assert first["why"].startswith("3 samples")
    assert second["why"] == "1 earlier claims of this task and these fields come first"


def test_a_claim_of_groups_says_that_only_complete_ones_count(driver: Driver) -> None:
    driver.put(6, tags={"group": ["a", "a", "b", "b", "c", "c"]})
    driver.claim(4, sampler=Groups(size=4, tag="group"))
    (entry,) = waits(driver)
    assert entry["ready"] == 0
    assert entry["why"] == "only complete groups count: 4 samples of one 'group'"


def test_a_misspelt_field_is_named(driver: Driver) -> None:
    driver.put(2, ("rewards",))
    driver.claim(2, fields=("reward",))
    (entry,) = waits(driver)
    assert "did you mean 'rewards'" in entry["why"]


def test_a_claim_of_named_samples_counts_those(driver: Driver) -> None:
    uids = driver.put(6)
    driver.fill(uids[:1], ("y",))
    driver.claim(uids=uids[:3], fields=("x", "y"))
    (entry,) = waits(driver)
    assert (entry["wanted"], entry["ready"]) == (3, 1)
    assert entry["ready_by_field"] == {"x": 3, "y": 1}
    assert entry["why"] == "y: 1 of 3"


def test_a_wait_for_cells_and_a_select_are_there_too(driver: Driver) -> None:
    uids = driver.put(4)
    driver.fill(uids[:1], ("y",))
    driver.wait(uids, ("x", "y"))
    driver.select(fields=["y"], min_rows=3, timeout_s=9)
    cells, select = waits(driver)
    assert (cells["kind"], cells["wanted"], cells["ready"]) == ("cells", 4, 1)
    assert cells["ready_by_field"] == {"x": 4, "y": 1}
    assert (select["kind"], select["wanted"], select["ready"]) == ("select", 3, 1)
    assert select["ready_by_field"] == {"y": 1}
    assert cells.keys() == select.keys() == KEYS


def test_a_put_over_its_quota_says_who_holds_the_room(driver: Driver) -> None:
    driver.declare(max_rows=4, tasks=("actor",))
    driver.put(4)
    driver.take(3, task="actor")
    driver.admit(2, 640, slot=5)
    (entry,) = waits(driver)
    assert entry.keys() == KEYS
    assert (entry["kind"], entry["who"], entry["wanted"]) == ("put", "shard 5", 2)
    assert "4 + 2 rows over the limit 4" in entry["why"]
    assert "held by the partition, until somebody clears them" in entry["why"]
    assert "640 bytes" in entry["why"]


def test_a_partition_and_a_limit_narrow_it(driver: Driver) -> None:
    for partition in ("a", "b"):
        driver.claim(1, partition=partition)
        driver.claim(1, partition=partition)
    assert [e["partition"] for e in waits(driver, limit=3)] == ["a", "a", "b"]
    assert [e["partition"] for e in waits(driver, partition="b")] == ["b", "b"]
    with pytest.raises(UnknownPartition):
        waits(driver, partition="c")


def test_many_conditions_cost_no_more_than_the_first_few(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.put(4, tags={"n": 1})
    for at in range(20):
        driver.claim(8, task=f"task {at}")
        driver.select(where=tag("n") == 2 + at, fields=("x",), min_rows=1, timeout_s=9)
    looked: list[int] = []
    is_ready = Table.is_ready
    monkeypatch.setattr(Table, "is_ready", lambda *args: looked.append(1) or is_ready(*args))
    entries = waits(driver)
    assert len(looked) <= 3 * MAX_FEEDS
    claims, selects = ([e for e in entries if e["kind"] == kind] for kind in ("claim", "select"))
    assert [e["ready"] for e in claims] == [4] * 20
    assert [bool(e["ready_by_field"]) for e in claims] == [True] * MAX_FEEDS + [False] * 12
    assert [bool(e["ready_by_field"]) for e in selects] == [True] * MAX_FEEDS + [False] * 12
    assert all(e["why"] for e in entries)


def test_nothing_is_changed_by_asking(driver: Driver) -> None:
    uids = driver.put(2)
    waiting = driver.claim(3)
    waits(driver)
    driver.fill(np.append(uids, 99), ("x",))
    assert len(driver.answers[waiting].uids) == 3
    assert waits(driver) == []
