"""Shards that do not come back: their guards take their place, or their rows are lost by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.recovery.test_replicas import MIB, lose, wait_for_both
from tests.waiting import wait_until
from transferqueue.errors import RowsLost, SlotTakenOver
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.service.joining import join
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow


def rows_on(client: tq.Client, slots: Sequence[int]) -> dict[int, tq.BatchHandle]:
    """A handle with rows on each of these slots, tagged with the slot."""
    found: dict[int, tq.BatchHandle] = {}
    while set(slots) - set(found):
        handle = client.put({"x": torch.arange(4)}, partition="p")
        found.setdefault(int(handle.uids[0]) >> 48, handle)
    return found


def serving(client: tq.Client) -> dict[int, int]:
    """slot -> process that serves it."""
    return {shard["slot"]: shard["pid"] for shard in client.status()["shards"]}


def test_a_guard_takes_the_place_of_a_shard_that_does_not_come_back_and_gets_a_guard() -> None:
    with (
        tq.serve(shards=3, budget_bytes=32 * MIB, replicas=2, takeover_s=4.0) as service,
        tq.connect(service.address) as client,
    ):
        wait_for_both(client)
        handles = rows_on(client, (0, 1, 2))
        assert client.get(handles[0])["x"].tolist() == [0, 1, 2, 3]
        client.clear(handles[0][1:2])
        wait_for_both(client)
        (home,) = (s for s in client.status()["shards"] if s["slot"] == 0)
        guard = home["copies"]["guard"]
        pid = service.pids["shard-0"]
        os.kill(pid, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            kept = handles[0][[0, 2, 3]]
            assert client.get(kept)["x"].tolist() == [0, 2, 3], "the guard answers meanwhile"
            for _ in range(20):
                assert client.get(kept)["x"].sum() == 5
            assert time.monotonic() - began_s < 8.0, "and is not asked anew each time"
            wait_until(
                lambda: serving(client).get(0) == service.pids[f"shard-{guard}"], timeout_s=20
            )
            more = client.put({"y": torch.ones(3)}, handle=kept)
            assert client.get(more)["y"].sum() == 3
            wait_for_both(client)
            (home,) = (s for s in client.status()["shards"] if s["slot"] == 0)
            assert home["copies"]["guard"] not in (0, guard), "no process keeps both copies"
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: "shard-0" in service.failures, timeout_s=10)
        assert isinstance(service.failures["shard-0"], SlotTakenOver)
        assert client.get(more)["x"].tolist() == [0, 2, 3]

        # The process that serves two slots is killed, and the coordinator: all is there again.
        for name in (f"shard-{guard}", "coordinator"):
            os.kill(service.pids[name], signal.SIGKILL)
        assert client.get(more, timeout_s=20)["y"].sum() == 3
        wait_for_both(client)
        assert client.get(more)["x"].tolist() == [0, 2, 3]
        for handle in (handles[1], handles[2]):
            assert client.get(handle)["x"].tolist() == [0, 1, 2, 3]


def test_without_a_second_copy_rows_of_a_shard_that_does_not_come_back_are_lost_by_name() -> None:
    with (
        tq.serve(shards=2, budget_bytes=16 * MIB, takeover_s=1.0) as service,
        tq.connect(service.address) as client,
    ):
        handles = rows_on(client, (0, 1))
        pid = service.pids["shard-1"]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(RowsLost, match="4 of 4 rows"):
                client.get(handles[1], timeout_s=2.5)
            assert client.get(handles[0])["x"].tolist() == [0, 1, 2, 3]
        finally:
            os.kill(pid, signal.SIGCONT)


def test_shards_that_joined_leave_and_their_rows_stay() -> None:
    with (
        tq.serve(shards=2, budget_bytes=16 * MIB, replicas=2) as service,
        tq.connect(service.address) as client,
    ):
        with join(service.address, shards=1, budget_bytes=16 * MIB) as joined:
            (slot,) = joined.slots
            wait_for_both(client)
            guards = {s["slot"]: s["copies"]["guard"] for s in client.status()["shards"]}
            assert slot in guards
            handle = rows_on(client, (slot,))[slot]
            client.wait(handle)
        assert client.get(handle)["x"].tolist() == [0, 1, 2, 3], "also just now"
        wait_until(lambda: slot in serving(client), timeout_s=20)
        assert serving(client)[slot] == service.pids[f"shard-{guards[slot]}"]
        wait_for_both(client)
        with tq.connect(service.address) as late:
            leaving = late._ops.upkeep.lose_shard(slot, owner=joined._lineage)
            assert not run_blocking(leaving), "who was its owner has no say any more"
            assert late.get(late.put({"y": torch.ones(4)}, handle=handle))["y"].sum() == 4


def test_a_guard_that_stands_still_holds_puts_up_for_so_long_and_catches_up() -> None:
    with (
        tq.serve(shards=2, budget_bytes=16 * MIB, replicas=2, guard_silence_s=1.0) as service,
        tq.connect(service.address) as client,
    ):
        wait_for_both(client)
        handle = rows_on(client, (0,))[0]
        pid = service.pids["shard-1"]
        os.kill(pid, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            for name in "abcde":
                handle = client.put({name: torch.ones(4)}, handle=handle)
            assert 0.4 < time.monotonic() - began_s < 4.0, "once, and not each of them"
            status = client.status()
            assert status["shards_away"] == [1]
            (home,) = status["shards"]
            assert home["copies"]["is_complete"] is False
            assert home["copies"]["phase"] == "one copy"
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_for_both(client)
        lose(service, client, 0)
        assert client.get_columns(handle, fields=["e"])["e"].sum() == 4


def test_one_that_is_killed_before_it_is_on_record_is_followed_by_another_number() -> None:
    """Nothing of it is left that would tell its successor: all that it had was in its process."""
    with (
        tq.serve(
            shards=2, backend="heap", budget_bytes=32 * MIB, replicas=2, takeover_s=6.0
        ) as service,
        tq.connect(service.address) as client,
    ):
        wait_for_both(client)
        handle = rows_on(client, (0,))[0]
        wait_for_both(client)
        place = place_beside(client, guard=1, slot=0)
        lost, guard = service.pids["shard-0"], service.pids["shard-1"]
        os.kill(lost, signal.SIGSTOP)
        try:

            def is_taken_over() -> bool:
                client.get(handle)  # from the mirror: so its new home waits to be on record
                return Path(place.removeprefix("ipc://")).exists()

            wait_until(is_taken_over, timeout_s=20)
            first = epoch_at(place)
            os.kill(guard, signal.SIGKILL)
            wait_until(lambda: serving(client).get(0, guard) not in (lost, guard), timeout_s=20)
            assert epoch_at(place) > first > 0
        finally:
            os.kill(lost, signal.SIGCONT)


def place_beside(client: tq.Client, *, guard: int, slot: int) -> str:
    """Where the guard's process listens for the slot, once it serves it."""
    shards = {shard["slot"]: shard["endpoints"] for shard in client._ops.session.directory}
    (own,) = (place for place in shards[guard] if place.startswith("ipc://"))
    return f"{own}.{slot}"


def epoch_at(place: str) -> int:
    """What the shard there says itself: how many processes of its slot there have been."""
    channel = SyncChannelPool(None)
    try:
        call = Call(endpoint=place, op=ops.STATUS, body={})
        (answer,) = raise_first(run_blocking(channel.exchange([call], timeout_s=10)))
    finally:
        channel.close()
    return int(answer.body["epoch"])
