"""The device contract as checks that any implementation can run.

::

    from transferqueue.testing import check_device

    def test_my_device() -> None:
        check_device(lambda: find_device("npu:0"))

Each check makes devices of its own through ``maker``, always the same device, and closes them. A
second process finds it by its ``name``, so `find_device` must know its kind.
"""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import (
    Closed,
    DeviceFull,
    HandleRefused,
    OwnerLost,
    PeerRefused,
    PinningRefused,
)
from transferqueue.testing.broken import ContractBroken, expect
from transferqueue.testing.device_probe import (
    BLOCK_BYTES,
    DeviceCheck,
    DeviceMaker,
    OtherFailed,
    OtherProcess,
    block_of,
    pattern,
    read,
    write,
)
from transferqueue.testing.leaks import Leaked, no_leaks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DEVICE_CHECKS", "check_device"]


def check_device(maker: DeviceMaker) -> None:
    """Run every check. `ContractBroken` names the first that fails."""
    for check in DEVICE_CHECKS:
        try:
            with no_leaks():
                check(maker)
        except (ContractBroken, Leaked) as broken:
            raise ContractBroken(f"{check.__name__}: {broken}") from broken


def a_device_is_named_by_its_uuid(maker: DeviceMaker) -> None:
    with maker() as one, maker() as two:
        expect(one.uuid, "it has no uuid")
        expect((one.uuid, one.name) == (two.uuid, two.name), "made twice, it is two devices")
        expect(one.name.endswith(one.uuid), f"its name {one.name!r} is not by its uuid")
        expect(one.can_reach(one.uuid), "it does not reach itself")


def bytes_go_in_and_come_out(maker: DeviceMaker) -> None:
    with block_of(maker) as (_, block, stream):
        data = pattern(1, BLOCK_BYTES)
        write(stream, block, 0, data)
        for low, high in ((0, BLOCK_BYTES), (1, 2), (4095, 70_001), (BLOCK_BYTES - 1, BLOCK_BYTES)):
            expect((read(stream, block, low, high - low) == data[low:high]).all(), "other bytes")
        write(stream, block, 777, data[:5])
        expect((read(stream, block, 776, 7) == data[[776, 0, 1, 2, 3, 4, 782]]).all(), "spilt")


def copies_of_one_stream_are_in_order(maker: DeviceMaker) -> None:
    with block_of(maker) as (_, block, stream):
        first, second = pattern(2, 100_000), pattern(3, 100_000)
        out, again = np.zeros(100_000, np.uint8), np.zeros(100_000, np.uint8)
        stream.copy_in(block, 0, first.data)
        stream.copy_across(block, 200_000, block, 0, 100_000)
        stream.copy_in(block, 0, second.data)
        stream.copy_out(block, 200_000, out.data)
        stream.copy_out(block, 0, again.data)
        stream.synchronize()
        expect((out == first).all(), "a copy was overtaken by a later one")
        expect((again == second).all(), "a copy came before an earlier one")


def an_event_is_done_when_all_before_it_is(maker: DeviceMaker) -> None:
    with block_of(maker) as (_, block, stream):
        data, out = pattern(4, 300_000), np.zeros(300_000, np.uint8)
        stream.copy_in(block, 0, data.data)
        stream.copy_out(block, 0, out.data)
        event = stream.record()
        event.wait()
        expect(event.is_done(), "it was waited for and is not done")
        expect((out == data).all(), "the event came before the copies that it is after")


def a_stream_waits_for_an_event_of_another(maker: DeviceMaker) -> None:
    with block_of(maker) as (device, block, stream), device.stream() as other:
        data, out = pattern(5, 300_000), np.zeros(300_000, np.uint8)
        stream.copy_in(block, 0, data.data)
        other.wait_for(stream.record())
        other.copy_out(block, 0, out.data)
        other.synchronize()
        expect((out == data).all(), "the second stream did not wait for the first")


def bytes_outside_of_a_block_are_refused(maker: DeviceMaker) -> None:
    with block_of(maker) as (_, block, stream):
        host = np.zeros(16, np.uint8).data
        end = BLOCK_BYTES - 8
        calls: list[Callable[[], object]] = [
            lambda: stream.copy_in(block, end, host),
            lambda: stream.copy_out(block, end, host),
            lambda: stream.copy_in(block, -1, host),
            lambda: stream.copy_across(block, end, block, 0, 16),
            lambda: stream.copy_across(block, 0, block, end, 16),
            lambda: stream.copy_out(block, 0, host.toreadonly()),
        ]
        for number, call in enumerate(calls):
            _expect_raises(call, ValueError, f"call {number}")
        stream.synchronize()


