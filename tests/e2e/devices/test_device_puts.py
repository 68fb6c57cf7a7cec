"""Puts of tensors that are on a GPU: real processes, fake GPUs."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import (
    BUDGET_BYTES,
    QUARANTINE_S,
    backend_sum,
    columns,
    expect_same,
    gpu_of,
    on_gpu,
    put_on,
    serve,
    tensor_bytes,
    used_bytes,
)
from tests.waiting import wait_until
from transferqueue.client import device_fills
from transferqueue.devices.fake_gpu import FakeEvent
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.errors import DeviceError, DeviceStuck, HandleRefused, RungRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client
    from transferqueue.devices.base import MemoryHandle
    from transferqueue.service.embedded import Service


@pytest.fixture(scope="module")
def hosted() -> Iterator[Service]:
    """Its shards keep their bytes in memory of the host."""
    with tq.serve(shards=2, budget_bytes=BUDGET_BYTES) as service:
        yield service


def test_tensors_go_from_their_gpu_memory_to_that_of_the_shard(client: Client) -> None:
    put, gpu = columns(), gpu_of(client)
    there = on_gpu(gpu, put)
    handle = client.put(there)
    assert gpu.counters.bytes_across == tensor_bytes(put)
    assert gpu.counters.bytes_pageable == 0
    assert gpu.counters.opens == 1
    assert gpu.counters.events_live <= 8
    expect_same(client.get_columns(handle), put)
    expect_same(client.get_columns(handle, device="cpu"), put)
    moved = [shard["moved"] for shard in client.status()["shards"]]
    assert sum(one["put_bytes_by_way"]["mapped"] for one in moved) >= tensor_bytes(put), moved


def test_a_part_of_few_bytes_goes_with_its_request(client: Client) -> None:
    gpu = gpu_of(client)
    put = {"x": torch.arange(8), "y": torch.zeros(8, 0)}
    handle = client.put(on_gpu(gpu, {"x": put["x"]}) | {"y": put["y"]})
    assert (gpu.counters.bytes_across, gpu.counters.bytes_pageable) == (0, 0)
    assert gpu.counters.bytes_pinned == put["x"].nbytes
    expect_same(client.get_columns(handle), put)


def test_more_fields_of_rows_in_any_order_on_several_shards(client: Client) -> None:
    puts = [client.put({"n": torch.arange(8)}) for _ in range(4)]
    shuffled = np.random.default_rng(0).permutation(32)
    handle = tq.BatchHandle.concat(puts).reorder(shuffled)
    put, gpu = columns(32), gpu_of(client)
    del put["text"]
    more = client.put(on_gpu(gpu, put), handle=handle)
    assert gpu.counters.bytes_across == tensor_bytes(put)
    expect_same(client.get_columns(more, fields=list(put)), put)
    assert client.get_columns(more[[5, 3]], fields=["n"])["n"].tolist() == [
        int(shuffled[5]) % 8,
        int(shuffled[3]) % 8,
    ]


def in_turn(client: Client) -> tq.BatchHandle:
    """Rows of two shards, of which each has every second one."""
    both = [client.put({"n": torch.arange(6000)}) for _ in range(2)]
    handle = tq.BatchHandle.concat(both)
    return handle.reorder(np.arange(12_000).reshape(2, 6000).T.reshape(-1))


@pytest.mark.parametrize("where", ["device", "host", "host, in chunks"])
def test_rows_in_many_pieces_are_brought_together(
    client: Client, hosted: Service, machine: FakeMachine, where: str
) -> None:
    """Between devices by themselves; else on the host, where they are to go."""
    put = {"x": torch.arange(12_000 * 8).reshape(12_000, 8)}
    name = machine.name_of(machine.uuids[0])
    transport = "auto" if where == "host" else "ipc"
    with tq.connect(hosted.address, device=name, transport=transport) as other:
        chosen = client if where == "device" else other
        gpu, handle = gpu_of(chosen), in_turn(chosen)
        more = chosen.put(on_gpu(gpu, put), handle=handle)
        counters = gpu.counters
        if where == "device":
            assert (counters.bytes_across, counters.bytes_pinned) == (put["x"].nbytes, 0)
        else:
            assert counters.bytes_across == 0
            assert counters.bytes_pinned < 2.1 * put["x"].nbytes
        assert counters.bytes_pageable == 0
        assert torch.equal(chosen.get_columns(more, fields=["x"])["x"], put["x"])
        other.clear(partition="default")


def test_tensors_of_host_and_gpu_are_one_put(client: Client) -> None:
    gpu, put = gpu_of(client), columns()
    half = {name: put[name] for name in ("dense", "ragged")}
    handle = client.put({**put, **on_gpu(gpu, half)})
    assert gpu.counters.bytes_across == tensor_bytes(half)
    assert gpu.counters.bytes_pageable == 0
    expect_same(client.get_columns(handle), put)


def test_tensors_of_the_host_alone_go_there_without_a_socket(client: Client) -> None:
    gpu, put = gpu_of(client), columns()
    before = client.wire_bytes()["sent"]
    handle = client.put(put)
    assert client.wire_bytes()["sent"] - before < tensor_bytes(put) // 10
    assert gpu.counters.bytes_pinned >= tensor_bytes(put)
    assert (gpu.counters.bytes_across, gpu.counters.bytes_pageable) == (0, 0)
    expect_same(client.get_columns(handle), put)


def test_a_client_that_uses_no_gpu_opens_none_for_it(service: Service) -> None:
    put = columns()
    with tq.connect(service.address) as plain:
        before = plain.wire_bytes()["sent"]
        handle = plain.put(put)
        assert plain.wire_bytes()["sent"] - before > tensor_bytes(put)
        expect_same(plain.get_columns(handle), put)
        plain.clear(handle)


def test_a_new_version_is_written_from_there_too(client: Client) -> None:
    gpu = gpu_of(client)
    handle = client.put({"x": put_on(gpu, torch.zeros(64, 1000))})
    handle = client.put({"x": put_on(gpu, torch.ones(64, 1000))}, handle=handle, overwrite=True)
    assert torch.equal(client.get(handle)["x"], torch.ones(64, 1000))


async def test_the_asynchronous_client_does_the_same(
    service: Service, machine: FakeMachine
) -> None:
    device = machine.name_of(machine.uuids[0])
    async with await tq.connect_async(service.address, device=device) as client:
        side = client._ops.data.devices.side()
        assert side is not None
        put: dict[str, Any] = columns(8)
        handle = await client.put(on_gpu(side.device, put))  # type: ignore[arg-type]
        expect_same(await client.get_columns(handle), put)
        await client.clear(handle)


# -- other ways -----------------------------------------------------------------------------------


def test_from_another_gpu_by_the_link_between_them_or_by_page_locked_memory(
    service: Service, client: Client, machine: FakeMachine
) -> None:
    name, put = machine.name_of(machine.uuids[1]), columns()
    with tq.connect(service.address, device=name) as other:
        gpu = gpu_of(other)
        handle = other.put(on_gpu(gpu, put))
        assert gpu.counters.bytes_across == tensor_bytes(put)
        expect_same(client.get_columns(handle), put)
    with machine.fault(Fault.REFUSE_PEER), tq.connect(service.address, device=name) as other:
        gpu = gpu_of(other)
        handle = other.put(on_gpu(gpu, put))
        assert (gpu.counters.bytes_across, gpu.counters.bytes_pageable) == (0, 0)
        assert gpu.counters.bytes_pinned == tensor_bytes(put)
        expect_same(client.get_columns(handle), put)


def test_to_shards_on_the_host_by_page_locked_memory(hosted: Service, machine: FakeMachine) -> None:
    put, name = columns(), machine.name_of(machine.uuids[0])
    for transport in ("auto", "ipc"):
        with tq.connect(hosted.address, device=name, transport=transport) as client:
            gpu = gpu_of(client)
            handle = client.put(on_gpu(gpu, put))
            assert gpu.counters.bytes_pinned == tensor_bytes(put), transport
            assert gpu.counters.bytes_pageable == 0
            expect_same(client.get_columns(handle, device="cpu"), put)
            client.clear(handle)


def test_where_pinning_is_refused_it_goes_all_the_same(
    hosted: Service, machine: FakeMachine
) -> None:
    put, name = columns(), machine.name_of(machine.uuids[0])
    with machine.fault(Fault.REFUSE_PINNING), tq.connect(hosted.address, device=name) as client:
        gpu = gpu_of(client)
        handle = client.put(on_gpu(gpu, put))
        assert gpu.counters.bytes_pageable == tensor_bytes(put)
        expect_same(client.get_columns(handle, device="cpu"), put)
        client.clear(handle)


def test_fields_go_where_their_partition_says(machine: FakeMachine) -> None:
    name = machine.name_of(machine.uuids[0])
    device = {"budget_bytes": BUDGET_BYTES, "options": {"device": name}}
    with (
        tq.serve(budget_bytes=BUDGET_BYTES, backends={"device": device}) as service,
        tq.connect(service.address, device=name) as client,
    ):
        client.create_partition("train", backend={"dense": "device", "*": "shm"})
        put, gpu = columns(), gpu_of(client)
        handle = client.put(on_gpu(gpu, put), partition="train")
        assert gpu.counters.bytes_across == put["dense"].nbytes
        rest = tensor_bytes(put) - put["dense"].nbytes
        assert (gpu.counters.bytes_pinned, gpu.counters.bytes_pageable) == (rest, 0)
        held = client.held()["train"]["backends"]
        assert (set(held["dense"]), set(held["half"])) == ({"device"}, {"shm"})
        expect_same(client.get_columns(handle), put)


def test_a_way_that_is_required_is_had_or_nothing_is_stored(
    service: Service, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, put = machine.name_of(machine.uuids[0]), columns()
    with tq.connect(service.address, device=name, required="same-gpu") as client:
        gpu = gpu_of(client)
        there = on_gpu(gpu, put)

        def refuse(block: MemoryHandle) -> None:
            raise HandleRefused(gpu.name, "the driver says no")

        with monkeypatch.context() as patched:
            patched.setattr(gpu, "open", refuse)
            with pytest.raises(RungRefused, match="the driver says no"):
                client.put(there)
        assert used_bytes(client) == 0
        assert gpu.counters.bytes_pinned == 0


def test_a_handle_that_cannot_be_opened_after_all_takes_another_way(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, put = gpu_of(client), columns()

    def refuse(block: MemoryHandle) -> None:
        raise HandleRefused(gpu.name, "the driver says no")

    monkeypatch.setattr(gpu, "open", refuse)
    handle = client.put(on_gpu(gpu, put))
    assert (gpu.counters.bytes_across, gpu.counters.bytes_pageable) == (0, 0)
    expect_same(client.get_columns(handle, device="cpu"), put)


# -- faults ---------------------------------------------------------------------------------------


def test_space_that_a_stuck_device_may_write_to_is_nobodys_until_it_goes_on(
    client: Client, machine: FakeMachine
) -> None:
    gpu = gpu_of(client)
    there = {"x": put_on(gpu, torch.ones(64, 1000))}
    client.clear(client.put(there))
    assert used_bytes(client) == 0
    with machine.fault(Fault.STUCK), pytest.raises(DeviceStuck) as stuck:
        client.put(there, timeout_s=2.5)
    assert stuck.value.args[1] <= 2.5, "the device is waited for beyond the deadline"
    assert used_bytes(client) == there["x"].nbytes
    handles = [client.put({"x": put_on(gpu, torch.zeros(64, 1000))}) for _ in range(3)]
    wait_until(lambda: used_bytes(client) == 3 * there["x"].nbytes)
    for handle in handles:  # the late copy has come, and changed nothing
        assert torch.equal(client.get(handle)["x"], torch.zeros(64, 1000))


def test_space_comes_back_when_a_stuck_device_goes_on_though_nothing_is_put_or_got(
    client: Client, machine: FakeMachine
) -> None:
    gpu = gpu_of(client)
    there, before = {"x": put_on(gpu, torch.ones(64, 1000))}, used_bytes(client)
    with machine.fault(Fault.STUCK), pytest.raises(DeviceStuck):
        client.put(there, timeout_s=0.1)
    wait_until(lambda: used_bytes(client) == before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, DeviceError])
def test_space_that_a_device_may_write_to_is_nobodys_whatever_ends_the_wait_for_it(
    client: Client,
    machine: FakeMachine,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    def end(event: FakeEvent, timeout_s: float) -> None:
        del event, timeout_s
        raise error("the driver says no")

    gpu = gpu_of(client)
    there, before = {"x": put_on(gpu, torch.ones(64, 1000))}, used_bytes(client)
    with machine.fault(Fault.STUCK), monkeypatch.context() as patch:
        patch.setattr(FakeEvent, "wait", end)
        with pytest.raises(error):
            client.put(there)
    assert used_bytes(client) == before + there["x"].nbytes
    handles = [client.put({"x": put_on(gpu, torch.zeros(64, 1000))}) for _ in range(3)]
    wait_until(lambda: used_bytes(client) == before + 3 * there["x"].nbytes)
    for handle in handles:
        assert torch.equal(client.get(handle)["x"], torch.zeros(64, 1000))


def test_a_tensor_that_a_device_may_write_to_is_nobodys_until_it_goes_on(
    client: Client, machine: FakeMachine
) -> None:
    gpu = gpu_of(client)
    handle = client.put({"x": put_on(gpu, torch.ones(64, 1000))})
    free = machine.free_bytes(gpu.uuid)
    with machine.fault(Fault.STUCK):
        with pytest.raises(DeviceStuck) as stuck:
            client.get(handle)
        del stuck
        gc.collect()
        assert machine.free_bytes(gpu.uuid) == free - 256_000
    for _ in range(4):  # this device does one thing each time that it is looked at
        assert torch.equal(client.get(handle)["x"], torch.ones(64, 1000))
    gc.collect()
    assert machine.free_bytes(gpu.uuid) == free


VICTIM = """
import sys, time, torch
import transferqueue as tq
from tests.e2e.fake_gpus import gpu_of, put_on
from transferqueue.client import device_fills

