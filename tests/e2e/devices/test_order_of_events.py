"""The order of events between a client's device and its shard, on a GPU that is stepped: nothing is
committed, given back or returned before the device has made the copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import backend_sum, gpu_of, put_on
from tests.stepping import Work, returned_by
from tests.waiting import wait_until
from transferqueue.devices.fake_gpu import FakeGpu, FakeStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.devices.fake_machine import FakeMachine
    from transferqueue.service.embedded import Service

FIELDS = [f"field {number}" for number in range(12)]


@pytest.fixture(scope="module")
def hosted() -> Iterator[Service]:
    """Its shards keep their bytes in memory of the host."""
    with tq.serve(shards=1, budget_bytes=16 << 20) as service:
        yield service


@pytest.fixture
def plain(service: Service) -> Iterator[Client]:
    """Another client, of the host."""
    with tq.connect(service.address) as plain:
        yield plain


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[FakeStream]:
    """All that there are in this process."""
    return returned_by("stream", FakeGpu, monkeypatch)


@pytest.fixture
def client(service: Service, machine: FakeMachine, streams: list[FakeStream]) -> Iterator[Client]:
    with tq.connect(service.address, device=machine.name_of(machine.uuids[0])) as client:
        yield client
        client.clear(partition="default")
        assert streams


@pytest.fixture
def stepped(client: Client) -> Iterator[FakeGpu]:
    """The GPU of the client."""
    gpu = gpu_of(client)
    gpu.stepped = True
    yield gpu
    gpu.stepped = False
    gpu.torch = None


def batch() -> dict[str, torch.Tensor]:
    return {name: torch.randn(64, 500) for name in FIELDS}


def expect_same(got: Any, put: dict[str, torch.Tensor]) -> None:
    for name, value in put.items():
        assert torch.equal(got[name], value), name


def expect_to_wait(streams: list[FakeStream]) -> None:
    """They have been given something, and do not go on by themselves."""
    wait_until(lambda: any(stream.num_left for stream in streams))
    for _ in range(20):
        assert not any(stream.step() for stream in streams), "a copy came before torch was done"


def test_a_get_gives_back_what_was_lent_when_its_copies_are_made(
    client: Client, plain: Client, stepped: FakeGpu, streams: list[FakeStream]
) -> None:
    put = batch()
    handle = plain.put(put)
    work = Work(lambda: client.get_columns(handle))
    steps = 0
    for _ in work.step_by_step(streams):
        steps += 1
        assert not work.is_over
        assert backend_sum(plain, "lent_bytes") >= sum(value.nbytes for value in put.values())
        assert stepped.counters.events_live <= 6, "an event a tensor"
    assert steps >= len(FIELDS)
    expect_same(work.result(), put)
    assert backend_sum(plain, "lent_bytes") == 0


def test_a_put_is_committed_when_its_copies_are_made(
    client: Client, plain: Client, stepped: FakeGpu, streams: list[FakeStream]
) -> None:
    put = batch()
    there = {name: put_on(stepped, value) for name, value in put.items()}
    work = Work(lambda: client.put(there))
    steps = 0
    for _ in work.step_by_step(streams):
        steps += 1
        assert not work.is_over
        assert len(plain.select("default")) == 0
        assert stepped.counters.events_live <= 6, "an event a tensor"
    assert steps >= len(FIELDS)
    handle = work.result()
    assert isinstance(handle, tq.BatchHandle)
    expect_same(plain.get(handle), put)


def test_a_put_copies_a_tensor_when_torch_has_made_it(
    client: Client, plain: Client, stepped: FakeGpu, streams: list[FakeStream]
) -> None:
    """Which is at work on it on a stream of its own."""
    made = torch.randn(64, 500)
    there = put_on(stepped, torch.zeros(64, 500))
    stepped.torch = stepped.stream()
    (block,) = (stepped.tensor_block(there),)
    assert block is not None
    stepped.torch.copy_in(block, 0, made.numpy().data)
    work = Work(lambda: client.put({"x": there}))
    expect_to_wait([stream for stream in streams if stream is not stepped.torch])
    for _ in work.step_by_step(streams):
        pass
    handle = work.result()
    assert isinstance(handle, tq.BatchHandle)
    assert torch.equal(plain.get(handle)["x"], made)


@pytest.mark.parametrize("rows", [range(64), [5, 5, 3, 5]])
def test_a_get_copies_to_memory_when_torch_is_done_with_it(
    client: Client,
    plain: Client,
    stepped: FakeGpu,
    streams: list[FakeStream],
    rows: Any,
) -> None:
    """Which may have given it out again while a kernel still writes there."""
    put = torch.randn(64, 4000)
    handle = plain.put({"x": put})[np.array(rows)]
    stepped.torch = stepped.stream()
    late, _ = stepped.new_tensor(4096)
    block = stepped.tensor_block(late)
    assert block is not None
    stepped.torch.copy_in(block, 0, np.full(4096, 7, np.uint8).data)
    work = Work(lambda: client.get_columns(handle)["x"])
    expect_to_wait([stream for stream in streams if stream is not stepped.torch])
    for _ in work.step_by_step(streams):
        pass
    got = work.result()
    assert isinstance(got, torch.Tensor)
    assert torch.equal(got, put[list(rows)])


def test_page_locked_memory_is_committed_when_the_device_has_written_it(
    hosted: Service, machine: FakeMachine, streams: list[FakeStream]
) -> None:
    put = torch.randn(64, 4000)
    with (
        tq.connect(hosted.address, device=machine.name_of(machine.uuids[0])) as client,
        tq.connect(hosted.address) as plain,
    ):
        gpu = gpu_of(client)
        there = put_on(gpu, put)
        gpu.stepped = True
        work = Work(lambda: client.put({"x": there}))
        for _ in work.step_by_step(streams):
            assert not work.is_over
            assert len(plain.select("default")) == 0
        handle = work.result()
        assert isinstance(handle, tq.BatchHandle)
        assert torch.equal(plain.get(handle)["x"], put)
        gpu.stepped = False
        assert gpu.counters.bytes_pinned == put.nbytes


def test_a_ring_is_filled_again_when_the_device_has_read_it(
    hosted: Service, machine: FakeMachine, streams: list[FakeStream]
) -> None:
    """What comes over a socket: more chunks than the ring has."""
    with tq.connect(hosted.address) as plain:
        put = torch.randn(64, 30_000)
        handle = plain.put({"x": put})
        with tq.connect(
            hosted.address, device=machine.name_of(machine.uuids[0]), transport="ipc"
        ) as client:
            gpu = gpu_of(client)
            gpu.stepped = True
            work = Work(lambda: client.get(handle)["x"])
            for _ in work.step_by_step(streams):
                assert not work.is_over
            got = work.result()
            gpu.stepped = False
            assert isinstance(got, torch.Tensor)
            assert torch.equal(got, put)
            plain.clear(handle)


def test_rows_that_were_put_in_order_are_right_when_the_get_returns(
    client: Client, plain: Client, stepped: FakeGpu, streams: list[FakeStream]
) -> None:
    """For whichever stream goes on with them: torch has made them on another."""
    put = torch.randn(64, 4000)
    handle = plain.put({"x": put})[np.array([5, 5, 3, 5])]
    stepped.torch = stepped.stream()
    work = Work(lambda: client.get_columns(handle)["x"])
    others = [stream for stream in streams if stream is not stepped.torch]
    wait_until(lambda: stepped.torch is not None and stepped.torch.num_left)
    assert stepped.torch.step()  # the memory may be copied to
    wait_until(lambda: any(stream.num_left for stream in others))
    while any(stream.num_left for stream in others):
        stepped_one = [stream.step() for stream in others]
        assert any(stepped_one)
    wait_until(lambda: work.is_over or (stepped.torch is not None and stepped.torch.num_left))
    assert not work.is_over, "torch is still at work on them"
    assert stepped.torch.step()
    got = work.result()
    assert isinstance(got, torch.Tensor)
    assert torch.equal(got, put[[5, 5, 3, 5]])