def memory_that_is_not_there_is_refused(maker: DeviceMaker) -> None:
    with maker() as device:
        room = device.room
        expect(0 < room.free_bytes <= room.total_bytes, f"{room}")
        _expect_raises(lambda: device.allocate(room.total_bytes + 1), DeviceFull, "too much")
        _expect_raises(lambda: device.allocate(0), ValueError, "nothing")
        with device.allocate(BLOCK_BYTES):
            pass


def memory_comes_back_when_it_is_closed(maker: DeviceMaker) -> None:
    with maker() as device:
        size = min(device.room.free_bytes // 3, 256 << 20)
        for turn in range(8):
            try:
                block = device.allocate(size)
            except DeviceFull as error:
                raise ContractBroken(f"after {turn} blocks that were closed: {error}") from error
            block.close()
            block.close()
            _expect_raises(lambda block=block: block.address, Closed, "address")  # type: ignore[misc]


def another_process_reads_and_writes_what_it_is_shown(maker: DeviceMaker) -> None:
    with block_of(maker) as (device, block, stream):
        data = pattern(6, BLOCK_BYTES)
        write(stream, block, 0, data)
        handle = device.export(block)
        expect(device.export(block) == handle, "a block has two handles")
        _expect_raises(lambda: device.open(handle), HandleRefused, "its own export")
        with OtherProcess(device) as other:
            plain = handle.to_plain()
            expect(other.ask("open", handle=plain) == BLOCK_BYTES, "opened, it has another size")
            got = bytes.fromhex(other.ask("read", offset=1000, nbytes=5000))
            expect(got == data[1000:6000].tobytes(), "it reads other bytes")
            _expect_other(other, "HandleRefused", "open", handle=plain)
            _expect_other(other, "ValueError", "export")
            _expect_other(other, "ValueError", "read", offset=BLOCK_BYTES, nbytes=1)
            other.ask("write", offset=77, seed=7, nbytes=1000)
            expect((read(stream, block, 77, 1000) == pattern(7, 1000)).all(), "it wrote elsewhere")
            other.ask("let_go")
            other.ask("open", handle=plain)
            wrong = replace(handle, uuid="GPU-of-another-host").to_plain()
            _expect_other(other, "HandleRefused", "open", handle=wrong)
        expect((read(stream, block, 0, 77) == data[:77]).all(), "a reader took the memory along")


def memory_of_a_process_that_ended_is_lost(maker: DeviceMaker) -> None:
    with maker() as device, device.stream() as stream:
        with OtherProcess(device) as other:
            handle = other.allocate(8, 100_000)
            opened = device.open(handle)
            expect(not opened.is_own, "memory of another process is not its own")
            expect((read(stream, opened, 0, 100_000) == pattern(8, 100_000)).all(), "other bytes")
            _expect_raises(lambda: device.open(handle), HandleRefused, "open already")
            opened.close()
        _expect_raises(lambda: device.open(handle), OwnerLost, "of a process that ended")


def host_memory_is_page_locked_or_that_is_refused(maker: DeviceMaker) -> None:
    with block_of(maker) as (device, block, stream):
        host = np.zeros(BLOCK_BYTES + 8192, np.uint8)
        first = -host.ctypes.data % 4096
        pages = host[first : first + BLOCK_BYTES]
        pages[:] = pattern(9, BLOCK_BYTES)
        with contextlib.suppress(PinningRefused), device.register(pages.data) as registration:
            write(stream, block, 0, pages)
            registration.close()
        write(stream, block, 0, pages)
        expect((read(stream, block, 0, BLOCK_BYTES) == pages).all(), "other bytes")


def a_tensor_of_torch_is_copied_to_and_frees_itself(maker: DeviceMaker) -> None:
    with block_of(maker) as (device, block, stream):
        data = pattern(10, 100_000)
        write(stream, block, 500, data)
        for _ in range(20):  # more than a small device has room for at once
            tensor, where = device.new_tensor(min(100_000, BLOCK_BYTES))
            stream.wait_for(device.after_torch())
            stream.copy_across(where, 0, block, 500, 100_000)
            stream.synchronize()
        expect(tensor.cpu().numpy().tobytes() == data.tobytes(), "the tensor has other bytes")
        expect(not where.is_own, "what torch frees is said to be the device's own")
        expect(len(device.new_tensor(0)[0]) == 0, "an empty tensor has bytes")


def a_tensor_of_torch_is_found_and_copied_from(maker: DeviceMaker) -> None:
    with block_of(maker) as (device, block, stream):
        tensor, where = device.new_tensor(100_000)
        found = device.tensor_block(tensor)
        expect(found is not None, "a tensor that it made is not on it")
        assert found is not None
        expect((found.address, found.nbytes) == (where.address, 100_000), "it is elsewhere")
        expect(not found.is_own, "what torch frees is said to be the device's own")
        part = device.tensor_block(tensor[77:177])
        expect(part is not None and part.address == where.address + 77, "a part is elsewhere")
        tensor.fill_(11)
        stream.wait_for(device.after_torch())
        stream.copy_across(block, 5, found, 0, 100_000)
        stream.synchronize()
        expect((read(stream, block, 5, 100_000) == 11).all(), "a copy came before torch was done")


def a_tensor_of_torch_is_memory_of_a_block(maker: DeviceMaker) -> None:
    with block_of(maker) as (device, block, stream):
        write(stream, block, 1000, pattern(12, 5000))
        keep = ContractBroken("kept")
        seen = weakref.ref(keep)
        tensor = device.tensor_over(block, 1000, 5000, keep)
        expect(tensor.cpu().numpy().tobytes() == pattern(12, 5000).tobytes(), "other bytes")
        write(stream, block, 1000, pattern(13, 5000))
        part = tensor[8:16].view(torch_float())
        expect(part.cpu().numpy().tobytes() == pattern(13, 5000)[8:16].tobytes(), "it is a copy")
        del keep, tensor
        expect(seen() is not None, "what a tensor keeps went before it")
        del part
        expect(seen() is None, "what a tensor keeps outlives it")
        _expect_raises(
            lambda: device.tensor_over(block, BLOCK_BYTES, 1, None), ValueError, "outside"
        )


def torch_float() -> Any:
    import torch

    return torch.float32


def a_device_reaches_itself_and_no_stranger(maker: DeviceMaker) -> None:
    with maker() as device, maker() as same:
        device.enable_peer(same)
        device.enable_peer(same)
        same.uuid = "GPU-of-another-host"
        expect(not device.can_reach(same.uuid), "it says that it reaches another host's")
        _expect_raises(lambda: device.enable_peer(same), PeerRefused, "a stranger")


def a_closed_device_says_so(maker: DeviceMaker) -> None:
    device = maker()
    device.close()
    device.close()
    calls: list[Callable[[], object]] = [
        lambda: device.room,
        lambda: device.allocate(1),
        lambda: device.stream(),
        lambda: device.register(np.zeros(4096, np.uint8).data),
    ]
    for number, call in enumerate(calls):
        _expect_raises(call, Closed, f"call {number}")


def _expect_raises(call: Callable[[], object], error: type[Exception], what: str) -> None:
    try:
        call()
    except error:
        return
    expect(False, f"{what} did not raise {error.__name__}")


def _expect_other(other: OtherProcess, error: str, what: str, **arguments: object) -> None:
    try:
        other.ask(what, **arguments)
    except OtherFailed as failed:
        expect(failed.error == error, f"{what} in another process: {failed}, not {error}")
        return
    expect(False, f"{what} in another process did not raise {error}")


DEVICE_CHECKS: list[DeviceCheck] = [
    a_device_is_named_by_its_uuid,
    bytes_go_in_and_come_out,
    copies_of_one_stream_are_in_order,
    an_event_is_done_when_all_before_it_is,
    a_stream_waits_for_an_event_of_another,
    bytes_outside_of_a_block_are_refused,
    memory_that_is_not_there_is_refused,
    memory_comes_back_when_it_is_closed,
    another_process_reads_and_writes_what_it_is_shown,
    memory_of_a_process_that_ended_is_lost,
    host_memory_is_page_locked_or_that_is_refused,
    a_tensor_of_torch_is_copied_to_and_frees_itself,
    a_tensor_of_torch_is_found_and_copied_from,
    a_tensor_of_torch_is_memory_of_a_block,
    a_device_reaches_itself_and_no_stranger,
    a_closed_device_says_so,
]