fill = device_fills.fill

def hang(*arguments):
    fill(*arguments)
    print("filled", flush=True)
    time.sleep(60)

client = tq.connect(sys.argv[1], device=sys.argv[2])
gpu = gpu_of(client)
handles = [client.put({"x": put_on(gpu, torch.ones(64, 1000))}) for _ in range(2)]
with client.borrow(handles[0]) as td:
    client.clear(handles[0])
    print(int(td["x"].sum()), flush=True)
    device_fills.fill = hang
    client.put({"x": put_on(gpu, torch.ones(64, 1000))})
"""


def test_what_a_killed_process_borrowed_and_wrote_is_kept_apart_for_a_while_and_then_freed(
    service: Service, client: Client, machine: FakeMachine
) -> None:
    arguments = [service.address, machine.name_of(machine.uuids[0])]
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, *arguments], stdout=subprocess.PIPE, text=True
    )
    with victim:
        assert victim.stdout is not None
        assert [victim.stdout.readline() for _ in range(2)] == ["64000\n", "filled\n"]
        assert backend_sum(client, "lent_bytes") == 256_000
        assert used_bytes(client) == 3 * 256_000
        victim.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
    wait_until(lambda: backend_sum(client, "lent_bytes") == 0)
    assert backend_sum(client, "quarantined_bytes") == 2 * 256_000
    wait_until(lambda: used_bytes(client) == 256_000)
    assert time.monotonic() - killed_s >= QUARANTINE_S
    stored = client.select("default")
    assert torch.equal(client.get(stored, fields=["x"])["x"], torch.ones(64, 1000))


def test_an_owner_that_is_killed_in_a_put_is_written_to_when_it_is_back(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = machine.name_of(machine.uuids[0])
    with serve(machine) as service, tq.connect(service.address, device=name) as client:
        pids = [shard["pid"] for shard in client.status()["shards"]]
        fill, gpu = device_fills.fill, gpu_of(client)

        def kill_the_owner(*arguments: Any) -> None:
            while pids:
                os.kill(pids.pop(), signal.SIGKILL)
                time.sleep(0.05)
            fill(*arguments)

        monkeypatch.setattr(device_fills, "fill", kill_the_owner)
        put = columns(8)
        handle = client.put(on_gpu(gpu, put))
        assert pids == []
        expect_same(client.get_columns(handle), put)
