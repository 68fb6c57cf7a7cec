"""What a coordinator knew is what the one that is restored knows, but that no claim is out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transferqueue.checkpoint.files import write_records
from transferqueue.checkpoint.restore_plan import SavedPlane
from transferqueue.coordinator.control_plane import ControlPlane
from transferqueue.coordinator.dump import dump
from transferqueue.coordinator.policy import Retention
from transferqueue.coordinator.replay import Replay
from transferqueue.coordinator.restoring import load_plane
from transferqueue.coordinator.samplers import RankAware
from transferqueue.errors import CheckpointDamaged, LeaseExpired
from transferqueue.homes import Homes

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Driver

LATER_S = 9_000.0
"""The clock of the host that it is restored on."""


def saved_of(driver: Driver, folder: Path) -> SavedPlane:
    records = list(dump(driver.plane, {}, {}, driver.now_s, every_row=True))
    file = write_records(os.path.join(folder, "coordinator"), records)
    return SavedPlane(path="here", folder=str(folder), file=file, first_claim_id=1 << 40)


def restored(driver: Driver, folder: Path, homes: Homes | None = None) -> Driver:
    """Another coordinator, which hears from the shards what rows there are."""
    made = type(driver)()
    made.plane = ControlPlane() if homes is None else ControlPlane(homes=homes)
    made.now_s = LATER_S
    load_plane(made.plane, Replay(made.plane), saved_of(driver, folder), made.now_s)
    made._num_requests = 1000
    return made


def tell(driver: Driver, uids: Any, fields: tuple[str, ...] = ("x",)) -> None:
    """The only shard names all that it has."""
    driver.fill(uids, fields)
    effects = driver.plane.slot_joined(0, now_s=driver.now_s)
    driver.carry_out(
        effects + driver.plane.slot_told(0, uids, next_uid=1 << 48, now_s=driver.now_s)
    )


def test_acks_tags_and_deliveries_stay_and_claims_that_were_out_are_free(
    driver: Driver, tmp_path: Path
) -> None:
    driver.declare(tasks=("t", "u"))
    uids = driver.put(6, tags={"v": np.arange(6)})
    driver.ack(driver.take(uids=uids[:2]))
    out = driver.take(uids=uids[2:4])
    driver.give_back(driver.take(uids=uids[4:5]))
    after = restored(driver, tmp_path)
    tell(after, uids)
    assert after.status()["tasks"]["t"] == {
        **after.status()["tasks"]["t"],
        "acked": 2,
        "claimed": 0,
    }
    grant = after.take(4)
    assert sorted(grant.uids.tolist()) == uids[2:].tolist()
    deliveries = dict(zip(grant.uids.tolist(), grant.deliveries.tolist(), strict=True))
    assert [deliveries[uid] for uid in uids[2:].tolist()] == [2, 2, 2, 1]
    assert grant.claim_id >= 1 << 40
    with pytest.raises(LeaseExpired, match=r"ran out|expired|too late|lease"):
        after.plane.ack(out.claim_id, now_s=after.now_s)


def test_a_claim_that_was_out_for_the_last_time_is_no_dead_letter(
    driver: Driver, tmp_path: Path
) -> None:
    driver.declare(tasks=("t",), max_deliveries=1)
    uids = driver.put(3)
    driver.take(uids=uids[:1])
    driver.give_back(driver.take(uids=uids[1:2]))
    after = restored(driver, tmp_path)
    tell(after, uids)
    assert after.plane.dead_letters("train", "t").uids.tolist() == uids[1:2].tolist()
    assert sorted(after.take(2).uids.tolist()) == [uids[0], uids[2]]


def test_ages_go_on_from_what_they_were(driver: Driver, tmp_path: Path) -> None:
    driver.declare(retention=Retention.TTL, ttl_s=50.0)
    uids = driver.put(2)
    driver.pass_time(30)
    after = restored(driver, tmp_path)
    tell(after, uids)
    assert after.status()["oldest_s"] == pytest.approx(30)
    after.pass_time(19)
    assert after.frees == []
    after.pass_time(2)
    assert sorted(np.concatenate([free.uids for free in after.frees]).tolist()) == uids.tolist()


def test_filtered_rows_that_a_claim_kept_are_freed(driver: Driver, tmp_path: Path) -> None:
    driver.declare(tasks=("t", "u"))
    uids = driver.put(3)
    driver.take(uids=uids[:1])
    driver.carry_out(driver.plane.discard("train", uids[:1], now_s=driver.now_s)[1])
    assert driver.frees == []
    after = restored(driver, tmp_path)
    tell(after, uids)
    assert [free.uids.tolist() for free in after.frees] == [uids[:1].tolist()]


def test_a_shared_batch_that_one_replica_has_acked_is_kept_for_the_other(
    driver: Driver, tmp_path: Path
) -> None:
    driver.declare(tasks=("t",))
    uids = driver.put(4)
    first = driver.take(2, sampler=RankAware(dp_size=1, replicas=2, rank=0))
    driver.take(2, client="other", sampler=RankAware(dp_size=1, replicas=2, rank=1))
    driver.ack(first)
    after = restored(driver, tmp_path)
    tell(after, uids)
    again = after.take(2, sampler=RankAware(dp_size=1, replicas=2, rank=1))
    assert again.uids.tolist() == first.uids.tolist()


def test_rows_that_no_shard_has_are_forgotten(driver: Driver, tmp_path: Path) -> None:
    uids = driver.put(4, tags={"v": 1})
    after = restored(driver, tmp_path)
    tell(after, uids[1:])
    assert after.status()["rows"] == 3
    after.clear(uids[1:2])
    assert after.status()["rows"] == 2


def test_rows_of_one_slot_may_be_on_several_shards(driver: Driver, tmp_path: Path) -> None:
    driver.declare(tasks=("t",), retention=Retention.CONSUMED)
    uids = driver.put(4)
    homes = Homes(starts=(0, int(uids[2])), slots=(0, 1))
    after = restored(driver, tmp_path, homes)
    for slot, mine in ((0, uids[:2]), (1, uids[2:])):
        after.carry_out(
            after.plane.commit(
                now_s=after.now_s,
                slot=slot,
                partition="train",
                uids=mine,
                fields={"x": ("float32", (8,), None, "tensor")},
            )
        )
        after.carry_out(after.plane.slot_told(slot, mine, next_uid=1 << 62, now_s=after.now_s))
    after.ack(after.take(4))
    assert {free.slot: free.uids.tolist() for free in after.frees} == {
        0: uids[:2].tolist(),
        1: uids[2:].tolist(),
    }


def test_a_file_of_other_records_is_damaged(driver: Driver, tmp_path: Path) -> None:
    saved = saved_of(driver, tmp_path)
    records = [r for r in dump(driver.plane, {}, {}, 1.0, every_row=True) if r.kind != "head"]
    file = write_records(os.path.join(tmp_path, "coordinator"), records)
    plane = ControlPlane()
    with pytest.raises(CheckpointDamaged, match="coordinator"):
        load_plane(plane, Replay(plane), saved, LATER_S)
    other = SavedPlane(path="here", folder=str(tmp_path), file=file, first_claim_id=1)
    with pytest.raises(CheckpointDamaged, match="coordinator"):
        load_plane(plane, Replay(plane), other, LATER_S)
