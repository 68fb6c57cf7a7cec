"""What the fake GPU does that real ones do: late copies, shared memory, freed memory, faults."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.devices.fake_gpu import MAX_EVENTS, FakeGpu, open_fake
from transferqueue.devices.fake_machine import POISON, FakeMachine, Fault
from transferqueue.devices.opened import OpenedBlocks
from transferqueue.devices.registry import find_device
from transferqueue.errors import (
    Closed,
    DeviceError,
    DeviceFull,
    DeviceMissing,
    DeviceStuck,
    ExportRefused,
    HandleRefused,
    OwnerLost,
    PeerRefused,
    PinningRefused,
)
from transferqueue.testing.device_probe import OtherProcess, pattern, read, write

if TYPE_CHECKING:
    from pathlib import Path

MEMORY_BYTES = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine.create(tmp_path, memory_bytes=MEMORY_BYTES)


def test_a_copy_moves_its_bytes_when_the_stream_comes_to_it(machine: FakeMachine) -> None:
    gpu = FakeGpu(machine, machine.uuids[0], stepped=True)
    block, stream = gpu.allocate(100), gpu.stream()
    out = np.zeros(100, np.uint8)
    stream.copy_in(block, 0, pattern(1, 100).data)
    stream.copy_out(block, 0, out.data)
    event = stream.record()
    assert not out.any()
    assert stream.step()
    assert not out.any()
    assert stream.step()
    assert (out == pattern(1, 100)).all()
    assert not event.is_done()
    with pytest.raises(DeviceStuck):
        event.wait(0.01)
    assert stream.step()
    assert event.is_done()
    assert not stream.step()
    assert stream.num_left == 0


def test_who_does_not_wait_reads_other_bytes(machine: FakeMachine) -> None:
    with open_fake(f"{machine.folder}:0") as gpu, gpu.allocate(100) as block:
        stream, out = gpu.stream(), np.zeros(100, np.uint8)
        source = pattern(2, 100)
        stream.copy_in(block, 0, source.data)
        stream.copy_out(block, 0, out.data)
        source[:] = 7  # too early: the copy has not been made
        stream.synchronize()
        assert (out == 7).all()


def test_a_stream_waits_where_it_was_told_to(machine: FakeMachine) -> None:
    gpu = FakeGpu(machine, machine.uuids[0], stepped=True)
    block, one, two = gpu.allocate(100), gpu.stream(), gpu.stream()
    one.copy_in(block, 0, pattern(3, 100).data)
    two.wait_for(one.record())
    out = np.zeros(100, np.uint8)
    two.copy_out(block, 0, out.data)
    assert not two.step()
    assert one.step()
    assert not two.step()
    assert one.step()
    assert two.step()
    assert two.step()
    assert (out == pattern(3, 100)).all()


def test_a_copy_into_memory_that_was_freed_is_an_error(machine: FakeMachine) -> None:
    gpu = FakeGpu(machine, machine.uuids[0])
    block, stream = gpu.allocate(100), gpu.stream()
    stream.copy_in(block, 0, pattern(4, 100).data)
    block.close()
    with pytest.raises(DeviceError, match="freed"):
        stream.synchronize()


def test_freed_memory_is_soon_anothers_and_looks_like_it(machine: FakeMachine) -> None:
    gpu = FakeGpu(machine, machine.uuids[0])
    stream = gpu.stream()
    with gpu.allocate(1000) as block:
        write(stream, block, 0, pattern(5, 1000))
    with gpu.allocate(1000) as block:
        assert (read(stream, block, 0, 1000) == POISON).all()


def test_events_run_out(machine: FakeMachine) -> None:
    stream = FakeGpu(machine, machine.uuids[0]).stream()
    events = [stream.record() for _ in range(MAX_EVENTS)]
    with pytest.raises(DeviceError, match="out of events"):
        stream.record()
    stream.synchronize()
    del events
    stream.record().wait()


def test_memory_is_one_for_all_processes_and_comes_back_with_the_dead(machine: FakeMachine) -> None:
    with FakeGpu(machine, machine.uuids[1]) as gpu:
        with OtherProcess(gpu) as other:
            other.allocate(6, MEMORY_BYTES - 4096)
            assert gpu.room.free_bytes == 4096
            with pytest.raises(DeviceFull, match="4,096 bytes free"):
                gpu.allocate(8192)
        assert gpu.room.free_bytes == MEMORY_BYTES
        gpu.allocate(8192).close()


def test_processes_number_the_gpus_differently(machine: FakeMachine) -> None:
    assert machine.order(100) != machine.order(101)
    assert sorted(machine.order(100)) == sorted(machine.uuids)
    code = (
        "import os, sys; from transferqueue.devices.registry import find_device as f\n"
        "print(os.getpid(), *[f(f'fake:{sys.argv[1]}:{i}').uuid for i in (0, 1)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(machine.folder)], capture_output=True, text=True
    )
    pid, *uuids = done.stdout.split()
    assert uuids == machine.order(int(pid))


@pytest.mark.parametrize(
    "name", ["fake:/nowhere:0", "fake:{}:2", "fake:{}:FAKE-other", "host:HOST-other", "gpu:0", ""]
)
def test_a_device_that_is_not_there_is_said_to_be_missing(name: str, machine: FakeMachine) -> None:
    with pytest.raises(DeviceMissing):
        find_device(name.format(machine.folder))


def test_each_fault_is_there_while_it_is_asked_for(machine: FakeMachine) -> None:
    gpu, peer = (FakeGpu(machine, uuid) for uuid in machine.uuids)
    block = gpu.allocate(4096)
    with machine.fault(Fault.REFUSE_EXPORT), pytest.raises(ExportRefused):
        gpu.export(block)
    with machine.fault(Fault.POOL_FULL), pytest.raises(DeviceFull):
        gpu.allocate(1)
    with machine.fault(Fault.REFUSE_PINNING), pytest.raises(PinningRefused):
        gpu.register(memoryview(bytearray(4096)))
    with machine.fault(Fault.REFUSE_PEER), pytest.raises(PeerRefused):
        gpu.enable_peer(peer)
    with machine.fault(Fault.WRONG_UUID):
        assert gpu.export(block).uuid not in machine.uuids
    stream = gpu.stream()
    stream.copy_in(block, 0, memoryview(bytes(10)))
    with machine.fault(Fault.STUCK), pytest.raises(DeviceStuck):
        stream.synchronize()
    stream.synchronize()


def test_gpus_reach_one_another_only_when_asked_and_able(machine: FakeMachine) -> None:
    gpu, peer = (FakeGpu(machine, uuid) for uuid in machine.uuids)
    here, there, stream = gpu.allocate(100), peer.allocate(100), gpu.stream()
    write(peer.stream(), there, 0, pattern(7, 100))
    with pytest.raises(PeerRefused):
        stream.copy_across(here, 0, there, 0, 100)
    gpu.enable_peer(peer)
    stream.copy_across(here, 0, there, 0, 100)
    assert (read(stream, here, 0, 100) == pattern(7, 100)).all()
    machine._peers = False
    assert not peer.can_reach(gpu.uuid)
    with pytest.raises(PeerRefused):
        peer.enable_peer(gpu)


def test_a_block_is_opened_once_whoever_asks(machine: FakeMachine) -> None:
    gpu = FakeGpu(machine, machine.uuids[0])
    with OtherProcess(gpu) as other, OpenedBlocks() as opened:
        handle = other.allocate(8, 4096)
        one, two = opened.hold(gpu, handle), opened.hold(gpu, handle)
        assert one is two
        assert gpu.counters.opens == 1
        opened.let_go(handle)
        assert (read(gpu.stream(), one, 0, 4096) == pattern(8, 4096)).all()
        opened.let_go(handle)
        opened.let_go(handle)
        with pytest.raises(Closed):
            _ = one.address
        opened.hold(gpu, handle)
        assert gpu.counters.opens == 2
        with pytest.raises(HandleRefused, match=machine.uuids[1]):
            opened.hold(FakeGpu(machine, machine.uuids[1]), handle)
        other.kill()
        with pytest.raises(OwnerLost):
            opened.check(handle)
        with pytest.raises(OwnerLost):
            opened.hold(gpu, handle)
        opened.check(replace(handle, owner=replace(handle.owner, pid_namespace="another")))
    with pytest.raises(Closed):
        opened.hold(gpu, replace(handle, owner=replace(handle.owner, pid_namespace="another")))


def test_two_clients_of_a_process_have_a_block_open_together(machine: FakeMachine) -> None:
    one, two = (FakeGpu(machine, machine.uuids[0]) for _ in range(2))
    with OtherProcess(one) as other:
        handle = other.allocate(8, 4096)
        first, second = OpenedBlocks(), OpenedBlocks()
        block = first.hold(one, handle)
        assert second.hold(two, handle) is block
        assert (one.counters.opens, two.counters.opens) == (1, 0)
        with pytest.raises(HandleRefused, match="open already"):
            two.open(handle)
        first.close()
        first.close_device(one)  # which has opened it
        assert one.stream() is not None
        assert (read(two.stream(), block, 0, 4096) == pattern(8, 4096)).all()
        second.close()
        second.close_device(two)
        for gpu in (one, two):
            with pytest.raises(Closed):
                gpu.stream()
        with pytest.raises(Closed):
            _ = block.address
