"""A partition that is declared to have one copy of its rows right after the first put: always
refused, however late the coordinator hears of the put."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.recovery.shard_in_process import InProcess
from tests.shard_settings import SERVICE_ID
from transferqueue.coordinator.server import CoordinatorServer
from transferqueue.errors import InvalidInput
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.shard.uplink import Uplink
    from transferqueue.wire.format import Message

LATE_S = 0.02
TRIES = 40


class WithCopies(InProcess):
    """Its service keeps two copies, where there is another shard to keep the second."""

    def start_coordinator(self) -> None:
        self.coordinator = CoordinatorServer(
            service_id=SERVICE_ID,
            endpoints=[f"ipc://{self._folder}/coordinator.sock"],
            keys=None,
            num_shards=1,
            replicas=2,
        )
        self._coordinator_thread = self._run(self.coordinator)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[WithCopies]:
    with contextlib.closing(WithCopies(tmp_path, budget_bytes=16 << 20)) as running:
        yield running


def be_late(uplink: Uplink, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shard says of a put, and all after it, is sent `LATE_S` later."""
    held_since_s: list[float] = []
    tick = uplink.tick

    def late(now_s: float) -> None:
        if uplink.num_unsent and not held_since_s:
            held_since_s.append(now_s)
        if not held_since_s or now_s - held_since_s[0] >= LATE_S:
            held_since_s.clear()
            tick(now_s)

    monkeypatch.setattr(uplink, "tick", late)


def test_what_was_put_before_counts_however_late_the_coordinator_hears_of_it(
    running: WithCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_late(running.shard._uplink, monkeypatch)
    client = running.client
    for number in range(TRIES):
        client.put({"x": torch.arange(5)}, partition=f"p{number}")
        with pytest.raises(InvalidInput, match="before the first put; it has 5 rows"):
            client.create_partition(f"p{number}", replicas=1)
    assert running.shard._copies.one_copy == frozenset()


def test_what_was_lost_on_the_way_to_the_coordinator_counts_too(
    running: WithCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = running.shard._uplink.stream
    lost: list[Message] = []

    def send(message: Message) -> None:
        if message.op == ops.EVENT and not lost:
            lost.append(message)
        else:
            original(message)

    original = stream.send
    monkeypatch.setattr(stream, "send", send)
    running.client.put({"x": torch.arange(5)}, partition="p")
    with pytest.raises(InvalidInput, match="it has 5 rows"):
        running.client.create_partition("p", replicas=1)
    assert lost


def test_it_may_be_declared_again_when_it_has_rows(running: WithCopies) -> None:
    client = running.client
    for _ in range(2):
        client.create_partition("p", replicas=1)
        client.put({"x": torch.arange(5)}, partition="p")
    with pytest.raises(InvalidInput, match="declared otherwise"):
        client.create_partition("p")


def test_declarations_that_wait_beside_one_another_are_all_answered(
    running: WithCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_late(running.shard._uplink, monkeypatch)
    client = running.client
    settings: list[dict[str, Any]] = [{"replicas": 1}, {"max_rows": 9}, {"replicas": 1}, {}]
    done: list[str] = []

    def declare(number: int) -> None:
        client.create_partition(f"p{number}", **settings[number % len(settings)])
        done.append(f"p{number}")

    began_s = time.monotonic()
    threads = [threading.Thread(target=declare, args=[number]) for number in range(12)]
    for thread in threads:
        client.put({"x": torch.arange(5)}, partition="busy")
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 12
    assert running.shard._copies.one_copy == {f"p{number}" for number in (0, 2, 4, 6, 8, 10)}
    assert time.monotonic() - began_s < 10.0
