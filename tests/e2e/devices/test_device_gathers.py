"""Rows that are asked for more than once, are not there, lie in many pieces, or on a disk: on a
device they are as they are on the host, and go there by the way to their memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import BUDGET_BYTES, gpu_of, used_bytes
from tests.waiting import wait_until
from transferqueue.devices.fake_gpu import FakeStream
from transferqueue.devices.fake_machine import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.devices.fake_gpu import FakeGpu
    from transferqueue.devices.fake_machine import FakeMachine
    from transferqueue.service.embedded import Service

HALF = 800
"""Rows on each of two shards: in more pieces no window is opened to them."""

WAYS = {
    "same-gpu": ("device", "auto"),
    "pinned-shm": ("shm", "auto"),
    "files": ("disk", "auto"),
    "chunks": ("shm", "tcp"),
    "a transport": ("shm", "sockets"),
}
"""The backend where the rows are, and how the client is connected."""

DICE = np.random.default_rng(7)
ROWS = {
    "each three times": np.repeat(np.arange(300, 1300), 3),
    "any, again and again": DICE.integers(0, 2 * HALF, 3000),
    "shuffled": DICE.permutation(2 * HALF),
    "every third, backwards": np.arange(0, 2 * HALF, 3)[::-1],
    "one": np.array([1471]),
}


@pytest.fixture(scope="module")
def service(machine: FakeMachine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its shards have a GPU, shared memory and a disk."""
    options = {"device": machine.name_of(machine.uuids[0])}
    disk = {"budget_bytes": 4 * BUDGET_BYTES, "arena_dir": str(tmp_path_factory.mktemp("disk"))}
    with tq.serve(
        shards=2,
        budget_bytes=4 * BUDGET_BYTES,
        host="127.0.0.1",
        encrypt=False,
        transports={"sockets": {}},
        backends={
            "device": {"budget_bytes": 4 * BUDGET_BYTES, "options": options},
            "disk": disk,
        },
    ) as service:
        yield service


@dataclass
class Stored:
    """The same rows on each backend."""

    handles: dict[str, tq.BatchHandle]
    row_bytes: int
    """Of those that all rows have, on average."""


