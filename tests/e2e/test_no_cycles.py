"""Memory comes back when the last reference goes, not when Python next looks for cycles.

A tensor of a get holds its memory in the shard. Were it in a cycle, or held by one, it would do so
until a collection of the garbage, which Python makes by the number of objects, whatever their size.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.cycles import (
    expect_nothing_kept,
    expect_nothing_kept_async,
    left_to_the_collector,
)
from tests.e2e import fake_gpus
from tests.waiting import wait_until
from transferqueue import errors
from transferqueue.devices.fake_machine import FakeMachine
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from transferqueue.service.embedded import Service

ROWS = 8


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tq.serve(budget_bytes=64 << 20, host="127.0.0.1") as running:
        yield running


@pytest.fixture(scope="module", params=["auto", "ipc", "sockets"])
def client(service: Service, request: pytest.FixtureRequest) -> Iterator[tq.Client]:
    with tq.connect(service.address, transport=request.param, timeout_s=20) as connected:
        put_and_get(connected)  # its thread that gives memory back starts with the first lease
        yield connected


def columns() -> dict[str, Any]:
    ragged = [torch.arange(1.0 + i) for i in range(ROWS)]
    return {
        "dense": torch.rand(ROWS, 1 << 16),
        "ragged": torch.nested.nested_tensor(ragged, layout=torch.jagged),
        "text": [f"row {i}" for i in range(ROWS)],
        "arrays": [np.arange(i + 1) for i in range(ROWS)],
        "trees": [{"image": np.zeros((2, i + 1)), "n": [i]} for i in range(ROWS)],
        "plain": [{"a": i, "b": None} for i in range(ROWS)],
    }


def put_and_get(client: tq.Client) -> None:
    handle = client.put(columns(), partition="cycles", tags={"policy_version": 1})
    client.get_columns(handle)
    client.get_columns(handle[[3, 1]])
    client.put({"more": torch.zeros(ROWS, 4)}, handle=handle)
    client.clear(handle)


def view(client: tq.Client) -> None:
    handle = client.put(columns(), partition="cycles")
    batch = client.view(handle)
    assert batch.batch["dense"].shape[0] == ROWS
    twice = batch.repeat(2)
    tq.DataProto.concat(list(twice.chunk(2)))
    batch.select(["dense"]).pop(["dense"])
    assert len(batch.non_tensor_batch["text"]) == ROWS
    client.clear(handle)


def claims(client: tq.Client) -> None:
    client.create_partition("claimed", tasks=["actor"])
    client.put(columns(), partition="claimed")
    claim = client.claim(task="actor", fields=["text"], n=ROWS, partition="claimed")
    client.get_columns(claim.handle, fields=["text"])
    claim.ack()
    client.clear(claim.handle)


def weights(client: tq.Client) -> None:
    client.publish("policy", {"layer": torch.zeros(256, 256)}, version=1)
    client.fetch("policy")


def reports(client: tq.Client) -> None:
    client.status()
    client.held()
    client.links()
    client.waits()


def errors_of_a_user(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(2, 1 << 16)}, partition="cycles")
    with pytest.raises(errors.TransferQueueError):
        client.get_columns(handle, fields=["missing"], timeout_s=0)
    with pytest.raises(errors.TransferQueueError):
        client.put({"x": torch.zeros(3, 4)}, handle=handle)
    with pytest.raises(errors.StorageFull):
        client.put({"x": torch.zeros(1, 32 << 20)}, partition="cycles", timeout_s=0.1)
    client.clear(handle)
    with pytest.raises(errors.TransferQueueError):
        client.get_columns(handle)


SCENES = [put_and_get, view, claims, weights, reports, errors_of_a_user]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_nothing_of_ours_is_in_a_cycle(
    client: tq.Client, scene: Callable[[tq.Client], None]
) -> None:
    scene(client)
    expect_nothing_kept(client, lambda: scene(client))


def test_a_checkpoint_keeps_nothing(client: tq.Client, tmp_path: Path) -> None:
    def scene() -> None:
        handle = client.put(columns(), partition="cycles")
        client.checkpoint(tmp_path / "saved")
        client.clear(handle)

    scene()
    expect_nothing_kept(client, scene)


class Watched(np.ndarray):
    """An array to whose end a finalizer can be tied."""


@pytest.mark.parametrize("columns", [16, 1 << 17], ids=["inline", "large"])
def test_what_was_put_is_not_kept_by_the_client(client: tq.Client, columns: int) -> None:
    ended: list[int] = []

    def watched(number: int) -> torch.Tensor:
        array = np.zeros((ROWS, columns), np.float32).view(Watched)
        weakref.finalize(array, ended.append, number)
        return torch.from_numpy(array)

    gc.disable()
    try:
        handle = client.put({"x": watched(1)}, partition="cycles")
        client.publish("watched", {"w": watched(2)}, version=columns)
        wait_until(lambda: sorted(ended) == [1, 2])
    finally:
        gc.enable()
        client.clear(handle)


def test_works_that_failed_beside_one_another_keep_nothing() -> None:
    def fail() -> None:
        raise errors.TransportFailed("sockets", "the power went off")

    with contextlib.closing(SyncChannelPool()) as channels, left_to_the_collector() as found:
        try:
            run_blocking(channels.apart([fail, fail]))
        except errors.TransportFailed:
            pass
        else:
            raise AssertionError("nothing was raised")
    assert found == []


# -- the asynchronous face ----------------------------------------------------------------------


async def put_and_get_soon(client: tq.AsyncClient) -> None:
    handle = await client.put(columns(), partition="soon")
    await client.get_columns(handle)
    await client.get_columns(handle[[3, 1]])
    await client.clear(handle)


async def errors_soon(client: tq.AsyncClient) -> None:
    handle = await client.put(columns(), partition="soon")
    got = await client.get(handle)
    with pytest.raises(errors.TransferQueueError):
        await client.get_columns(handle, fields=["missing"], timeout_s=0)
    with pytest.raises(errors.StorageFull):
        await client.put({"x": torch.zeros(1, 32 << 20)}, partition="soon", timeout_s=0.1)
    await client.clear(handle)
    del got


async def gets_that_are_cancelled(client: tq.AsyncClient) -> None:
    handle = await client.put(columns(), partition="soon")
    for after_s in (0.0, 0.001, 0.003):
        task = asyncio.create_task(client.get(handle))
        await asyncio.sleep(after_s)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await client.clear(handle)


async def streams(client: tq.AsyncClient) -> None:
    """The last claim of each ends by its deadline, or is still asked for when the stream ends."""
    await client.create_partition("streamed", tasks=["actor"])
    for prefetch in (0, 2):
        handle = await client.put(columns(), partition="streamed")
        claims = client.stream(
            task="actor", fields=["dense"], n=ROWS // 2, partition="streamed", prefetch=prefetch
        )
        for _ in range(2):
            claim = await anext(claims)
            await claim.get()
            await claim.ack()
        await claims.aclose()  # type: ignore[attr-defined]
        late = client.stream(
            task="actor", fields=["dense"], n=1, partition="streamed", timeout_s=0.05,
            prefetch=prefetch,
        )  # fmt: skip
        with pytest.raises(errors.DeadlineExceeded):
            await anext(late)
        await client.clear(handle)


SOON = [put_and_get_soon, errors_soon, gets_that_are_cancelled, streams]


@pytest.mark.parametrize("scene", SOON, ids=lambda scene: scene.__name__)
async def test_nothing_of_ours_is_in_a_cycle_after_what_was_awaited(
    service: Service, scene: Callable[[tq.AsyncClient], Awaitable[None]]
) -> None:
    async with await tq.connect_async(service.address) as client:
        await scene(client)
        await expect_nothing_kept_async(client, lambda: scene(client))


# -- devices ------------------------------------------------------------------------------------


def test_nothing_of_device_memory_is_kept(tmp_path: Path) -> None:
    machine = FakeMachine.create(tmp_path, num_gpus=2, memory_bytes=64 << 20)

    def scene() -> None:
        handle = client.put(fake_gpus.columns())
        client.get(handle)
        client.get(handle[[3, 1]])
        with client.borrow(handle, fields=["dense"]):
            pass
        gpu = fake_gpus.gpu_of(client)
        client.put({"more": fake_gpus.put_on(gpu, torch.rand(64, 4096))}, handle=handle)
        client.view(handle).to(gpu.name).batch["dense"]
        with pytest.raises(errors.TransferQueueError):
            client.get(handle, fields=["missing"], timeout_s=0)
        client.clear(handle)

    with (
        fake_gpus.serve(machine) as service,
        tq.connect(service.address, device=machine.name_of(machine.uuids[0])) as client,
    ):
        scene()
        expect_nothing_kept(client, scene)
