"""Tensors of a GPU over sockets: device copies and the wire at the same time, by the order in which
things happen on a fake GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.cycles import left_to_the_collector
from tests.e2e.fake_gpus import columns, expect_same, gpu_of, on_gpu, put_on, tensor_bytes
from transferqueue.client.landings import DeviceTarget
from transferqueue.client.part_puts import ChunkedColumns
from transferqueue.devices.fake_gpu import FakeStream
from transferqueue.devices.staging import CHUNK_BYTES, NUM_CHUNKS
from transferqueue.transports.sockets import SocketClientEnd
from transferqueue.wire.chunks import WINDOW_CHUNKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.devices.fake_machine import FakeMachine
    from transferqueue.service.embedded import Service

COUNT = 20
"""Chunks of a column: more than are ever under way."""

LARGE = torch.arange(COUNT * CHUNK_BYTES // 8).reshape(64, -1)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tq.serve(
        shards=2,
        budget_bytes=64 << 20,
        host="127.0.0.1",
        encrypt=False,
        transports={"sockets": {}},
    ) as service:
        yield service


@pytest.fixture(params=["tcp", "sockets"])
def client(
    request: pytest.FixtureRequest, service: Service, machine: FakeMachine
) -> Iterator[Client]:
    """By chunks over the socket of the requests, and by a transport."""
    name = machine.name_of(machine.uuids[0])
    with tq.connect(service.address, device=name, transport=request.param) as client:
        yield client
        client.clear(partition="default")


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``in`` and ``out``: a copy was given to the device; ``copied``: it has made one; ``came`` and
    ``goes``: bytes over the wire."""
    events: list[str] = []
    copy_in, copy_out, copy = FakeStream.copy_in, FakeStream.copy_out, FakeStream._copy_host
    take, calls = DeviceTarget.take, ChunkedColumns._calls
    read, write = SocketClientEnd.read, SocketClientEnd.write

    def noted(event: str, do: Any) -> Any:
        def noting(*arguments: Any, **options: Any) -> Any:
            events.append(event)
            return do(*arguments, **options)

        return noting

    def noted_calls(chunked: ChunkedColumns, put_id: int) -> Iterator[Any]:
        for call in calls(chunked, put_id):
            events.extend(["goes"] if call is not None else [])
            yield call

    monkeypatch.setattr(FakeStream, "copy_in", noted("in", copy_in))
    monkeypatch.setattr(FakeStream, "copy_out", noted("out", copy_out))
    monkeypatch.setattr(FakeStream, "_copy_host", noted("copied", copy))
    monkeypatch.setattr(DeviceTarget, "take", noted("came", take))
    monkeypatch.setattr(ChunkedColumns, "_calls", noted_calls)
    monkeypatch.setattr(SocketClientEnd, "read", noted("came", read))
    monkeypatch.setattr(SocketClientEnd, "write", noted("goes", write))
    return events


def so_far(events: list[str], until: str) -> Iterator[dict[str, int]]:
    """How often each thing had happened each time that ``until`` did."""
    counts = dict.fromkeys(("in", "out", "copied", "came", "goes"), 0)
    for event in events:
        counts[event] += 1
        if event == until:
            yield dict(counts)


def stored(client: Client, value: torch.Tensor) -> tq.BatchHandle:
    """On one shard."""
    rows = client.put({"n": torch.arange(len(value))})
    return client.put({"x": value}, handle=rows)


def test_chunks_land_on_the_device_while_the_next_ones_are_on_the_wire(
    client: Client, happened: list[str]
) -> None:
    gpu, handle = gpu_of(client), stored(client, LARGE)
    happened.clear()
    got = client.get(handle, fields=["x"])["x"]
    assert torch.equal(got, LARGE)
    assert gpu.holds(got)
    counts = list(so_far(happened, "came"))
    assert len(counts) == COUNT
    ahead = NUM_CHUNKS + WINDOW_CHUNKS
    for number, count in enumerate(counts):
        assert count["copied"] >= number - ahead, "chunks wait in memory of the host"
    assert counts[-1]["in"] >= COUNT - ahead
    assert (gpu.counters.bytes_pinned, gpu.counters.bytes_pageable) == (LARGE.nbytes, 0)


