"""Views, dispatched methods and weights on a fake GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import columns, expect_same, on_gpu, tensor_bytes
from transferqueue.devices.fake_gpu import FakeGpu
from workers import Dispatch, LocalWorkerGroup, Worker, register

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.devices.fake_machine import FakeMachine
    from transferqueue.service.embedded import Service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    """Its gets land on the host unless they say otherwise."""
    with tq.connect(service.address) as client:
        yield client


@pytest.fixture
def gpu(client: Client, machine: FakeMachine) -> FakeGpu:
    """That of the shards, as the client uses it."""
    side = client._ops.data.devices.side(machine.name_of(machine.uuids[0]))
    assert side is not None
    assert isinstance(side.device, FakeGpu)
    return side.device


def test_a_view_fetches_straight_to_its_device(client: Client, gpu: FakeGpu) -> None:
    put = columns()
    view = client.view(client.put(put)).to(gpu.name)
    expect_same(view.batch, {name: put[name] for name in ("dense", "half")})
    assert gpu.holds(view.batch["dense"])
    assert gpu.holds(view[3:9].batch["half"])
    assert gpu.counters.bytes_across == put["dense"].nbytes + put["half"].nbytes


def test_what_a_view_computes_on_its_device_is_pushed_from_there(
    client: Client, gpu: FakeGpu
) -> None:
    view = client.view(client.put({"x": torch.randn(64, 1000)})).to(gpu.name)
    memory, _ = gpu.new_tensor(view.batch["x"].nbytes)
    doubled = memory.view(torch.float32).view(64, 1000)
    torch.mul(view.batch["x"], 2, out=doubled)
    before = gpu.counters.bytes_across
    view.batch["y"] = doubled
    handle = view.push()
    assert gpu.counters.bytes_across - before == doubled.nbytes
    assert torch.equal(client.get(handle)["y"], 2 * client.get(handle)["x"])


def worker_on(name: str) -> type[Worker]:
    class Critic(Worker):
        @register(Dispatch.HANDLE, reads=[tq.on(name, "x"), "n"], writes=["y"])
        def double(self, data: Any) -> dict[str, Any]:
            side = data.connection.client()._ops.data.devices.side(name)
            assert side.device.holds(data.batch["x"])
            assert not side.device.holds(data.batch["n"])
            return {"y": 2 * data.batch["x"] + data.batch["n"][:, None]}

    return Critic


def test_a_dispatched_method_reads_fields_on_to_a_device(
    service: Service, client: Client, gpu: FakeGpu
) -> None:
    put = {"x": torch.randn(64, 1000), "n": torch.arange(64)}
    batch = client.view(client.put(put))
    with LocalWorkerGroup(worker_on(gpu.name), 2, service=service) as group:
        batch = batch.union(group.double(batch))
        assert "undeclared" not in str(group.report()).replace("undeclared_bytes", "")
    assert torch.equal(batch.batch["y"], 2 * put["x"] + put["n"][:, None])


def test_weights_that_lie_on_a_device_never_leave_it(client: Client, gpu: FakeGpu) -> None:
    state = {"layer.weight": torch.randn(200, 300), "layer.bias": torch.randn(300)}
    client.publish("policy", on_gpu(gpu, state), version=1)
    assert gpu.counters.bytes_across == tensor_bytes(state)
    found = client.fetch("policy", device=gpu.name)
    assert found.version == 1
    for name, value in state.items():
        assert torch.equal(found.state_dict[name], value)
        assert gpu.holds(found.state_dict[name])
    assert gpu.counters.bytes_across == 2 * tensor_bytes(state)
    on_host = client.fetch("policy").state_dict["layer.weight"]
    assert torch.equal(on_host, state["layer.weight"])
    assert not gpu.holds(on_host)
