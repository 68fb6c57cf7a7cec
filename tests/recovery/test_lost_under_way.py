"""Puts and gets that are under way to a shard which does not come back learn of it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.recovery.test_replicas import MIB, wait_for_both
from tests.recovery.test_takeover import rows_on, serving
from tests.waiting import wait_until
from transferqueue.errors import RowsLost

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0
"""Of each request: far more than it may take."""

TAKEOVER_S = 2.0


@contextmanager
def standing_still(service: tq.Service, *slots: int) -> Iterator[None]:
    """These shards say nothing, until the end."""
    pids = [service.pids[f"shard-{slot}"] for slot in slots]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def only_to(client: tq.Client, slot: int) -> None:
    """New rows of this client go to one shard, while it is there."""
    client._ops.session.slots_for_new_rows = [slot]


def test_new_rows_go_to_another_shard_and_rows_that_are_lost_are_named_at_once() -> None:
    with (
        tq.serve(shards=2, budget_bytes=64 * MIB, takeover_s=TAKEOVER_S) as service,
        tq.connect(service.address, timeout_s=TIMEOUT_S) as client,
        tq.connect(service.address, timeout_s=TIMEOUT_S) as mapper,
        tq.connect(service.address, timeout_s=TIMEOUT_S, transport="ipc") as streamer,
        ThreadPoolExecutor(6) as threads,
    ):
        handles = rows_on(client, (0, 1))
        for one in (client, mapper, streamer):
            only_to(one, 1)

        async def put_async() -> tq.BatchHandle:
            async with await tq.connect_async(service.address, timeout_s=TIMEOUT_S) as aclient:
                aclient._ops.session.slots_for_new_rows = [1]
                return await aclient.put({"x": torch.ones(4)})

        with standing_still(service, 1):
            began_s = time.monotonic()
            puts: list[Future[Any]] = [
                threads.submit(client.put, {"x": torch.ones(4)}),
                threads.submit(mapper.put, {"x": torch.ones(4, MIB)}),
                threads.submit(streamer.put, {"x": torch.ones(4, MIB)}),
                threads.submit(asyncio.run, put_async()),
            ]
            of_lost = [
                threads.submit(client.get, handles[1]),
                threads.submit(client.put, {"y": torch.ones(4)}, handle=handles[1]),
            ]
            for put in puts:
                assert (put.result().uids >> 48 == 0).all()
            for one in of_lost:
                with pytest.raises(RowsLost, match=r"4 of 4 rows are lost: shard\(s\) \[1\]"):
                    one.result()
            assert time.monotonic() - began_s < TAKEOVER_S + 8.0
            assert client.get(puts[2].result())["x"].sum() == 4 * MIB
            assert client.get(handles[0])["x"].tolist() == [0, 1, 2, 3]


def test_a_put_that_only_the_guard_has_made_is_answered_there_and_stored_once() -> None:
    with (
        tq.serve(shards=3, budget_bytes=32 * MIB, replicas=2, takeover_s=TAKEOVER_S) as service,
        tq.connect(service.address, timeout_s=TIMEOUT_S) as client,
        tq.connect(service.address, timeout_s=TIMEOUT_S) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        wait_for_both(client)
        handle = rows_on(client, (0,))[0]
        (home,) = (s for s in client.status()["shards"] if s["slot"] == 0)
        guard = int(home["copies"]["guard"])
        before = client.status()["partitions"]["p"]["rows"]
        only_to(client, 0)
        with standing_still(service, guard):
            new = threads.submit(client.put, {"x": torch.full((4,), 7)}, partition="p")
            more = threads.submit(other.put, {"y": torch.ones(4)}, handle=handle)
            wait_until(
                lambda: client.status(timeout_s=0.3)["shards"][0]["copies"]["changes_waiting"] == 2
            )
            os.kill(service.pids["shard-0"], signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            assert (new.result().uids >> 48 == 0).all(), (
                "answered by who has the place of its shard"
            )
            assert other.get(more.result())["y"].sum() == 4
            assert time.monotonic() - began_s < TAKEOVER_S + 8.0
            assert serving(client)[0] == service.pids[f"shard-{guard}"]
            assert client.get(new.result())["x"].tolist() == [7] * 4
            wait_until(lambda: client.status()["partitions"]["p"]["rows"] >= before + 4)
            time.sleep(0.2)
            assert client.status()["partitions"]["p"]["rows"] == before + 4
        finally:
            os.kill(service.pids["shard-0"], signal.SIGCONT)
