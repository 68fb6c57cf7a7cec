"""A shard with memory on two GPUs and on the host: real processes, fake GPUs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import BUDGET_BYTES, QUARANTINE_S, clear_while_copied, gpu_of, on_gpu
from tests.waiting import wait_until
from transferqueue.devices.fake_gpu import FakeGpu
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.errors import StaleGeneration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.service.embedded import Service

WHERE = {"a": "one", "b": "two", "*": "shm"}


@pytest.fixture(scope="module")
def service(machine: FakeMachine) -> Iterator[Service]:
    """``one`` is on the first GPU, ``two`` on the second."""
    beside = {
        name: {
            "backend": "device",
            "budget_bytes": 2 * BUDGET_BYTES,
            "options": {"device": machine.name_of(uuid), "quarantine_s": QUARANTINE_S},
        }
        for name, uuid in zip(("one", "two"), machine.uuids, strict=True)
    }
    with tq.serve(shards=2, budget_bytes=2 * BUDGET_BYTES, backends=beside) as service:
        with tq.connect(service.address) as client:
            client.create_partition("train", backend=WHERE)
        yield service


@pytest.fixture(params=[0, 1])
def turn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """By how much the GPUs are numbered in another order here."""

    def order(machine: FakeMachine) -> list[str]:
        return machine.uuids[request.param :] + machine.uuids[: request.param]

    monkeypatch.setattr(FakeMachine, "order", order)
    return int(request.param)


@pytest.fixture
def client(service: Service, machine: FakeMachine, turn: int) -> Iterator[Client]:
    """Uses the first GPU, which has another number each time."""
    with tq.connect(service.address, device=f"fake:{machine.folder}:{-turn % 2}") as client:
        assert gpu_of(client).uuid == machine.uuids[0]
        yield client
        client.clear(partition="train")
        wait_until(lambda: of_backends(client, "used_bytes") == {"one": 0, "two": 0, "shm": 0})


def batch(num_rows: int = 64) -> dict[str, Any]:
    return {name: torch.randn(num_rows, 4000) for name in ("a", "b", "c")}


def of_backends(client: Client, fact: str) -> dict[str, int]:
    """Over the shards, of those that tell it."""
    total: dict[str, int] = {}
    for shard in client.status()["shards"]:
        for name, facts in shard["backends"].items():
            if fact in facts:
                total[name] = total.get(name, 0) + facts[fact]
    return total


def peer_of(client: Client, machine: FakeMachine) -> FakeGpu:
    """The second GPU, as the client uses it beside its own."""
    side = client._ops.data.devices.side()
    assert side is not None
    found = side._devices[machine.uuids[1]]
    assert isinstance(found, FakeGpu)
    return found


def expect_same(got: Any, put: dict[str, Any]) -> None:
    for name, value in put.items():
        assert got[name].numpy().tobytes() == value.numpy().tobytes(), name


def test_each_field_goes_and_comes_by_the_way_to_its_gpu(
    client: Client, machine: FakeMachine
) -> None:
    put, gpu = batch(), gpu_of(client)
    before = client.wire_bytes()["received"]
    handle = client.put(on_gpu(gpu, put), partition="train")
    assert gpu.counters.bytes_across == put["a"].nbytes + put["b"].nbytes
    got = client.get_columns(handle)
    expect_same(got, put)
    assert all(gpu.holds(got[name]) for name in put)
    assert gpu.counters.bytes_across == 2 * (put["a"].nbytes + put["b"].nbytes)
    assert gpu.counters.bytes_pageable == 0
    assert client.wire_bytes()["received"] - before < put["a"].nbytes // 10
    held = client.held()["train"]["backends"]
    assert {name: set(held[name]) for name in put} == {"a": {"one"}, "b": {"two"}, "c": {"shm"}}
    assert {(link["rung"], link["beside"]) for link in client.links()} == {
        ("pinned-shm", "same-gpu, peer")
    }
    expect_same(client.get_columns(handle, device="cpu"), put)
    rows = np.random.default_rng(0).integers(0, 64, 200)
    expect_same(client.get_columns(handle[rows]), {n: v[rows] for n, v in put.items()})


def test_memory_is_opened_when_it_is_needed_and_once(
    service: Service, client: Client, machine: FakeMachine
) -> None:
    with tq.connect(service.address) as plain:
        puts = [plain.put(batch(), partition="train") for _ in range(4)]
    assert len({int(handle.uids[0]) >> 48 for handle in puts}) == 2
    gpu = gpu_of(client)
    client.get(puts[0], fields=["c"])
    peer = peer_of(client, machine)
    assert (gpu.counters.opens, peer.counters.opens) == (0, 0)
    client.get(puts[0], fields=["a"])
    assert (gpu.counters.opens, peer.counters.opens) == (1, 0)
    client.get(puts[0], fields=["b"])
    assert (gpu.counters.opens, peer.counters.opens) == (1, 1)
    for handle in puts * 2:
        client.get(handle)
    assert (gpu.counters.opens, peer.counters.opens) == (2, 2), "a block of each of two shards"


def test_without_a_link_the_other_one_is_read_through_the_shard(
    service: Service, machine: FakeMachine, turn: int
) -> None:
    put = batch()
    with (
        machine.fault(Fault.REFUSE_PEER),
        tq.connect(service.address, device=machine.name_of(machine.uuids[0])) as client,
    ):
        gpu = gpu_of(client)
        handle = client.put(on_gpu(gpu, put), partition="train")
        assert gpu.counters.bytes_across == put["a"].nbytes
        expect_same(client.get_columns(handle), put)
        assert gpu.counters.bytes_across == 2 * put["a"].nbytes
        (link, _) = client.links()
        assert link["beside"] == "same-gpu, pinned-stream"
        # A put goes to each by the device that is next to it, of those that are open here.
        second = client.get_columns(handle, fields=["b"], device=machine.name_of(machine.uuids[1]))
        side = client._ops.data.devices.side(machine.name_of(machine.uuids[1]))
        assert side is not None
        assert isinstance(side.device, FakeGpu)
        across = side.device.counters.bytes_across
        there = {"a": on_gpu(gpu, put)["a"], "b": second["b"]}
        again = client.put(there, partition="train")
        assert gpu.counters.bytes_across == 3 * put["a"].nbytes
        assert side.device.counters.bytes_across == across + put["b"].nbytes
        assert (gpu.counters.bytes_pageable, side.device.counters.bytes_pageable) == (0, 0)
        expect_same(client.get_columns(again, device="cpu"), {n: put[n] for n in there})
        client.clear(partition="train")


def test_both_lend_until_a_borrow_ends(client: Client) -> None:
    put = batch()
    handle = client.put(put, partition="train")
    borrow = client.borrow(handle)
    with borrow as td:
        assert borrow.fields == ["a"], "memory of a peer is copied"
        expect_same(td, put)
        lent = of_backends(client, "lent_bytes")
        assert lent == {"one": put["a"].nbytes, "two": put["b"].nbytes}
    assert of_backends(client, "lent_bytes") == {"one": 0, "two": 0}


def test_what_was_given_on_while_it_was_copied_is_not_believed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.put(batch(), partition="train")
    clear_while_copied(client, handle, monkeypatch)
    with pytest.raises(StaleGeneration, match="nothing is there now"):
        client.get(handle, fields=["b"])


READER = """
import sys, time
import transferqueue as tq
client = tq.connect(sys.argv[1], device=sys.argv[2])
with client.borrow(tq.BatchHandle.from_bytes(bytes.fromhex(sys.argv[3]))) as td:
    print(*(float(td[name].double().sum()) for name in "abc"), flush=True)
    time.sleep(60)
"""


def test_a_process_that_is_killed_has_what_it_looked_at_on_both_set_apart_for_a_while(
    service: Service, machine: FakeMachine
) -> None:
    put = batch()
    name = machine.name_of(machine.uuids[1])  # to which the first one is the peer
    with tq.connect(service.address) as client:
        handle = client.put(put, partition="train")
        arguments = [service.address, name, handle.to_bytes().hex()]
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, *arguments], stdout=subprocess.PIPE, text=True
        )
        with reader:
            assert reader.stdout is not None
            sums = list(map(float, reader.stdout.readline().split()))
            assert sums == pytest.approx([float(put[name].double().sum()) for name in "abc"])
            client.clear(handle)
            reader.kill()
        wait_until(lambda: of_backends(client, "lent_bytes") == {"one": 0, "two": 0})
        apart = of_backends(client, "quarantined_bytes")
        assert apart == {"one": put["a"].nbytes, "two": put["b"].nbytes}
        wait_until(lambda: of_backends(client, "quarantined_bytes") == {"one": 0, "two": 0})
