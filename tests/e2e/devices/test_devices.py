"""Services whose bytes are on a GPU, and gets that land on one: real processes, fake GPUs."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import (
    backend_sum,
    clear_while_copied,
    columns,
    expect_same,
    gpu_of,
    serve,
)
from tests.waiting import wait_until
from transferqueue.client.device_side import DeviceSide
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.errors import (
    ConfigError,
    DeviceMissing,
    DeviceStuck,
    HandleRefused,
    OwnerLost,
    RowsLost,
    RungRefused,
    StaleGeneration,
)

if TYPE_CHECKING:
    from transferqueue.client.sync_client import Client
    from transferqueue.devices.base import MemoryHandle
    from transferqueue.service.embedded import Service


def test_tensors_go_from_gpu_memory_to_gpu_memory(client: Client) -> None:
    put, gpu = columns(), gpu_of(client)
    handle = client.put(put)
    before = gpu.counters.bytes_across
    got = client.get_columns(handle)
    expect_same(got, put)
    for name in ("dense", "scalar", "half"):
        assert gpu.holds(got[name]), name
    assert gpu.holds(got["ragged"].values())
    large = put["dense"].nbytes + put["half"].nbytes + put["scalar"].nbytes
    assert gpu.counters.bytes_across - before >= large
    assert gpu.counters.opens == 1
    assert gpu.counters.events_live <= 8


@pytest.mark.parametrize(
    "rows", [[3], list(range(10, 50)), [63, 0, 17, 5], [1, 1, 2, 2, 1], list(range(63, -1, -1))]
)
def test_any_rows_in_any_order_land_there(rows: list[int], client: Client) -> None:
    put = columns()
    handle = client.put(put)
    expect_same(client.get_columns(handle[np.array(rows)]), put, rows)


def test_rows_of_several_shards_are_joined_on_the_device(client: Client) -> None:
    puts = [columns(8) for _ in range(4)]
    handle = tq.BatchHandle.concat([client.put(put) for put in puts])
    shuffled = np.random.default_rng(0).permutation(32)
    got = client.get_columns(handle.reorder(shuffled), fields=["dense", "half"])
    for name in ("dense", "half"):
        assert torch.equal(got[name], torch.cat([put[name] for put in puts])[shuffled])
        assert gpu_of(client).holds(got[name])


def test_rows_that_lack_an_optional_field_are_zeros_there_too(client: Client) -> None:
    first = client.put({"dense": torch.ones(4, 40_000), "more": torch.ones(4, 40_000)})
    second = client.put({"dense": torch.ones(4, 40_000)})
    both = tq.BatchHandle.concat([first.select(["dense"]), second])
    got = client.get_columns(both, fields=["dense"], optional=["more"])
    assert torch.equal(got["more"], torch.cat([torch.ones(4, 40_000), torch.zeros(4, 40_000)]))
    assert got["more.present"].tolist() == [True] * 4 + [False] * 4


def test_rows_in_many_pieces_are_one_copy_and_put_in_order_there(client: Client) -> None:
    put = {"x": torch.arange(6000 * 8).reshape(6000, 8)}
    handle = client.put(put)
    shuffled = np.random.default_rng(0).permutation(6000)
    before = gpu_of(client).counters.bytes_across
    got = client.get_columns(handle.reorder(shuffled))
    assert torch.equal(got["x"], put["x"][shuffled])
    assert gpu_of(client).holds(got["x"])
    assert gpu_of(client).counters.bytes_across - before == put["x"].nbytes


def test_without_a_device_the_same_rows_come_to_the_host(client: Client) -> None:
    put = columns()
    handle = client.put(put)
    got = client.get_columns(handle, device="cpu")
    expect_same(got, put)
    assert not gpu_of(client).holds(got["dense"])
    assert client.get(handle, fields=["dense"])["dense"].shape == (64, 1000)


def test_a_device_of_two_names_is_one(client: Client, machine: FakeMachine) -> None:
    handle = client.put({"x": torch.randn(64, 1000)})
    ordinal = machine.order().index(machine.uuids[0])
    name = f"fake:{machine.folder}:{ordinal}"
    assert client.get(handle, device=name)["x"].shape == (64, 1000)
    assert client.get(handle)["x"].shape == (64, 1000)
    assert gpu_of(client).counters.opens == 1


async def test_the_asynchronous_client_does_the_same(
    service: Service, machine: FakeMachine
) -> None:
    async with await tq.connect_async(service.address) as client:
        put = columns(8)
        handle = await client.put(put)
        device = machine.name_of(machine.uuids[0])
        expect_same(await client.get_columns(handle, device=device), put)
        await client.clear(handle)


def test_each_pair_says_which_way_it_takes_and_why_not_a_better_one(
    service: Service, client: Client, machine: FakeMachine
) -> None:
    assert {(link["rung"], link["why_not_better"]) for link in client.links()} == {("same-gpu", "")}
    with tq.connect(service.address, device=machine.name_of(machine.uuids[1])) as other:
        (link, _) = other.links()
        assert (link["rung"], link["device"]) == ("peer", machine.name_of(machine.uuids[1]))
        assert link["why_not_better"].startswith(f"same-gpu: the shard is on {machine.uuids[0]}")
        put = columns()
        handle = other.put(put)
        expect_same(other.get_columns(handle), put)
        assert gpu_of(other).counters.bytes_across > put["dense"].nbytes
    with (
        machine.fault(Fault.REFUSE_PEER),
        tq.connect(service.address, device=machine.name_of(machine.uuids[1])) as other,
    ):
        (link, _) = other.links()
        assert link["rung"] == "pinned-stream"
        assert "the driver says no" in link["why_not_better"]
        expect_same(other.get_columns(handle), put)
        assert gpu_of(other).counters.bytes_across == 0
    with tq.connect(service.address) as plain:
        assert {link["rung"] for link in plain.links()} == {"stream"}
    assert client.status()["shards"][0]["backend"]["shown"] is True


def test_what_is_required_is_had_or_the_connection_is_refused(
    service: Service, machine: FakeMachine
) -> None:
    here, there = (machine.name_of(uuid) for uuid in machine.uuids)
    tq.connect(service.address, device=here, required="same-gpu").close()
    tq.connect(service.address, device=there, required="peer").close()
    with pytest.raises(RungRefused, match=r"required='same-gpu'.*shard 0 is 'peer'"):
        tq.connect(service.address, device=there, required="same-gpu")
    with machine.fault(Fault.REFUSE_PINNING):
        with pytest.raises(RungRefused, match="ulimit"), machine.fault(Fault.REFUSE_PEER):
            tq.connect(service.address, device=there, required="pinned-stream")
        tq.connect(service.address, device=here, required="same-gpu").close()
    with pytest.raises(ConfigError, match="device= is not given"):
        tq.connect(service.address, required="peer")
    with pytest.raises(ConfigError, match="one of"):
        tq.connect(service.address, device=here, required="fast")
    with pytest.raises(DeviceMissing):
        tq.connect(service.address, device="fake:/nowhere:0")


def test_a_handle_that_cannot_be_opened_after_all_takes_another_way(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, put = gpu_of(client), columns()
    with tq.connect(service.address) as plain:
        handle = plain.put(put)
    asked = []

    def refuse(block: MemoryHandle) -> None:
        asked.append(block)
        raise HandleRefused(gpu.name, "the driver says no")

    monkeypatch.setattr(gpu, "open", refuse)
    expect_same(client.get_columns(handle), put)
    assert len(asked) == 1
    assert {link["rung"] for link in client.links()} == {"same-gpu", "pinned-stream"}


def test_a_stuck_device_is_an_error_and_its_loan_comes_back(
    client: Client, machine: FakeMachine
) -> None:
    handle = client.put(columns())
    with machine.fault(Fault.STUCK), pytest.raises(DeviceStuck) as stuck:
        client.get(handle, fields=["dense"], timeout_s=2.5)
    assert stuck.value.args[1] <= 2.5, "the device is waited for beyond the deadline"
    wait_until(lambda: backend_sum(client, "lent_bytes") == 0)
    assert client.get(handle, fields=["dense"])["dense"].shape == (64, 1000)


def test_what_was_given_on_while_it_was_copied_is_not_believed(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.put({"x": torch.zeros(64, 1000)})
    clear_while_copied(client, handle, monkeypatch)
    with pytest.raises(StaleGeneration, match="nothing is there now"):
        client.get(handle)


def test_an_owner_that_is_killed_is_lost_and_its_successor_says_so(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = machine.name_of(machine.uuids[0])
    with serve(machine) as service, tq.connect(service.address, device=name) as client:
        handle = client.put({"x": torch.zeros(64, 1000)})
        pids = [shard["pid"] for shard in client.status()["shards"]]
        copy_all = DeviceSide.copy_all

        def kill_the_owner(*arguments: Any) -> None:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
            copy_all(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(DeviceSide, "copy_all", kill_the_owner)
            with pytest.raises(OwnerLost):
                client.get(handle)
        with pytest.raises(RowsLost):
            client.get(handle)
        put = columns(8)
        expect_same(client.get_columns(client.put(put)), put)


def test_a_shard_that_cannot_show_its_memory_is_read_through_its_socket(
    machine: FakeMachine,
) -> None:
    name = machine.name_of(machine.uuids[0])
    with (
        machine.fault(Fault.REFUSE_EXPORT),
        serve(machine) as service,
        tq.connect(service.address, device=name) as client,
    ):
        put = columns()
        handle = client.put(put)
        got = client.get_columns(handle)
        expect_same(got, put)
        assert gpu_of(client).holds(got["dense"])
        assert gpu_of(client).counters.opens == 0
        (link, _) = client.links()
        assert link["rung"] == "pinned-stream"
        assert "same-gpu: " in link["why_not_better"]
        with pytest.raises(RungRefused):
            tq.connect(service.address, device=name, required="peer")
