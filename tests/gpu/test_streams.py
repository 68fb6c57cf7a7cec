"""Tensors of a GPU over sockets, inside objects, and put while the GPU is at work, on hardware."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.gpu.needs_cuda import needs_cuda
from tests.gpu.tables import serve_on
from transferqueue.devices.cuda_driver import cuda_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.service.embedded import Service

pytestmark = [pytest.mark.gpu, needs_cuda]

BUDGET_BYTES = 512 << 20


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Its shards keep their bytes in memory of the host, and are reached by sockets."""
    with tq.serve(
        shards=2,
        budget_bytes=BUDGET_BYTES,
        host="127.0.0.1",
        encrypt=False,
        transports={"sockets": {}},
    ) as service:
        yield service


@pytest.mark.parametrize("transport", ["tcp", "sockets"])
def test_tensors_leave_and_land_chunk_by_chunk(service: Service, transport: str) -> None:
    put = {
        "x": torch.randn(1024, 8192, device="cuda:0"),
        "half": torch.randn(1024, 700, 2, device="cuda:0").bfloat16(),
        "host": torch.randn(1024, 64),
    }
    with tq.connect(service.address, device="cuda:0", transport=transport) as client:
        assert {link["rung"] for link in client.links()} == {"pinned-stream"}
        handle = client.put(put)
        rows = torch.randperm(1024)
        for got, wanted in (
            (client.get_columns(handle), put),
            (client.get_columns(handle[rows.numpy()]), {n: v[rows] for n, v in put.items()}),
        ):
            for name, value in wanted.items():
                assert got[name].device.type == "cuda"
                assert torch.equal(got[name].cpu(), value.cpu()), name
        client.clear(handle)


def busy(turns: int = 300) -> torch.Tensor:
    """Given to the GPU, and not done for a good while."""
    made = torch.eye(4096, device="cuda:0")
    for _ in range(turns):
        made = made @ made
    return made


@pytest.mark.parametrize("transport", ["auto", "tcp", "sockets"])
async def test_the_event_loop_goes_on_while_the_gpu_is_at_work(
    service: Service, transport: str
) -> None:
    busy(1)  # what a first call takes
    async with await tq.connect_async(
        service.address, device="cuda:0", transport=transport
    ) as client:
        made = busy()
        done = torch.cuda.Event()
        done.record()
        task = asyncio.ensure_future(client.put({"x": made}))
        ticks = 0
        while not done.query():
            assert not task.done(), "it did not wait for the GPU"
            await asyncio.sleep(0.001)
            ticks += 1
        assert ticks > 10
        handle = await task
        assert torch.equal((await client.get(handle))["x"].cpu(), torch.eye(4096))
        await client.clear(handle)


def test_tensors_inside_objects_come_by_page_locked_memory(service: Service) -> None:
    put = [{"pixels": torch.randn(n, 3, device="cuda:0"), "n": n} for n in (0, 5, 100_000)]
    with tq.connect(service.address, device="cuda:0") as client:
        handle = client.put({"media": put})
        for found, wanted in zip(client.get_columns(handle)["media"], put, strict=True):
            assert found["n"] == wanted["n"]
            assert torch.equal(found["pixels"], wanted["pixels"].cpu())
        brought = sum(row["pixels"].nbytes for row in put)
        assert client.stats()["media"]["brought_bytes"] == brought
        client.clear(handle)


def test_tensors_of_the_host_go_to_a_shard_on_the_gpu_without_a_socket() -> None:
    name = f"cuda:{cuda_driver().uuids()[0]}"
    put = torch.randn(256, 4096)
    with (
        serve_on(name, BUDGET_BYTES) as service,
        tq.connect(service.address, device="cuda:0") as client,
    ):
        handle = client.put({"x": put})
        assert client.wire_bytes()["sent"] < put.nbytes // 10
        assert torch.equal(client.get(handle)["x"].cpu(), put)
