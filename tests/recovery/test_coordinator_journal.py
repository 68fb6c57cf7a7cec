"""A coordinator that is started again knows every claim and ack; shards tell it the rest."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.recovery.shard_in_process import InProcess, in_process
from tests.waiting import wait_until
from transferqueue.coordinator.control_plane import ControlPlane
from transferqueue.coordinator.replay import Replay
from transferqueue.errors import (
    AlreadyAcked,
    JournalDamaged,
    LeaseExpired,
    NotReady,
    RowsGone,
    TransferQueueError,
)
from transferqueue.journal.file import read_journal
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def running(tmp_path: Path) -> Iterator[InProcess]:
    with in_process(tmp_path) as running:
        yield running


def account_of(plane: ControlPlane) -> dict[str, Any]:
    """What a coordinator knows and no shard does, by uid."""
    told: dict[str, Any] = {
        "next claim": plane.leases.peek_claim_id(),
        "out": {
            lease.claim_id: (lease.task, sorted(lease.uids.tolist()), round(lease.deadline_s, 6))
            for lease in plane.leases.each()
        },
        "closed": dict(plane.leases.closed()),
    }
    for partition in plane.partitions:
        is_declared = plane.partitions.is_declared(partition.name)
        if not (is_declared or partition.table.num_rows or partition.quota.rows_put):
            continue  # somebody has looked whether there is anything, this test for one
        rows = partition.table.live_rows()
        uids = partition.table.uids(rows).tolist()
        tasks = {
            task: dict(zip(uids, partition.table.task_column(task)[rows].tolist(), strict=True))
            for task in partition.table.tasks
        }
        told[partition.name] = {
            "rows": sorted(uids),
            "counts": {
                task: partition.table.count_by_state(task)
                for task, states in tasks.items()
                if any(states.values())
            },
            "ready": {name: n for name, n in partition.table.num_ready.items() if n},
            "tasks": {
                task: {u: s for u, s in states.items() if s}
                for task, states in tasks.items()
                if any(states.values())
            },
            "tags": {
                name: {
                    uid: value
                    for uid, value in zip(uids, column.get(rows).tolist(), strict=True)
                    if value is not None
                }
                for name, column in partition.tags.columns.items()
            },
            "policy": partition.policy.to_plain(),
            "newest": partition.staleness.newest,
            "put": partition.quota.rows_put,
            "handed out": partition.quota.rows_handed_out,
            "bytes": partition.quota.field_bytes.total,
            "used": partition.quota.used_rows,
        }
    return told


def replayed(running: InProcess) -> Replay:
    """What a coordinator that was started now would read."""
    records = read_journal(running.coordinator_journal)
    assert records is not None
    replay = Replay(ControlPlane())
    replay.run(records)
    return replay


class Worker:
    """Does what producers and consumers do, at random."""

    def __init__(self, running: InProcess, seed: int) -> None:
        self._running = running
        self._dice = random.Random(seed)
        self._claims: list[tq.Claim] = []
        self._handles: list[tq.BatchHandle] = []
        self._version = 0
        self.acked: set[int] = set()

    @property
    def _client(self) -> tq.Client:
        return self._running.client

    def step(self) -> None:
        steps = [self.put, self.put, self.claim, self.claim, self.ack, self.give_back, self.extend]
        self._dice.choice([*steps, self.tag, self.advance, self.clear, self.declare])()

    def put(self) -> None:
        rows = self._dice.randrange(1, 9)
        tags: dict[str, Any] = {"policy_version": self._version}
        if self._dice.random() < 0.5:
            tags["name"] = [self._dice.choice(["a", "b", None]) for _ in range(rows)]
        partition = self._dice.choice(["p", "q"])
        self._handles.append(
            self._client.put({"x": torch.ones(rows, 3)}, partition=partition, tags=tags)
        )

    def claim(self) -> None:
        task, partition = self._dice.choice(["actor", "critic"]), self._dice.choice(["p", "q"])
        sampler = None
        if self._dice.random() < 0.3:
            sampler = tq.samplers.RankAware(dp_size=1, replicas=2).for_rank(self._dice.randrange(2))
            task = "shared"
        try:
            claim = self._client.claim(
                task=task,
                partition=partition,
                fields=["x"],
                n=self._dice.randrange(1, 5),
                sampler=sampler,
                timeout_s=0.0,
            )
        except (NotReady, TransferQueueError):
            return
        self._claims.append(claim)

    def _take(self) -> tq.Claim | None:
        if not self._claims:
            return None
        return self._claims.pop(self._dice.randrange(len(self._claims)))

    def ack(self) -> None:
        claim = self._take()
        if claim is not None:
            try:
                claim.ack()
            except TransferQueueError:
                return  # a replica that claimed again without an ack has lost this one

    def give_back(self) -> None:
        claim = self._take()
        if claim is not None:
            try:
                claim.give_back()
            except TransferQueueError:
                return

    def extend(self) -> None:
        if self._claims:
            try:
                self._dice.choice(self._claims).extend(100.0)
            except TransferQueueError:
                return

    def tag(self) -> None:
        if self._handles:
            try:
                self._client.update_tags(self._dice.choice(self._handles), {"score": 1.5})
            except TransferQueueError:
                return

    def advance(self) -> None:
        self._version += 1
        self._client.advance_policy(self._version)

    def clear(self) -> None:
        if self._handles:
            self._client.clear(self._handles.pop(self._dice.randrange(len(self._handles))))

    def declare(self) -> None:
        self._client.create_partition(
            "q", tasks=["actor", "critic", "shared"], max_staleness=4, max_rows=10_000
        )


@pytest.mark.parametrize("seed", range(6))
def test_a_journal_and_the_shards_say_what_the_coordinator_knows(
    running: InProcess, seed: int
) -> None:
    worker = Worker(running, seed)
    for _ in range(4):
        for _ in range(40):
            worker.step()
        wait_until(lambda: running.is_settled())
        before = account_of(running.plane)
        running.restart_coordinator()
        running.client.select("p")  # waits until the shards have told
        assert account_of(running.plane) == before


def test_what_was_dumped_is_replayed_as_it_was(running: InProcess) -> None:
    worker = Worker(running, 99)
    for _ in range(120):
        worker.step()
    wait_until(lambda: running.is_settled())
    before = account_of(running.plane)
    for _ in range(2):  # the second one starts from nothing but a dump
        running.restart_coordinator()
        running.client.select("p")
        assert account_of(running.plane) == before


def test_an_ack_is_known_and_a_claim_that_is_out_stays_out(running: InProcess) -> None:
    client = running.client
    client.put({"x": torch.ones(4)}, partition="p")
    one = client.claim(task="t", partition="p", fields=["x"], n=1)
    two = client.claim(task="t", partition="p", fields=["x"], n=2)
    one.ack()
    running.restart_coordinator()
    with pytest.raises(AlreadyAcked):
        one.ack()
    three = client.claim(task="t", partition="p", fields=["x"], n=1, timeout_s=2)
    taken = {*one.handle.uids.tolist(), *two.handle.uids.tolist(), *three.handle.uids.tolist()}
    assert len(taken) == 4
    with pytest.raises(NotReady):
        client.claim(task="t", partition="p", fields=["x"], n=1, timeout_s=0.2)
    two.ack()
    three.give_back()
    running.restart_coordinator()
    again = client.claim(task="t", partition="p", fields=["x"], n=1, timeout_s=2)
    assert again.handle.uids.tolist() == three.handle.uids.tolist()
    assert again.deliveries.tolist() == [2]


def test_a_lease_runs_out_while_the_coordinator_is_away(running: InProcess) -> None:
    client = running.client
    client.put({"x": torch.ones(2)}, partition="p")
    claim = client.claim(task="t", partition="p", fields=["x"], n=2, lease_s=0.3)
    running.restart_coordinator()
    again = client.claim(task="t", partition="p", fields=["x"], n=2, timeout_s=5)
    assert again.handle.uids.tolist() == claim.handle.uids.tolist()
    with pytest.raises(LeaseExpired):
        claim.ack()


def test_what_every_task_has_acked_is_freed_though_the_shard_did_not_hear_it(
    running: InProcess,
) -> None:
    client = running.client
    client.create_partition("p", tasks=["t"], retention="consumed")
    handle = client.put({"x": torch.ones(3)}, partition="p")
    claim = client.claim(task="t", partition="p", fields=["x"], n=3)
    running.links_are_deaf()
    claim.ack()
    assert len(client.get(handle)) == 3
    running.restart_coordinator()
    wait_until(lambda: client.status()["shards"][0]["rows"] == 0)
    with pytest.raises(RowsGone):
        client.get(handle)


def test_rows_of_a_partition_that_was_dropped_do_not_come_back(running: InProcess) -> None:
    client = running.client
    client.put({"x": torch.ones(3)}, partition="p")
    wait_until(lambda: running.is_settled())
    running.links_are_deaf()
    drop = Call(
        endpoint=running.coordinator.endpoints[0], op=ops.DROP_PARTITION, body={"partition": "p"}
    )
    pool = SyncChannelPool()
    raise_first(run_blocking(pool.exchange([drop], timeout_s=5)))
    pool.close()
    running.restart_coordinator()
    wait_until(lambda: client.status()["shards"][0]["rows"] == 0)
    assert "p" not in client.status()["partitions"]


def test_a_wait_for_rows_that_were_cleared_before_is_told_so(running: InProcess) -> None:
    client = running.client
    handle = client.put({"x": torch.ones(3)}, partition="p")
    client.clear(handle)
    running.restart_coordinator()
    with pytest.raises(RowsGone):
        client.wait(handle, fields=["x"], timeout_s=2)


def test_tags_that_were_set_later_are_kept_over_those_of_the_put(running: InProcess) -> None:
    client = running.client
    handle = client.put({"x": torch.ones(3)}, partition="p", tags={"v": 1, "w": "old"})
    client.wait(handle, fields=["x"])
    client.update_tags(handle, {"v": 2})
    running.restart_shard(1)
    running.restart_coordinator()
    assert len(client.select("p", where=tq.tag("v") == 2)) == 3
    assert len(client.select("p", where=tq.tag("w") == "old")) == 3


def test_tags_of_a_put_that_no_coordinator_has_heard_of_are_not_lost(running: InProcess) -> None:
    client = running.client
    running.stop_coordinator()
    handle = client.put({"x": torch.ones(3)}, partition="p", tags={"v": 7})
    running.restart_shard(1)
    running.start_coordinator()
    assert client.select("p", where=tq.tag("v") == 7).uids.tolist() == handle.uids.tolist()


def test_a_slot_that_was_given_up_and_has_a_shard_again_is_not_lost(running: InProcess) -> None:
    client = running.client
    client.put({"x": torch.ones(3)}, partition="p")
    wait_until(lambda: running.is_settled())
    lose = Call(
        endpoint=running.coordinator.endpoints[0],
        op=ops.LOSE_SHARD,
        body={"slot": 0, "owner": None},
    )
    pool = SyncChannelPool()
    raise_first(run_blocking(pool.exchange([lose], timeout_s=5)))
    pool.close()
    assert replayed(running).lost.keys() == {0}
    running.restart_shard(1)
    wait_until(lambda: not running.coordinator._links.lost)
    replay = replayed(running)
    assert not replay.lost
    assert not replay._plane.partitions.gone.lost_slots


@pytest.mark.parametrize("what", ["missing", "damaged"])
def test_a_coordinator_whose_journal_cannot_be_trusted_does_not_start(
    running: InProcess, what: str
) -> None:
    running.client.put({"x": torch.ones(3)}, partition="p", tags={"v": 1})
    wait_until(lambda: running.is_settled())
    running.stop_coordinator()
    path = Path(running.coordinator_journal)
    whole = path.read_bytes()
    if what == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:30] + b"?" + whole[31:])
    with pytest.raises(JournalDamaged, match=r"coordinator\.journal"):
        running.start_coordinator()
    path.write_bytes(whole)
    running.start_coordinator()
    assert len(running.client.select("p")) == 3


def test_a_coordinators_journal_stays_as_long_as_what_is_alive(running: InProcess) -> None:
    client = running.client
    client.create_partition("p", tasks=["t"], retention="consumed")
    for _ in range(300):
        client.put(
            {"x": torch.ones(512)}, partition="p", tags={"v": np.arange(512), "w": ["name"] * 512}
        )
        with client.claim(task="t", partition="p", fields=["x"], n=512):
            pass
    wait_until(lambda: client.status()["journal_bytes"] < 2 << 20)
    before = account_of(running.plane)
    assert account_of(replayed(running)._plane)["next claim"] == before["next claim"]
