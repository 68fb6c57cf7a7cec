"""Single samples, cell by cell, as the coordinator knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transferqueue.coordinator.cell_report import ROW_STATES, TASK_STATES, check_limit
from transferqueue.coordinator.policy import Retention
from transferqueue.errors import InvalidInput, RowsGone, UnknownPartition, UnknownUids
from transferqueue.wire.tags import SITE_TAG

if TYPE_CHECKING:
    from conftest import Driver

    from transferqueue.coordinator.cell_report import Described


def describe(driver: Driver, **kwargs: Any) -> Described:
    return driver.plane.describe(now_s=driver.now_s, **{"limit": 20, **kwargs})


def test_every_field_task_tag_and_claim_of_a_sample_is_told(driver: Driver) -> None:
    uids = driver.put(4, ("x",), tags={"version": 3, SITE_TAG: "train.py:7"})
    driver.fill(uids[1:3], ("y",))
    grant = driver.take(2, task="actor", client="node:1/ab")
    driver.pass_time(5)
    found = describe(driver, partition="train")
    assert found.uids.tolist() == uids.tolist()
    assert found.ready["x"].tolist() == [True] * 4
    assert found.ready["y"].tolist() == [False, True, True, False]
    assert found.sites == ["train.py:7"] * 4
    assert found.ages_s.tolist() == [5.0] * 4
    assert [TASK_STATES[s] for s in found.tasks["actor"].states.tolist()] == [
        "claimed", "claimed", "free", "free",
    ]  # fmt: skip
    assert found.tasks["actor"].deliveries.tolist() == [1, 1, 0, 0]
    (claim,) = found.claims
    assert (claim.claim_id, claim.client, claim.left_s) == (grant.claim_id, "node:1/ab", 55)
    assert claim.is_mine.tolist() == [True, True, False, False]
    assert found.tags["version"].tolist() == [3] * 4


def test_the_oldest_come_first_and_the_others_are_counted(driver: Driver) -> None:
    uids = driver.put(30)
    found = describe(driver, partition="train", limit=3)
    assert found.uids.tolist() == uids[:3].tolist()
    assert found.num_rows == 30


def test_uids_are_found_in_whatever_partition_they_are(driver: Driver) -> None:
    driver.fill(np.arange(3), ("x",), partition="a")
    driver.fill(np.arange(3, 6), ("x",), partition="b")
    found = describe(driver, uids=np.array([5, 99, 4]))
    assert found.partition == "b"
    assert found.uids.tolist() == [5, 4]
    assert found.absent.tolist() == [99]


def test_rows_on_their_way_out_are_shown_as_such(driver: Driver) -> None:
    driver.declare(tasks=("t",), retention=Retention.CONSUMED)
    driver.put(2)
    driver.ack(driver.take(1))
    found = describe(driver, partition="train")
    assert [ROW_STATES[s] for s in found.states.tolist()] == ["freeing", "live"]


def test_what_is_not_there_is_an_error(driver: Driver) -> None:
    gone = driver.put(1)
    with pytest.raises(UnknownUids, match="0x4d, and none had"):
        describe(driver, uids=np.array([77]))
    driver.clear(gone)
    with pytest.raises(RowsGone):
        describe(driver, uids=gone)
    with pytest.raises(UnknownPartition):
        describe(driver, partition="nowhere")
    with pytest.raises(InvalidInput, match="a partition, uids, or both"):
        describe(driver)
    for limit in (0, -1, 1001):
        with pytest.raises(InvalidInput, match="limit must be 1 to 1000"):
            check_limit(limit, 1000)


def test_an_empty_partition_is_described_as_empty(driver: Driver) -> None:
    driver.declare()
    found = describe(driver, partition="train")
    assert (found.num_rows, found.sites, found.claims) == (0, [], [])


def test_bytes_are_told_by_task_age_and_site(driver: Driver) -> None:
    uids = driver.put(4, ("x",), tags={SITE_TAG: "a.py:1"})
    driver.put(2, ("x",), tags={SITE_TAG: "b.py:2"}, slot=1)
    driver.fill(uids[:2], ("y",))
    driver.take(1, task="actor")
    held = driver.plane.held(now_s=driver.now_s)["train"]
    assert held["bytes"] == 8 * 32 == sum(held["bytes_by_field"].values())
    assert {site: of["bytes"] for site, of in held["rows_by_site"].items()} == {
        "a.py:1": 6 * 32, "b.py:2": 2 * 32,
    }  # fmt: skip
    assert held["bytes_by_task"]["actor"] == {
        "free": 6 * 32, "claimed": 2 * 32, "acked": 0, "dead_letter": 0,
    }  # fmt: skip
    assert held["bytes_by_age"]["up to 60 s"] == 8 * 32
