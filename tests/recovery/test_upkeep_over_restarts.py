"""What somebody said of rows and shards still holds when the coordinator, or the shard, is another
process; after a second restart too, which starts from nothing but a dump."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.recovery.shard_in_process import InProcess, in_process
from tests.waiting import wait_until
from transferqueue.coordinator import opening
from transferqueue.coordinator.parked import GONE_AFTER_S
from transferqueue.errors import FieldsMissing, NotReady, RowsGone, RowsLost
from transferqueue.net.presence import PROBE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=[1, 2], ids=["journal", "dump"])
def times(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def running(tmp_path: Path) -> Iterator[InProcess]:
    with in_process(tmp_path) as running:
        yield running


def restart(running: InProcess, times: int) -> None:
    for _ in range(times):
        running.restart_coordinator()
    running.client.select("p")  # waits until the shards have told


def put(running: InProcess, rows: int) -> tq.BatchHandle:
    handle = running.client.put({"x": torch.arange(rows)}, partition="p")
    return running.client.wait(handle, fields=["x"])


def is_gone(client: tq.Client, handle: tq.BatchHandle) -> bool:
    try:
        client.get(handle)
    except RowsGone:
        return True
    return False


def test_discarded_rows_go_though_the_shard_did_not_hear_it(running: InProcess, times: int) -> None:
    handle = put(running, 4)
    running.links_are_deaf()
    assert running.client.discard(handle[:3]) == 3
    restart(running, times)
    wait_until(lambda: is_gone(running.client, handle[:3]))
    assert running.client.get(handle[3:])["x"].tolist() == [3]


def test_a_discarded_row_waits_for_the_claim_that_holds_it(running: InProcess, times: int) -> None:
    client = running.client
    handle = put(running, 2)
    claim = client.claim(task="t", partition="p", fields=["x"], n=2)
    client.discard(handle[:1])
    restart(running, times)
    with pytest.raises(NotReady):  # nobody new gets it
        client.claim(task="other", partition="p", fields=["x"], n=2, timeout_s=0.2)
    assert claim.get()["x"].tolist() == [0, 1]
    claim.ack()
    wait_until(lambda: is_gone(client, handle[:1]))
    assert client.get(handle[1:])["x"].tolist() == [1]


def test_rows_dropped_with_an_ack_are_nobodys(running: InProcess, times: int) -> None:
    client = running.client
    handle = put(running, 3)
    claim = client.claim(task="filter", partition="p", fields=["x"], n=3)
    running.links_are_deaf()
    claim.ack(drop=claim.handle[:2])
    restart(running, times)
    left = client.claim(task="next", partition="p", fields=["x"], n=1, timeout_s=5)
    assert left.get()["x"].tolist() == [2]
    wait_until(lambda: is_gone(client, handle[:2]))


def test_a_dead_letter_stays_one_until_it_is_tried_again(running: InProcess, times: int) -> None:
    client = running.client
    client.create_partition("p", max_deliveries=1)
    put(running, 2)
    client.claim(task="t", partition="p", fields=["x"], n=2).give_back()
    restart(running, times)
    assert len(client.dead_letters("t", "p")) == 2
    assert client.redrive("t", handle=client.dead_letters("t", "p")[:1]) == 1
    restart(running, times)
    assert len(client.dead_letters("t", "p")) == 1
    assert len(client.claim(task="t", partition="p", fields=["x"], n=1, timeout_s=5).handle) == 1


def test_a_shard_that_was_written_off_is_not_taken_back(
    running: InProcess, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LIMIT_S", 1.0)  # for which a coordinator waits for shards
    client = running.client
    handle = put(running, 2)
    client.lose_shard(0)
    restart_without_waiting(running, times)
    with pytest.raises(RowsLost):
        client.wait(handle, fields=["x"], timeout_s=15)


def restart_without_waiting(running: InProcess, times: int) -> None:
    for _ in range(times):
        running.restart_coordinator()


def test_a_field_that_was_released_does_not_come_back_with_its_shard(running: InProcess) -> None:
    client = running.client
    client.create_partition("p", tasks=["t", "u"], release_after={"pixels": "t"})
    value = {"x": torch.arange(2), "pixels": torch.ones(2, 1 << 18)}
    handle = client.put(value, partition="p")
    with client.claim(task="t", partition="p", fields=["pixels"], n=2):
        pass
    wait_until(lambda: client.status()["shards"][0]["used_bytes"] < 1 << 20)
    for epoch in (1, 2):
        running.restart_shard(epoch)
        with pytest.raises(FieldsMissing):
            client.get(handle, fields=["pixels"])
        assert client.get(handle, fields=["x"])["x"].tolist() == [0, 1]
        assert client.status()["shards"][0]["used_bytes"] < 1 << 20


def test_rows_are_as_old_as_they_were(running: InProcess, times: int) -> None:
    """A TTL goes on from when the rows were put, tagged or not, also when it ran out meanwhile."""
    client = running.client
    client.create_partition("p", retention="ttl", ttl_s=60)
    plain = put(running, 3)
    tagged = client.put({"x": torch.arange(2)}, partition="p", tags={"v": 1})
    client.wait(tagged, fields=["x"])
    uids = [*plain.uids.tolist(), *tagged.uids.tolist()]
    before = came_s(running, uids)
    restart(running, times)
    assert came_s(running, uids) == before
    later = put(running, 1)
    assert came_s(running, later.uids.tolist())[0] > max(before)
    running.restart_shard(1)
    client.select("p")
    restart(running, times)
    assert came_s(running, uids) == before


def came_s(running: InProcess, uids: list[int]) -> list[float]:
    made = running.plane.partitions.known("p")
    rows = made.table.find(np.array(uids))
    assert (rows >= 0).all()
    found: list[float] = made.lifetimes.arrivals.times_s(rows).tolist()
    return found


def test_rows_whose_time_was_up_while_nobody_watched_go(running: InProcess) -> None:
    client = running.client
    client.create_partition("p", retention="ttl", ttl_s=2.0)
    old = put(running, 3)
    running.stop_coordinator()
    time.sleep(2.1)
    running.start_coordinator()
    started_s = time.monotonic()
    wait_until(lambda: is_gone(client, old))
    assert time.monotonic() - started_s < 1.9, "they were given their time anew"


def test_rows_put_before_their_partition_was_declared_have_an_age_too(running: InProcess) -> None:
    client = running.client
    early = put(running, 2)
    client.create_partition("p", retention="ttl", ttl_s=60)
    declared_s = time.monotonic()
    restart(running, 2)
    assert max(came_s(running, early.uids.tolist())) <= declared_s


def test_what_came_and_went_while_there_was_no_coordinator_is_not_told(running: InProcess) -> None:
    """Else clients of a new coordinator wait for thousands of puts that are no more."""
    client = running.client
    kept = put(running, 2)
    running.stop_coordinator()
    for step in range(100):
        handle = client.put({"x": torch.arange(4)}, partition="p", tags={"step": [step] * 4})
        client.clear(handle if step < 98 else handle[step % 2 * 2 :])
    lost = client.put({"x": torch.arange(2)}, partition="p", tags={"step": 500})
    client.clear(kept)
    running.start_coordinator()
    assert len(client.select("p", where=tq.tag("step") >= 98)) == 4
    assert len(client.select("p", where=tq.tag("step") == 99)) == 2
    assert client.select("p", where=tq.tag("step") == 500).uids.tolist() == lost.uids.tolist()
    assert len(client.select("p")) == 4
    assert running.shard._uplink._outbox._next_number < 10


def test_a_put_that_waits_for_its_quota_keeps_its_place_while_the_shards_link_is_down(
    tmp_path: Path,
) -> None:
    """A shard asks once, and a client that is gone for so long would be forgotten."""
    with in_process(tmp_path) as running, ThreadPoolExecutor(1) as thread:
        client = running.client
        client.create_partition("p", max_rows=1)
        first = client.put({"x": [1]}, partition="p")
        waiting = thread.submit(client.put, {"x": [2]}, partition="p")
        parked = running.coordinator._parked
        wait_until(lambda: len(parked) == 1)
        presence = parked._presence
        probe, presence._probe = presence._probe, lambda request: False
        time.sleep(PROBE_S + GONE_AFTER_S + 0.5)
        assert len(parked) == 1
        presence._probe = probe
        client.clear(first)
        assert len(waiting.result(10)) == 1
