"""Borrowed memory, host copies, views, dispatched reads and weights, on hardware."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.gpu.needs_cuda import needs_cuda
from tests.gpu.tables import serve_on
from tests.waiting import wait_until
from transferqueue.devices.cuda_driver import cuda_driver
from transferqueue.errors import OwnerLost
from workers import Dispatch, LocalWorkerGroup, Worker, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.service.embedded import Service

pytestmark = [pytest.mark.gpu, needs_cuda]

BUDGET_BYTES = 256 << 20


def first() -> str:
    return f"cuda:{cuda_driver().uuids()[0]}"


@pytest.fixture
def service() -> Iterator[Service]:
    with serve_on(first(), BUDGET_BYTES) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with tq.connect(service.address, device="cuda:0") as client:
        yield client


def used_bytes(client: Client) -> int:
    return sum(shard["used_bytes"] for shard in client.status()["shards"])


def test_what_is_borrowed_is_read_by_kernels_and_takes_no_memory(client: Client) -> None:
    put = torch.randn(1024, 8192, device="cuda:0")
    handle = client.put({"x": put})
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    borrow = client.borrow(handle)
    with borrow as td:
        assert borrow.fields == ["x"]
        assert td["x"].device == torch.device("cuda:0")
        assert torch.cuda.memory_allocated() - before < put.nbytes // 2
        total = td["x"].double().sum()
        client.clear(handle)
    assert torch.equal(total, put.double().sum())
    wait_until(lambda: used_bytes(client) == 0)


READER = """
import sys, time
import transferqueue as tq
client = tq.connect(sys.argv[1], device="cuda:0")
with client.borrow(tq.BatchHandle.from_bytes(bytes.fromhex(sys.argv[2]))) as td:
    print(int(td["x"].sum()), flush=True)
    time.sleep(60)
"""


def test_what_a_killed_reader_had_borrowed_is_freed(service: Service, client: Client) -> None:
    handle = client.put({"x": torch.ones(64, 4096, device="cuda:0")})
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, service.address, handle.to_bytes().hex()],
        stdout=subprocess.PIPE,
        text=True,
    )
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == f"{64 * 4096}\n"
        client.clear(handle)
        assert used_bytes(client) > 0
        reader.send_signal(signal.SIGKILL)
    wait_until(lambda: used_bytes(client) == 0, timeout_s=30.0)


def test_an_owner_that_ends_is_lost_and_its_host_copies_serve() -> None:
    put = torch.randn(256, 4096, device="cuda:0")
    with (
        tq.serve(
            backend="device",
            backend_options={"device": first(), "host_copies": True},
            budget_bytes=BUDGET_BYTES,
        ) as service,
        tq.connect(service.address, device="cuda:0") as client,
    ):
        handle = client.put({"x": put})
        pid = client.status()["shards"][0]["pid"]
        with pytest.raises(OwnerLost), client.borrow(handle):
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        assert torch.equal(client.get(handle, timeout_s=60.0)["x"], put)


def test_a_view_fetches_straight_to_the_gpu(client: Client) -> None:
    put = torch.randn(64, 4096)
    view = client.view(client.put({"x": put})).to("cuda")
    assert view.batch["x"].device.type == "cuda"
    assert torch.equal(view.batch["x"].cpu(), put)


def test_a_dispatched_method_reads_on_to_the_gpu_and_writes_from_there(
    service: Service, client: Client
) -> None:
    class Critic(Worker):
        @register(Dispatch.HANDLE, reads=[tq.on("cuda", "x")], writes=["y"])
        def double(self, data: Any) -> dict[str, Any]:
            assert data.batch["x"].device.type == "cuda"
            return {"y": 2 * data.batch["x"]}

    put = torch.randn(64, 4096, device="cuda:0")
    batch = client.view(client.put({"x": put}))
    with LocalWorkerGroup(Critic, 2, service=service) as group:
        batch = batch.union(group.double(batch))
    assert torch.equal(batch.batch["y"].cpu(), 2 * put.cpu())


def test_weights_of_a_gpu_are_fetched_on_the_gpu(client: Client) -> None:
    state = torch.nn.Linear(512, 512, device="cuda:0").state_dict()
    client.publish("policy", state, version=1)
    for name, value in client.fetch("policy", device="cuda:0").state_dict.items():
        assert value.device.type == "cuda"
        assert torch.equal(value, state[name])
