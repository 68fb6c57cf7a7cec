"""Shards that keep some fields on a GPU and others in shared memory: each field is reached by the
way to its memory. Real processes, a fake GPU."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import transferqueue as tq
from tests.e2e.fake_gpus import (
    BUDGET_BYTES,
    QUARANTINE_S,
    columns,
    expect_same,
    gpu_of,
    on_gpu,
    tensor_bytes,
)
from tests.waiting import wait_until
from transferqueue.client.part_gets import PartGet
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.errors import RowsLost
from transferqueue.net.calls import CANCEL
from transferqueue.net.contexts import Contexts
from transferqueue.net.sync_channel import SyncChannel
from transferqueue.service.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.net.calls import Call
    from transferqueue.service.embedded import Service

ON_DEVICE = ("dense", "ragged")


def serve(machine: FakeMachine, *, default: str = "shm", shards: int = 1) -> Service:
    """Shards with memory of both kinds."""
    options = {"device": machine.name_of(machine.uuids[0]), "quarantine_s": QUARANTINE_S}
    if default == "shm":
        device = {"budget_bytes": 2 * BUDGET_BYTES, "options": options}
        return tq.serve(shards=shards, budget_bytes=4 * BUDGET_BYTES, backends={"device": device})
    shm = {"budget_bytes": 4 * BUDGET_BYTES}
    return tq.serve(
        shards=shards,
        budget_bytes=2 * BUDGET_BYTES,
        backend="device",
        backend_options=options,
        backends={"shm": shm},
    )


@pytest.fixture(scope="module", params=["shm", "device"])
def service(machine: FakeMachine, request: pytest.FixtureRequest) -> Iterator[Service]:
    """By which of the two is the default one."""
    with (
        serve(machine, default=request.param, shards=2) as service,
        tq.connect(service.address) as client,
    ):
        where = dict.fromkeys(ON_DEVICE, "device")
        client.create_partition("train", backend={**where, "*": "shm"})
        yield service


@pytest.fixture
def client(service: Service, machine: FakeMachine) -> Iterator[Client]:
    with tq.connect(service.address, device=machine.name_of(machine.uuids[0])) as client:
        yield client
        client.clear(partition="train")


def large(num_rows: int = 64) -> dict[str, object]:
    """Of both kinds more than goes with an answer."""
    put = columns(num_rows)
    return {**put, "dense": torch.randn(num_rows, 9000), "half": torch.randn(num_rows, 9000)}


def test_each_field_goes_and_comes_by_the_way_to_its_memory(client: Client) -> None:
    put, gpu = large(), gpu_of(client)
    before = client.wire_bytes()["received"]
    handle = client.put(on_gpu(gpu, put), partition="train")
    there = tensor_bytes({name: put[name] for name in ON_DEVICE})
    rest = tensor_bytes(put) - there
    assert (gpu.counters.bytes_across, gpu.counters.bytes_pageable) == (there, 0)
    assert gpu.counters.bytes_pinned >= rest
    held = client.held()["train"]["backends"]
    assert {name: set(held[name]) for name in ("dense", "half")} == {
        "dense": {"device"},
        "half": {"shm"},
    }
    got = client.get_columns(handle)
    expect_same(got, put)
    assert all(gpu.holds(got[name]) for name in ("dense", "half"))
    assert gpu.counters.bytes_across == 2 * there
    assert client.wire_bytes()["received"] - before < tensor_bytes(put) // 10
    expect_same(client.get_columns(handle, device="cpu"), put)


def test_rows_of_both_shards_in_any_order(client: Client) -> None:
    puts = [large(16) for _ in range(4)]
    gpu = gpu_of(client)
    handles = [client.put(on_gpu(gpu, put), partition="train") for put in puts]
    assert len({uid >> 48 for handle in handles for uid in handle.uids.tolist()}) == 2
    rows = np.random.default_rng(0).permutation(64)
    got = client.get_columns(tq.BatchHandle.concat(handles).reorder(rows), fields=["dense", "half"])
    for name in ("dense", "half"):
        assert torch.equal(got[name], torch.cat([put[name] for put in puts])[rows])  # type: ignore[misc]


def test_tensors_of_the_host_and_small_ones_find_their_places_too(client: Client) -> None:
    put, gpu = large(), gpu_of(client)
    before = client.wire_bytes()["sent"]
    handle = client.put(put, partition="train")
    assert client.wire_bytes()["sent"] - before < tensor_bytes(put) // 10
    assert gpu.counters.bytes_across == 0
    expect_same(client.get_columns(handle), put)
    few = {"dense": torch.ones(4, 3), "half": torch.ones(4, 2)}
    got = client.get_columns(client.put(few, partition="train"), fields=["dense", "half"])
    assert torch.equal(got["dense"], few["dense"])
    assert torch.equal(got["half"], few["half"])


def test_a_client_without_the_gpu_reads_and_writes_all_of_it(
    service: Service, client: Client
) -> None:
    put = large()
    with tq.connect(service.address) as plain:
        handle = plain.put(put, partition="train")
        expect_same(plain.get_columns(handle), put)
    expect_same(client.get_columns(handle), put)


def test_of_fields_of_both_those_on_the_gpu_are_borrowed(client: Client) -> None:
    put = large()
    handle = client.put(put, partition="train")
    borrow = client.borrow(handle)
    with borrow as td:
        assert borrow.fields == ["dense", "ragged"]
        expect_same(td, {name: put[name] for name in ("dense", "half", "ragged")})
    lent = [shard["backends"]["device"]["lent_bytes"] for shard in client.status()["shards"]]
    assert lent == [0, 0]


def test_memory_of_either_kind_comes_back(client: Client) -> None:
    handle = client.put(on_gpu(gpu_of(client), large()), partition="train")
    got = client.get_columns(handle)
    client.clear(handle)
    del got

    def used() -> int:
        shards = client.status()["shards"]
        return sum(one["used_bytes"] for shard in shards for one in shard["backends"].values())

    wait_until(lambda: used() == 0)


def test_an_answer_that_was_lost_lends_once_of_each_kind_and_a_cancelled_one_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Call] = []
    call = PartGet.call

    def noted(part: PartGet, **options: Any) -> Call:
        asked.append(call(part, **options))
        return asked[-1]

    monkeypatch.setattr(PartGet, "call", noted)
    handle = client.put(large(), partition="train")
    client.get_columns(handle)
    again = replace(asked[-1], request_id=1 << 40)

    def leases() -> int:
        return sum(shard["leases"] for shard in client.status()["shards"])

    wait_until(lambda: leases() == 0)
    contexts = Contexts()
    with closing(contexts), closing(SyncChannel(contexts)) as channel:
        for _ in range(3):
            channel.exchange([again], timeout_s=5.0)
        assert leases() == 2
        channel._send_control(again, CANCEL)
        wait_until(lambda: leases() == 0)
    lent = [shard["backends"]["device"]["lent_bytes"] for shard in client.status()["shards"]]
    assert lent == [0, 0]


def test_links_say_how_each_is_reached(service: Service, client: Client) -> None:
    assert {(link["rung"], link["beside"]) for link in client.links()} == {
        ("pinned-shm", "same-gpu")
    }
    with tq.connect(service.address) as plain:
        assert {(link["rung"], link["beside"]) for link in plain.links()} == {("shm", "stream")}
    said = CliRunner().invoke(
        main, ["status", "--address", service.address, "--device", gpu_of(client).name]
    )
    assert "by pinned-shm, those on its device by same-gpu" in said.output


def test_what_the_driver_does_not_show_is_read_through_the_shard(machine: FakeMachine) -> None:
    put, name = large(), machine.name_of(machine.uuids[0])
    with (
        machine.fault(Fault.REFUSE_EXPORT),
        serve(machine) as service,
        tq.connect(service.address, device=name) as client,
    ):
        client.create_partition("train", backend={"dense": "device", "*": "shm"})
        gpu = gpu_of(client)
        handle = client.put(on_gpu(gpu, put), partition="train")
        expect_same(client.get_columns(handle), put)
        assert gpu.counters.opens == 0
        (link,) = client.links()
        assert (link["rung"], link["beside"]) == ("pinned-shm", "pinned-stream")
        assert "on its device: same-gpu: " in link["why_not_better"]
        assert "the driver says no" in link["why_not_better"]


def test_of_a_killed_shard_what_was_in_shared_memory_is_there_again(machine: FakeMachine) -> None:
    name = machine.name_of(machine.uuids[0])
    with (
        serve(machine) as service,
        tq.connect(service.address, device=name) as client,
    ):
        client.create_partition("train", backend={"dense": "device", "*": "shm"})
        put, gpu = columns(), gpu_of(client)
        del put["dense"]
        kept = client.put(on_gpu(gpu, put), partition="train")
        lost = client.put(on_gpu(gpu, columns()), partition="train")
        for shard in client.status()["shards"]:
            os.kill(shard["pid"], signal.SIGKILL)
        expect_same(client.get_columns(kept), put)
        with pytest.raises(RowsLost):
            client.get_columns(lost)
        again = client.put(on_gpu(gpu, columns()), partition="train")
        expect_same(client.get_columns(again), columns())
