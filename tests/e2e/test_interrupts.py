"""A call that is broken off leaves nothing of itself on the shards."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue.client import part_gets, part_puts

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=1, budget_bytes=64 * MIB) as service:
        yield service


@pytest.fixture(params=["shm", "ipc"])
def client(service: tq.Service, request: pytest.FixtureRequest) -> Iterator[tq.Client]:
    with tq.connect(service.address, transport=request.param) as client:
        yield client


def shard(client: tq.Client) -> dict[str, Any]:
    status: dict[str, Any] = client.status()["shards"][0]
    return status


@contextmanager
def ctrl_c_after(wait_s: float) -> Iterator[None]:
    timer = threading.Timer(wait_s, os.kill, args=(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        timer.join()


def test_a_put_that_waits_for_space_waits_no_more_after_ctrl_c(client: tq.Client) -> None:
    held = client.put({"x": torch.zeros(40, 1 << 18)})
    with ctrl_c_after(0.3):
        client.put({"x": torch.zeros(40, 1 << 18)})
    wait_until(lambda: shard(client)["puts_waiting"] == 0)
    client.clear(held)
    wait_until(lambda: shard(client)["used_bytes"] == 0)
    assert shard(client)["rows"] == 0


def interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_a_put_that_is_interrupted_while_it_writes_leaves_nothing(
    client: tq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_puts.PlacedPut, "fill", interrupt)
    chunks = iter(range(100))
    whole = part_puts._frames

    def frames(blocks: Any) -> Any:
        return interrupt() if next(chunks) == 12 else whole(blocks)

    monkeypatch.setattr(part_puts, "_frames", frames)
    with pytest.raises(KeyboardInterrupt):
        client.put({"x": torch.zeros(40, 1 << 18)})
    assert shard(client)["used_bytes"] == 0
    assert shard(client)["puts_under_way"] == 0


def test_a_get_that_is_interrupted_holds_nothing(
    client: tq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.put({"x": torch.zeros(40, 1 << 18)})
    taken = iter(range(100))
    whole = part_gets.deal

    def deal(frames: Any, pieces: Any) -> Any:
        return interrupt() if next(taken) == 12 else whole(frames, pieces)

    monkeypatch.setattr(part_gets, "deal", deal)
    monkeypatch.setattr(type(client._ops._memory), "read", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.get(handle)
    monkeypatch.undo()
    wait_until(lambda: shard(client)["leases"] == 0)
    client.clear(handle)
    assert shard(client)["used_bytes"] == 0


@pytest.mark.parametrize("transport", ["shm", "ipc"])
async def test_tasks_that_are_cancelled_at_any_moment_leave_nothing(
    service: tq.Service, transport: str
) -> None:
    async with await tq.connect_async(service.address, transport=transport) as client:
        values = {"x": torch.zeros(8, 1 << 18)}
        kept = await client.put({"x": torch.ones(8, 1 << 18)}, partition="kept")
        for turn in range(40):
            call = client.put(values, partition="cut") if turn % 2 else client.get(kept)
            task = asyncio.ensure_future(call)
            await asyncio.sleep(0.0007 * turn)
            task.cancel()
            try:
                handle = await task
                if turn % 2:
                    await client.clear(handle)
                del handle  # of a get it is what was got, and holds a lease
            except asyncio.CancelledError:
                pass
            del task, call

        async def is_clean() -> bool:
            status = (await client.status())["shards"][0]
            return (
                status["leases"] == 0
                and status["puts_under_way"] == 0
                and status["used_bytes"] == 8 * MIB
            )

        for _ in range(250):
            if await is_clean():
                break
            await asyncio.sleep(0.02)
        assert await is_clean(), await client.status()
        assert (await client.get(kept))["x"].sum() == 8 << 18


def test_threads_share_a_client(client: tq.Client) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(8):
                value = float(number * 100 + turn)
                handle = client.put({"x": torch.full((2, 1 << 16), value), "n": [number] * 2})
                got = client.get_columns(handle)
                assert (got["x"] == value).all()
                assert list(got["n"]) == [number] * 2
                assert client.clear(handle) == 2
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    wait_until(lambda: shard(client)["used_bytes"] == 0)
