"""The event loop goes on while a device is at work: real processes, a fake GPU that is held."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import BUDGET_BYTES, put_on, serve
from transferqueue.client import data_operations, deadline
from transferqueue.client.batch import encode_batch
from transferqueue.client.landings import DeviceTarget
from transferqueue.devices.fake_gpu import FakeGpu
from transferqueue.devices.staging import NUM_CHUNKS
from transferqueue.errors import DeviceStuck
from transferqueue.wire.chunks import WINDOW_CHUNKS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from transferqueue.client.async_client import AsyncClient
    from transferqueue.devices.fake_machine import FakeMachine
    from transferqueue.service.embedded import Service

SIZES = {"inline": 100, "large": 100_000}
"""Of a row, in bytes: a put of the one goes with its request, of the other by all other ways."""


@pytest.fixture(scope="module")
def services(machine: FakeMachine) -> Iterator[dict[str, Service]]:
    """Whose bytes are on the GPU, and in memory of the host."""
    with (
        serve(machine) as on_device,
        tq.serve(
            shards=2,
            budget_bytes=4 * BUDGET_BYTES,
            host="127.0.0.1",
            encrypt=False,
            transports={"sockets": {}},
        ) as on_host,
    ):
        yield {"device": on_device, "host": on_host}


@asynccontextmanager
async def connected(
    services: dict[str, Service], machine: FakeMachine, way: str
) -> AsyncIterator[tuple[AsyncClient, FakeGpu]]:
    where, _, transport = way.partition(" ")
    async with await tq.connect_async(
        services[where].address,
        device=machine.name_of(machine.uuids[0]),
        transport=transport or "auto",
    ) as client:
        side = client._ops.data.devices.side()
        assert side is not None
        assert isinstance(side.device, FakeGpu)
        yield client, side.device
        await client.clear(partition="default")


async def while_held(gpu: FakeGpu, operation: Awaitable[Any]) -> Any:
    """What the operation comes to, which has begun and has not ended while the device stood still,
    though everything else on the loop went on."""
    with gpu.held():
        task = asyncio.ensure_future(operation)
        for _ in range(10):
            await asyncio.sleep(0.005)
        assert not task.done(), "it did not wait for the device"
    return await task


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("way", ["device", "host", "host tcp", "host sockets"])
async def test_a_put_and_a_get_that_wait_for_a_device_hold_up_nobody_else(
    services: dict[str, Service], machine: FakeMachine, way: str, size: int
) -> None:
    async with connected(services, machine, way) as (client, gpu):
        data = torch.randint(0, 255, (64, size), dtype=torch.uint8)
        handle = await while_held(gpu, client.put({"x": put_on(gpu, data)}))
        got = await while_held(gpu, client.get(handle))
        assert torch.equal(got["x"], data)
        assert gpu.holds(got["x"])


async def test_rows_in_many_pieces_are_waited_for_in_the_same_way(
    services: dict[str, Service], machine: FakeMachine
) -> None:
    async with connected(services, machine, "host tcp") as (client, gpu):
        both = [await client.put({"n": torch.arange(3000)}) for _ in range(2)]
        order = np.arange(6000).reshape(2, 3000).T.reshape(-1)
        handle = tq.BatchHandle.concat(both).reorder(order)
        data = torch.randint(0, 255, (6000, 1000), dtype=torch.uint8)
        handle = await while_held(gpu, client.put({"x": put_on(gpu, data)}, handle=handle))
        got = await while_held(gpu, client.get(handle, fields=["x"]))
        assert torch.equal(got["x"], data)


async def test_what_must_be_read_before_anything_is_sent_is_waited_for_in_the_same_way(
    services: dict[str, Service], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long rows are, and tags: as a driver does, reading them waits for all that torch has the
    device do."""
    encoded: list[bool] = []

    def encode(*arguments: Any, **options: Any) -> Any:
        encoded.append(gpu.goes_on.is_set())
        return encode_batch(*arguments, **options)

    monkeypatch.setattr(data_operations, "encode_batch", encode)
    async with connected(services, machine, "host") as (client, gpu):
        gpu.torch = gpu.stream()
        offsets = put_on(gpu, torch.tensor([0, 3, 3, 10]))
        values = put_on(gpu, torch.arange(10.0))
        ragged = torch.nested.nested_tensor_from_jagged(values, offsets)
        handle = await while_held(gpu, client.put({"x": ragged}))
        tags = {"version": put_on(gpu, torch.tensor([3, 1, 2]))}
        await while_held(gpu, client.put({"y": torch.zeros(3)}, tags=tags))
        assert encoded == [True, True]
        got = await client.get_columns(handle)
        assert [len(row) for row in got["x"].unbind()] == [3, 0, 7]


async def test_no_more_comes_than_the_ring_has_room_for_while_a_device_is_at_work(
    services: dict[str, Service], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[int] = []
    take = DeviceTarget.take

    def counted(target: DeviceTarget, offset: int, data: memoryview) -> None:
        came.append(offset)
        take(target, offset, data)

    monkeypatch.setattr(DeviceTarget, "take", counted)
    async with connected(services, machine, "host tcp") as (client, gpu):
        data = torch.randint(0, 255, (64, 400_000), dtype=torch.uint8)
        rows = await client.put({"n": torch.arange(64)})
        handle = await client.put({"x": data}, handle=rows)
        with gpu.held():
            task = asyncio.ensure_future(client.get(handle, fields=["x"]))
            async with asyncio.timeout(20):
                while len(came) < NUM_CHUNKS + 1:
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
            assert len(came) <= NUM_CHUNKS + WINDOW_CHUNKS < data.nbytes >> 20
        assert torch.equal((await task)["x"], data)


@pytest.mark.parametrize("way", ["device", "host tcp"])
async def test_a_put_that_is_cancelled_meanwhile_leaves_nothing(
    services: dict[str, Service], machine: FakeMachine, way: str
) -> None:
    async with connected(services, machine, way) as (client, gpu):
        data = put_on(gpu, torch.ones(64, 100_000, dtype=torch.uint8))
        with gpu.held():
            task = asyncio.ensure_future(client.put({"x": data}))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await task
        status = await client.status()
        assert [shard["used_bytes"] for shard in status["shards"]] == [0, 0]
        await client.put({"x": data})


async def test_a_device_that_stands_still_for_too_long_is_an_error(
    services: dict[str, Service], machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "LAST_STEP_S", 0.5)
    async with connected(services, machine, "host tcp") as (client, gpu):
        data = put_on(gpu, torch.ones(64, 100_000, dtype=torch.uint8))
        handle = await client.put({"x": data})
        with gpu.held():
            puts = client.put({"x": data}, timeout_s=0.2)
            gets = client.get(handle, timeout_s=0.2)
            errors = await asyncio.gather(puts, gets, return_exceptions=True)
        assert list(map(type, errors)) == [DeviceStuck, DeviceStuck]
        assert bool((await client.get(handle))["x"].all())
