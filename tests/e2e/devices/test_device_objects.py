"""Tensors of a GPU inside the objects of a column: real processes, a fake GPU."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import BUDGET_BYTES, gpu_of, put_on
from transferqueue.devices.fake_gpu import FakeGpu
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.errors import DeviceStuck, UnsupportedObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.service.embedded import Service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tq.serve(budget_bytes=2 * BUDGET_BYTES) as service:
        yield service


def on(gpu: FakeGpu, tensor: torch.Tensor) -> torch.Tensor:
    """There, if it has any bytes."""
    return put_on(gpu, tensor) if tensor.numel() else tensor


def rows(gpu: FakeGpu | None, count: int = 16) -> list[dict[str, Any]]:
    """Objects with tensors of the host and of the GPU, large, small and empty."""
    random = torch.Generator().manual_seed(3)
    found = []
    for row in range(count):
        pixels = torch.randn(row % 3 * 40_000, 3, generator=random)
        here = {"pixels": pixels, "turned": torch.arange(12).reshape(3, 4).T}
        there = here if gpu is None else {name: on(gpu, one) for name, one in here.items()}
        found.append({**there, "mask": torch.ones(5), "note": f"row {row}", "n": np.arange(row)})
    return found


def expect_same_rows(got: np.ndarray, put: list[dict[str, Any]]) -> None:
    for found, wanted in zip(got, put, strict=True):
        assert found.keys() == wanted.keys()
        assert found["note"] == wanted["note"]
        assert np.array_equal(found["n"], wanted["n"])
        for name in ("pixels", "turned", "mask"):
            assert torch.equal(found[name], wanted[name])
            assert found[name].shape == wanted[name].shape


def test_they_come_by_page_locked_memory_and_are_counted(client: Client) -> None:
    gpu, put = gpu_of(client), rows(None)
    handle = client.put({"media": rows(gpu)})
    expect_same_rows(client.get_columns(handle)["media"], put)
    nbytes = sum(row[name].nbytes for row in put for name in ("pixels", "turned"))
    assert client.stats()["media"]["brought_bytes"] == nbytes
    assert (gpu.counters.bytes_pinned, gpu.counters.bytes_pageable) == (nbytes, 0)


def test_a_list_of_tensors_is_no_other(client: Client) -> None:
    gpu, put = gpu_of(client), [torch.full((n, 3), float(n)) for n in range(20)]
    there = [on(gpu, one) for one in put]
    got = client.get_columns(client.put({"x": there, "y": put}))
    for name in ("x", "y"):
        assert all(map(torch.equal, got[name], put))
    assert client.stats()["x"]["brought_bytes"] == sum(one.nbytes for one in put)
    assert client.stats()["y"]["brought_bytes"] == 0


def test_what_cannot_be_carried_is_refused_as_ever(client: Client) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for bad in (nested, torch.eye(3).to_sparse()):
        with pytest.raises(UnsupportedObject, match="row 1"):
            client.put({"x": [{"t": put_on(gpu_of(client), torch.ones(3))}, {"t": bad}]})
        with pytest.raises(UnsupportedObject, match="row 0"):
            client.put({"x": [bad, bad]})


def test_a_device_that_is_stuck_is_an_error_and_nothing_is_stored(
    client: Client, machine: FakeMachine
) -> None:
    before = client.status()["shards"][0]["used_bytes"]
    there = rows(gpu_of(client))
    with machine.fault(Fault.STUCK), pytest.raises(DeviceStuck):
        client.put({"media": there})
    assert client.status()["shards"][0]["used_bytes"] == before


async def test_they_are_waited_for_beside_the_event_loop(
    service: Service, machine: FakeMachine
) -> None:
    device = machine.name_of(machine.uuids[0])
    async with await tq.connect_async(service.address, device=device) as client:
        side = client._ops.data.devices.side()
        assert side is not None
        gpu = side.device
        assert isinstance(gpu, FakeGpu)
        there = rows(gpu)
        with gpu.held():
            task = asyncio.ensure_future(client.put({"media": there}))
            for _ in range(10):
                await asyncio.sleep(0.005)
            assert not task.done(), "it did not wait for the device"
        got = await client.get_columns(await task)
        expect_same_rows(got["media"], rows(None))