def test_the_device_copies_the_next_chunks_while_one_is_on_the_wire(
    client: Client, happened: list[str]
) -> None:
    gpu = gpu_of(client)
    there = put_on(gpu, LARGE)
    happened.clear()
    handle = stored(client, there)
    counts = [count for count in so_far(happened, "goes") if count["out"]]
    assert len(counts) == COUNT
    for number, count in enumerate(counts):
        assert count["out"] >= min(COUNT, number + NUM_CHUNKS), "the next one was not given yet"
        assert count["copied"] > number, "it went before it was there"
    assert (gpu.counters.bytes_pinned, gpu.counters.bytes_pageable) == (LARGE.nbytes, 0)
    assert torch.equal(client.get(handle, fields=["x"], device="cpu")["x"], LARGE)


@pytest.mark.parametrize("rows", [range(64), range(63, -1, -1), [5, 5, 63, 0, 5], range(3, 60, 2)])
def test_every_layout_comes_back_as_it_went(client: Client, rows: Any) -> None:
    put, gpu, rows = columns(), gpu_of(client), list(rows)
    del put["text"]
    big = {**put, "large": torch.randn(64, 9000)}
    handle = client.put(on_gpu(gpu, big))
    got = client.get_columns(handle[np.array(rows)])
    expect_same(got, big, rows)
    assert all(gpu.holds(got[name]) for name in ("dense", "half", "large"))
    assert gpu.counters.bytes_pageable == 0
    expect_same(client.get_columns(handle, device="cpu"), big)


def test_rows_of_several_shards_each_land_in_their_places(
    client: Client, happened: list[str]
) -> None:
    puts = [torch.randn(8, 50_000) for _ in range(4)]
    handle = tq.BatchHandle.concat([stored(client, put) for put in puts])
    for rows in (np.arange(32), np.random.default_rng(0).permutation(32)):
        happened.clear()
        got = client.get(handle.reorder(rows), fields=["x"])["x"]
        assert torch.equal(got, torch.cat(puts)[rows])
        assert happened.count("came") >= 6, "it came by way of the host"


def test_rows_in_many_pieces_or_not_all_there_land_as_they_come(
    client: Client, happened: list[str]
) -> None:
    both = [stored(client, torch.arange(6000 * 32).reshape(6000, 32)) for _ in range(2)]
    handle = tq.BatchHandle.concat(both)
    in_turn = np.arange(12_000).reshape(2, 6000).T.reshape(-1)
    happened.clear()
    got = client.get(handle.reorder(in_turn), fields=["x"])["x"]
    assert happened.count("came") >= 2, "it came by way of the host"
    assert torch.equal(got, torch.arange(6000 * 32).reshape(6000, 32).repeat_interleave(2, 0))
    more = client.put({"y": torch.ones(6000, 64)}, handle=both[1])
    happened.clear()
    got = client.get_columns(handle, fields=["x"], optional=["y"])
    assert happened.count("came") >= 2
    assert got["y.present"].tolist() == [False] * 6000 + [True] * 6000
    assert torch.equal(got["y"], torch.cat([torch.zeros(6000, 64), torch.ones(6000, 64)]))
    assert gpu_of(client).holds(got["y"])
    assert len(more) == 6000


def test_small_and_large_columns_and_objects_come_together(client: Client) -> None:
    gpu = gpu_of(client)
    put = {
        "large": torch.randn(64, 9000),
        "none": torch.zeros(64, 0),
        "small": torch.arange(64),
        "text": [f"row {i}" for i in range(64)],
    }
    got = client.get_columns(client.put(put))
    assert torch.equal(got["large"], put["large"])
    assert torch.equal(got["small"], put["small"])
    assert got["none"].shape == (64, 0)
    assert got["text"].tolist() == put["text"]
    assert gpu.holds(got["small"])
    assert tensor_bytes(put) == gpu.counters.bytes_pinned


def test_nothing_of_a_put_or_get_is_in_a_cycle(client: Client) -> None:
    there = {**on_gpu(gpu_of(client), columns()), "large": torch.randn(64, 9000)}

    def put_and_get() -> None:
        handle = client.put(there)
        client.get_columns(handle)
        client.get_columns(handle[[5, 3]])
        client.clear(handle)

    put_and_get()  # what is imported and made once has been by now
    with left_to_the_collector() as found:
        put_and_get()
    assert found == []
