"""The ring between host memory and a device."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transferqueue.devices.fake_gpu import FakeGpu
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.devices.staging import Staging
from transferqueue.errors import Closed, DeviceStuck
from transferqueue.testing.device_probe import pattern

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.devices.base import DeviceBlock

NBYTES = 1_000_000


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine.create(tmp_path, num_gpus=1, memory_bytes=4 << 20)


@pytest.fixture
def gpu(machine: FakeMachine) -> Iterator[FakeGpu]:
    with FakeGpu(machine, machine.uuids[0]) as gpu:
        yield gpu


@pytest.fixture
def block(gpu: FakeGpu) -> Iterator[DeviceBlock]:
    with gpu.allocate(NBYTES) as block:
        yield block


def there(pieces: Iterator[np.ndarray | None]) -> Iterator[np.ndarray]:
    """Without the times when the next one is not there yet."""
    return (piece for piece in pieces if piece is not None)


def test_bytes_go_through_chunks_that_are_locked_once(gpu: FakeGpu, block: DeviceBlock) -> None:
    data, out = pattern(1, NBYTES), np.zeros(NBYTES, np.uint8)
    with Staging(gpu, chunk_bytes=64 << 10, num_chunks=3) as staging:
        staging.copy_in(block, 0, data.data)
        staging.copy_out(block, 0, out.data)
        assert len(gpu.counters.registered) == 1
        assert gpu.counters.events_live <= 3
    assert (out == data).all()
    assert (gpu.counters.bytes_pinned, gpu.counters.bytes_pageable) == (2 * NBYTES, 0)
    assert gpu.counters.registered == {}


def test_the_source_may_change_as_soon_as_the_call_returns(
    gpu: FakeGpu, block: DeviceBlock
) -> None:
    data, out = pattern(2, NBYTES), np.zeros(NBYTES, np.uint8)
    kept = data.copy()
    with Staging(gpu, chunk_bytes=64 << 10, num_chunks=4) as staging:
        staging.copy_in(block, 0, data.data)
        data[:] = 0
        staging.flush()
        staging.copy_out(block, 0, out.data)
    assert (out == kept).all()


def test_ranges_come_one_after_the_other(gpu: FakeGpu, block: DeviceBlock) -> None:
    data = pattern(3, NBYTES)
    ranges = [(900_000, 100_000), (0, 70_000), (500, 0), (77, 3)]
    out = np.zeros(170_003, np.uint8)
    with Staging(gpu, chunk_bytes=32 << 10, num_chunks=2) as staging:
        staging.copy_in(block, 0, data.data)
        staging.copy_ranges_out(block, ranges, out.data)
    assert out.tobytes() == b"".join(data[at : at + n].tobytes() for at, n in ranges)


def test_where_pinning_is_refused_it_works_and_says_so_once(
    gpu: FakeGpu, block: DeviceBlock, machine: FakeMachine, caplog: pytest.LogCaptureFixture
) -> None:
    data, out = pattern(4, NBYTES), np.zeros(NBYTES, np.uint8)
    with (
        machine.fault(Fault.REFUSE_PINNING),
        caplog.at_level(logging.WARNING),
        Staging(gpu, chunk_bytes=64 << 10) as staging,
    ):
        assert not staging.is_pinned
        staging.copy_in(block, 0, data.data)
        staging.copy_out(block, 0, out.data)
    assert (out == data).all()
    (record,) = caplog.records
    assert "ulimit -l" in record.getMessage()


def test_a_chunk_is_not_used_again_while_the_device_may_write_to_it(
    gpu: FakeGpu, block: DeviceBlock, machine: FakeMachine
) -> None:
    data, out = pattern(5, 100_000), np.zeros(100_000, np.uint8)
    with Staging(gpu, chunk_bytes=64 << 10, num_chunks=2, timeout_s=0.1) as staging:
        staging.copy_in(block, 0, data.data)
        with machine.fault(Fault.STUCK):
            for _ in range(2):
                with pytest.raises(DeviceStuck):
                    staging.copy_out(block, 0, out.data)
            with pytest.raises(DeviceStuck):
                staging.flush()
        staging.copy_out(block, 0, out.data)
        assert (out == data).all()
    with pytest.raises(Closed):
        staging.copy_in(block, 0, data.data)


def test_the_device_copies_ahead_of_who_takes_the_pieces(
    gpu: FakeGpu, block: DeviceBlock, machine: FakeMachine
) -> None:
    """While one piece is on its way over a wire, the next ones come; never more than the ring."""
    data = pattern(5, NBYTES)
    with Staging(gpu, chunk_bytes=64 << 10, num_chunks=3) as staging:
        staging.copy_in(block, 0, data.data)
        staging.flush()
        given: list[int] = []

        def pieces() -> Iterator[list[tuple[int, int]]]:
            for low in range(0, 640_000, 64_000):
                given.append(low)
                yield [(low, 1000), (low + 2000, 50_000)]

        taken = there(staging.pieces_out(block, pieces()))
        first = next(taken)
        assert len(given) == 4
        rest = list(taken)
        assert gpu.counters.events_live <= 3
    for low, piece in zip(given, [first, *rest], strict=True):
        wanted = np.concatenate([data[low : low + 1000], data[low + 2000 : low + 52_000]])
        assert (piece == wanted).all()
    assert gpu.counters.bytes_pageable == 0


def test_what_was_taken_stays_as_it_is(gpu: FakeGpu, block: DeviceBlock) -> None:
    data = pattern(6, NBYTES)
    with Staging(gpu, chunk_bytes=64 << 10, num_chunks=2) as staging:
        staging.copy_in(block, 0, data.data)
        pieces = [[(low, 50_000)] for low in range(0, NBYTES, 50_000)]
        taken = list(there(staging.pieces_out(block, pieces)))
    assert np.concatenate(taken).tobytes() == data.tobytes()


def test_who_takes_pieces_is_told_that_the_next_is_not_there_and_does_not_wait(
    gpu: FakeGpu, block: DeviceBlock
) -> None:
    data = pattern(7, NBYTES)
    with Staging(gpu, chunk_bytes=64 << 10, num_chunks=2) as staging:
        staging.copy_in(block, 0, data.data)
        staging.flush()
        taken = staging.pieces_out(block, [[(0, 100)], [(500, 100)]])
        with gpu.held():
            assert [next(taken) for _ in range(3)] == [None, None, None]
        assert [piece.tobytes() for piece in there(taken)] == [
            data[:100].tobytes(),
            data[500:600].tobytes(),
        ]


def test_lent_pieces_are_memory_of_the_ring_and_the_next_ones_are_under_way(
    gpu: FakeGpu, block: DeviceBlock
) -> None:
    data = pattern(8, NBYTES)
    with Staging(gpu, chunk_bytes=50_000, num_chunks=3) as staging:
        staging.copy_in(block, 0, data.data)
        staging.flush()
        given: list[int] = []

        def pieces() -> Iterator[list[tuple[int, int]]]:
            for low in range(0, NBYTES, 50_000):
                given.append(low)
                yield [(low, 50_000)]

        lows = iter(range(0, NBYTES, 50_000))
        for low, piece in zip(lows, staging.lent_out(block, pieces()), strict=True):
            assert piece.tobytes() == data[low : low + 50_000].tobytes()
            assert given[-1] >= min(low + 2 * 50_000, NBYTES - 50_000)
    assert gpu.counters.bytes_pageable == 0


def test_one_chunk_is_copied_to_several_places(gpu: FakeGpu, block: DeviceBlock) -> None:
    data, out = pattern(9, 100_000), np.zeros(NBYTES, np.uint8)
    ranges = [(900_000, 70_000), (0, 10_000), (500_000, 0), (20_000, 20_000)]
    with Staging(gpu, chunk_bytes=32 << 10, num_chunks=2) as staging:
        staging.copy_in(block, 0, out.data)
        staging.copy_ranges_in(block, ranges, data.data)
        staging.copy_out(block, 0, out.data)
        assert gpu.counters.events_live <= 2
    expected, at = np.zeros(NBYTES, np.uint8), 0
    for start, size in ranges:
        expected[start : start + size] = data[at : at + size]
        at += size
    assert (out == expected).all()


def test_small_copies_share_a_chunk_and_its_event(gpu: FakeGpu, block: DeviceBlock) -> None:
    data, out = pattern(10, NBYTES), np.zeros(NBYTES, np.uint8)
    with Staging(gpu, chunk_bytes=64 << 10, num_chunks=3) as staging:
        for low in range(0, 100_000, 100):
            staging.copy_in(block, low, data[low : low + 100].data)
        assert gpu.counters.events_live == 1
        assert staging.has_room
        staging.flush()
        staging.copy_each_out((block, low, out[low : low + 77]) for low in range(0, 100_000, 100))
        assert gpu.counters.events_live <= 3
    at = np.arange(100_000) % 100 < 77
    assert (out[:100_000][at] == data[:100_000][at]).all()
    assert not out[:100_000][~at].any()


@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_copied_after_one_another_is_right(
    gpu: FakeGpu, block: DeviceBlock, data: st.DataObject
) -> None:
    """The device comes to a copy long after it was given."""
    dice = np.random.default_rng(data.draw(st.integers(0, 100)))
    with Staging(gpu, chunk_bytes=1000, num_chunks=data.draw(st.integers(2, 4))) as staging:
        whole = dice.integers(0, 256, 20_000, np.uint8)
        staging.copy_in(block, 0, whole.data)
        for _ in range(data.draw(st.integers(1, 12))):
            start = data.draw(st.integers(0, 15_000))
            nbytes = data.draw(st.sampled_from([1, 10, 400, 999, 1000, 1001, 4000]))
            part = dice.integers(0, 256, nbytes, np.uint8)
            what = data.draw(st.sampled_from(["in", "out", "chunk", "flush", "lent"]))
            if what == "in":
                staging.copy_in(block, start, part.data)
                whole[start : start + nbytes] = part
                part[:] = 0
            elif what == "chunk":
                part = part[:1000]
                with staging.chunk(len(part)) as memory:
                    memory[:] = part
                    staging.copy_chunk_in(block, [(start, len(part))], memory)
                whole[start : start + len(part)] = part
            elif what == "out":
                staging.copy_out(block, start, part.data)
                assert (part == whole[start : start + nbytes]).all()
            elif what == "lent":
                (lent,) = staging.lent_out(block, [[(start, min(nbytes, 1000))]])
                assert lent.tobytes() == whole[start : start + min(nbytes, 1000)].tobytes()
            else:
                staging.flush()
        out = np.zeros(20_000, np.uint8)
        staging.copy_out(block, 0, out.data)
        assert (out == whole).all()


FORKED = """
import os, sys
from transferqueue.devices.host import HostDevice
from transferqueue.devices.staging import Staging
from pathlib import Path

def is_there(address):
    maps = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(low, 16) <= address < int(high, 16) for low, high in maps)

staging = Staging(HostDevice())
at = staging._ring[0].memory.ctypes.data
assert is_there(at)
pid = os.fork()
if not pid:
    os._exit(is_there(at))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_does_not_share_the_ring_which_would_part_it_from_the_device() -> None:
    assert subprocess.run([sys.executable, "-c", FORKED]).returncode == 0