@pytest.fixture(scope="module")
def stored(service: Service) -> Stored:
    halves = [columns(0), columns(1)]
    handles = {}
    with tq.connect(service.address) as client:
        for name in ("device", "shm", "disk"):
            client.create_partition(name, backend={"*": name})
            both = [client.put(half, partition=name) for half in halves]
            client.put({"extra": torch.randn(HALF, 65)}, handle=both[1])
            handles[name] = tq.BatchHandle.concat(both)
            assert len(set(handles[name].uids >> 48)) == 2, "all of them are on one shard"
    tensors = [half[name] for half in halves for name in ("dense", "odd", "ragged")]
    nbytes = sum(t.values().nbytes if t.is_nested else t.nbytes for t in tensors)
    return Stored(handles=handles, row_bytes=nbytes // (2 * HALF))


def columns(seed: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 120, (HALF,), generator=random)
    steps = torch.randint(0, 9999, (int(lengths.sum()), 3), generator=random, dtype=torch.int32)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return {
        "dense": torch.randn(HALF, 1024, generator=random),
        "odd": torch.randint(0, 255, (HALF, 77), generator=random, dtype=torch.uint8),
        "ragged": torch.nested.nested_tensor_from_jagged(steps, offsets),
        "text": [f"row {seed} {row}" for row in range(HALF)],
    }


def connect(service: Service, machine: FakeMachine, way: str) -> Client:
    name = machine.name_of(machine.uuids[0])
    return tq.connect(service.address, device=name, transport=WAYS[way][1])


def got(client: Client, handle: tq.BatchHandle, **where: Any) -> dict[str, Any]:
    return client.get_columns(handle, optional=["extra"], **where)


def expect_as_on_the_host(client: Client, handle: tq.BatchHandle, gpu: FakeGpu) -> None:
    there, here = got(client, handle), got(client, handle, device="cpu")
    assert there.keys() == here.keys()
    assert np.array_equal(there["text"], here["text"])
    if "extra.present" in here:
        assert np.array_equal(there["extra.present"], here["extra.present"])
    for name in ("dense", "odd", "ragged", "extra"):
        if name not in here:
            continue
        one, other = there[name], here[name]
        assert (one.dtype, one.layout) == (other.dtype, other.layout)
        if one.is_nested:
            assert torch.equal(one.offsets(), other.offsets())
            one, other = one.values(), other.values()
        assert one.shape == other.shape
        assert gpu.holds(one) or not one.nbytes, name
        assert one.numpy().tobytes() == other.numpy().tobytes(), name


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("way", WAYS)
def test_any_rows_are_on_the_device_as_they_are_on_the_host(
    service: Service, machine: FakeMachine, stored: Stored, way: str, rows: np.ndarray
) -> None:
    with connect(service, machine, way) as client:
        gpu = gpu_of(client)
        expect_as_on_the_host(client, stored.handles[WAYS[way][0]][rows], gpu)
        assert gpu.counters.bytes_pageable == 0
        assert gpu.counters.events_live <= 16


@pytest.mark.parametrize("rows", ["each three times", "shuffled"])
@pytest.mark.parametrize("way", WAYS)
def test_bytes_go_by_the_way_that_is_shown_and_each_row_once(
    service: Service, machine: FakeMachine, stored: Stored, way: str, rows: str
) -> None:
    with connect(service, machine, way) as client:
        gpu, handle = gpu_of(client), stored.handles[WAYS[way][0]][ROWS[rows]]
        before = client.wire_bytes()["received"]
        client.get_columns(handle, fields=["dense", "ragged"])
        by_wire = client.wire_bytes()["received"] - before
        distinct = len(np.unique(ROWS[rows])) * stored.row_bytes
        counters = gpu.counters
        assert counters.bytes_pageable == 0
        order = counters.bytes_pinned if way == "same-gpu" else 0
        (link, _) = client.links()
        if way == "same-gpu":
            assert link["beside"] == "same-gpu"
            assert 0.9 * distinct < counters.bytes_across < 1.1 * distinct
            assert order < 0.15 * distinct, "only numbers of rows come from the host"
            assert by_wire < 0.2 * distinct
        else:
            assert counters.bytes_across == 0
            assert 0.9 * distinct < counters.bytes_pinned < 1.3 * distinct
        if way == "pinned-shm":
            assert link["rung"] == "pinned-shm"
            assert by_wire < 0.2 * distinct
        elif way == "files" and rows == "each three times":
            assert by_wire < 0.2 * distinct, "the shard has read the file"
        elif way == "chunks":
            assert link["rung"] == "pinned-stream"
            assert 0.9 * distinct < by_wire < 1.3 * distinct


@pytest.mark.parametrize("way", WAYS)
def test_no_memory_of_the_size_of_a_column_is_needed_on_the_host(
    service: Service, machine: FakeMachine, stored: Stored, way: str
) -> None:
    with connect(service, machine, way) as client:
        handle = stored.handles[WAYS[way][0]][ROWS["each three times"]]
        client.get_columns(handle, fields=["dense"])
        tracemalloc.start()
        try:
            found = client.get_columns(handle, fields=["dense"])["dense"]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert gpu_of(client).holds(found)
        assert peak < found.nbytes / 6, "a third of it are the distinct rows"


def test_what_is_not_page_locked_goes_by_the_ring_in_the_same_way(
    service: Service, machine: FakeMachine, stored: Stored
) -> None:
    with connect(service, machine, "pinned-shm") as client, machine.fault(Fault.REFUSE_PINNING):
        for rows in ROWS.values():
            expect_as_on_the_host(client, stored.handles["shm"][rows], gpu_of(client))
        assert {link["rung"] for link in client.links()} == {"shm"}
        assert gpu_of(client).counters.bytes_pageable == 0, "the ring was locked before"


def test_from_a_peer_too(service: Service, machine: FakeMachine, stored: Stored) -> None:
    name = machine.name_of(machine.uuids[1])
    with tq.connect(service.address, device=name) as client:
        for rows in ROWS.values():
            expect_as_on_the_host(client, stored.handles["device"][rows], gpu_of(client))
        assert {link["beside"] for link in client.links()} == {"peer"}


def test_copies_are_waited_for_before_there_are_too_many(
    service: Service, machine: FakeMachine, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_in, most = FakeStream.copy_in, 0

    def watched(stream: FakeStream, *arguments: Any) -> None:
        nonlocal most
        copy_in(stream, *arguments)
        most = max(most, stream.num_left)

    monkeypatch.setattr(FakeStream, "copy_in", watched)
    monkeypatch.setattr("transferqueue.client.device_side.BATCH", 100)
    handle = stored.handles["shm"][ROWS["every third, backwards"]]
    with connect(service, machine, "pinned-shm") as client:
        there = client.get_columns(handle, fields=["dense"])["dense"]
        here = client.get_columns(handle, fields=["dense"], device="cpu")["dense"]
        assert torch.equal(there, here)
    assert 100 <= most <= 105, most


def test_columns_that_were_spilled_to_a_disk_land_by_the_ring(
    machine: FakeMachine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    put = [torch.full((64, 8192), float(n)) for n in range(8)]  # 2 MiB each
    with (
        tq.serve(
            budget_bytes=BUDGET_BYTES,
            spill_dir=str(tmp_path_factory.mktemp("spilled")),
            spill_bytes=4 * BUDGET_BYTES,
            spill_high=0.5,
            spill_low=0.3,
        ) as service,
        tq.connect(service.address, device=machine.name_of(machine.uuids[0])) as client,
    ):
        handles = [client.put({"x": one}) for one in put]
        wait_until(lambda: client.status()["shards"][0]["spill"]["used_bytes"] >= put[0].nbytes)
        gpu, before = gpu_of(client), client.wire_bytes()["received"]
        for handle, one in zip(handles, put, strict=True):
            found = client.get(handle)["x"]
            assert gpu.holds(found)
            assert torch.equal(found, one)
        assert gpu.counters.bytes_pageable == 0
        assert client.wire_bytes()["received"] - before < put[0].nbytes
        assert used_bytes(client) > 0
