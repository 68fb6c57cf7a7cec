"""The range allocator against a naive map of bytes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transferqueue.memory.allocator import (
    ALIGN_BYTES,
    PAGE_ALIGN_FROM_BYTES,
    PAGE_BYTES,
    RangeAllocator,
    extent_of,
    extents,
)

KIB = 1024


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_ranges_start_at_64_bytes_and_are_padded_to_64_bytes() -> None:
    allocator = RangeAllocator(4 * KIB)
    first, second = allocator.alloc(100), allocator.alloc(1)
    assert first is not None
    assert second is not None
    assert (first.address, first.nbytes) == (0, 128)
    assert (second.address, second.nbytes) == (128, 64)
    assert allocator.used_bytes == 192


def test_large_ranges_have_their_pages_to_themselves() -> None:
    allocator = RangeAllocator(4 << 20)
    small = allocator.alloc(100)
    large = allocator.alloc(PAGE_ALIGN_FROM_BYTES + 1)
    assert small is not None
    assert large is not None
    assert large.address % PAGE_BYTES == 0
    assert large.nbytes == PAGE_ALIGN_FROM_BYTES + PAGE_BYTES
    other = allocator.alloc(100)
    assert other is not None
    assert other.address == small.nbytes  # the sliver before the large range is not lost


def test_zero_bytes_take_no_space() -> None:
    allocator = RangeAllocator(0)
    empty = allocator.alloc(0)
    assert empty is not None
    assert (empty.address, empty.nbytes) == (0, 0)
    allocator.free(0, 0)
    assert allocator.largest_free == 0
    assert allocator.fragmentation == 0.0


def test_a_range_may_fill_the_whole_arena_and_come_back_row_by_row() -> None:
    allocator = RangeAllocator(64 * 100)
    whole = allocator.alloc(64 * 100)
    assert whole is not None
    assert allocator.alloc(1) is None
    rows = np.random.default_rng(0).permutation(64) * 100
    allocator.free_many(rows[:63].astype(np.int64), np.full(63, 100, np.int64))
    assert allocator.used_bytes == 100
    allocator.free_many(rows[63:].astype(np.int64), ints(100))
    assert allocator.used_bytes == 0
    assert allocator.num_free_ranges == 1
    assert allocator.largest_free == 6400


def test_used_memory_is_taken_before_memory_that_was_never_touched() -> None:
    allocator = RangeAllocator(1 << 20)
    first = allocator.alloc(1000)
    keep = allocator.alloc(64)
    assert first is not None
    assert keep is not None
    frontier = allocator.frontier
    allocator.free(first.address, first.nbytes)
    again = allocator.alloc(900)
    assert again is not None
    assert again.address == first.address
    assert allocator.frontier == frontier


def test_the_smallest_range_that_fits_is_taken() -> None:
    allocator = RangeAllocator(1 << 16)
    addresses = allocator.alloc_many([1024, 64, 256, 64, 512, 64])
    assert addresses is not None
    for at, size in ((0, 1024), (2, 256), (4, 512)):
        allocator.free(int(addresses[at]), size)
    got = allocator.alloc(300)
    assert got is not None
    assert got.address == addresses[4]


def test_a_page_aligned_request_passes_over_ranges_that_begin_badly() -> None:
    size = PAGE_ALIGN_FROM_BYTES
    allocator = RangeAllocator(8 * size)
    addresses = allocator.alloc_many([size + PAGE_BYTES, size, size + PAGE_BYTES, size])
    assert addresses is not None
    # Room for `size` bytes at 64 B but not at a page, and then one that has it.
    allocator.free(int(addresses[0]) + 64, size)
    allocator.free(int(addresses[2]), size + PAGE_BYTES)
    got = allocator.alloc(size)
    assert got is not None
    assert got.address == addresses[2]


def test_many_ranges_are_all_given_or_none() -> None:
    allocator = RangeAllocator(4096)
    held = allocator.alloc(1024)
    assert held is not None
    allocator.free(held.address, 512)
    before = (allocator.used_bytes, allocator.frontier, *map(list, allocator.free_ranges()))
    assert allocator.alloc_many([256, 256, 1024, 4096]) is None
    assert before == (
        allocator.used_bytes,
        allocator.frontier,
        *map(list, allocator.free_ranges()),
    )
    assert allocator.alloc_many([256, 256, 3072]) is not None
    assert allocator.free_bytes == 0


@pytest.mark.parametrize("count", [1, 100])
def test_freeing_bytes_twice_is_refused_and_changes_nothing(count: int) -> None:
    allocator = RangeAllocator(1 << 20)
    whole = allocator.alloc(128 * count)
    assert whole is not None
    spread = np.arange(count, dtype=np.int64) * 128
    allocator.free_many(spread, np.full(count, 10, np.int64))
    before = (allocator.used_bytes, list(allocator.free_ranges()[0]))
    with pytest.raises(ValueError, match="free already"):
        allocator.free_many(spread + 5, np.full(count, 10, np.int64))
    with pytest.raises(ValueError, match="named twice"):
        allocator.free_many(ints(64, 70), ints(10, 10))
    with pytest.raises(ValueError, match="ever given out"):
        allocator.free(whole.nbytes - 1, 2)
    with pytest.raises(ValueError, match="negative"):
        allocator.free(0, -1)
    assert before == (allocator.used_bytes, list(allocator.free_ranges()[0]))


def test_an_arena_is_taken_up_again_with_what_was_in_use() -> None:
    allocator = RangeAllocator.from_used(4096, ints(1024, 64), ints(100, 64))
    assert allocator.used_bytes == 164
    assert allocator.frontier == 1124
    starts, ends = allocator.free_ranges()
    assert list(zip(starts, ends, strict=True)) == [(0, 64), (128, 1024)]
    allocator.free_many(ints(64, 1024), ints(64, 100))
    assert allocator.largest_free == 4096
    assert RangeAllocator.from_used(64, ints(), ints()).used_bytes == 0
    with pytest.raises(ValueError, match="named twice"):
        RangeAllocator.from_used(4096, ints(0, 32), ints(64, 64))
    with pytest.raises(ValueError, match="outside"):
        RangeAllocator.from_used(4096, ints(4090), ints(64))


def test_extents_agree_for_one_and_for_many() -> None:
    edge = PAGE_ALIGN_FROM_BYTES
    sizes = [0, 1, 64, 65, 4096, edge - 64, edge - 63, edge - 1, edge, edge + 1, 1 << 33]
    assert extents(sizes).tolist() == [extent_of(size) for size in sizes]


def test_freeing_costs_the_same_number_of_calls_for_any_number_of_pieces() -> None:
    def calls_to_free(pieces: int) -> int:
        allocator = RangeAllocator(pieces * 256)
        allocator.alloc(pieces * 256)
        rows = np.arange(pieces, dtype=np.int64) * 256
        sizes = np.full(pieces, 100, np.int64)
        calls = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            allocator.free_many(rows, sizes)
        finally:
            sys.setprofile(None)
        return calls

    assert calls_to_free(1_000) == calls_to_free(100_000)


CAPACITY = 3 * PAGE_ALIGN_FROM_BYTES + 1000


class AllocatorAgainstByteMap(RuleBasedStateMachine):
    """Every answer is checked against one flag a byte."""

    @initialize(capacity=st.sampled_from([0, 640, 5000, CAPACITY]))
    def start(self, capacity: int) -> None:
        self.allocator = RangeAllocator(capacity)
        self.used = np.zeros(capacity, np.bool_)
        self.ranges: list[tuple[int, int]] = []

    def take(self, address: int, nbytes: int) -> None:
        extent = extent_of(nbytes)
        assert address % (PAGE_BYTES if extent >= PAGE_ALIGN_FROM_BYTES else ALIGN_BYTES) == 0
        assert address + extent <= len(self.used)
        assert not self.used[address : address + extent].any()
        self.used[address : address + extent] = True
        if extent:
            self.ranges.append((address, extent))

    sizes = st.one_of(
        st.integers(0, 700),
        st.integers(PAGE_ALIGN_FROM_BYTES - 70, PAGE_ALIGN_FROM_BYTES + 5000),
    )

    @rule(nbytes=sizes)
    def alloc(self, nbytes: int) -> None:
        largest = self.allocator.largest_free
        got = self.allocator.alloc(nbytes)
        if got is None:
            assert nbytes > largest
            return
        assert nbytes <= largest
        assert got.nbytes == extent_of(nbytes)
        self.take(got.address, nbytes)

    @rule(sizes=st.lists(sizes, max_size=12))
    def alloc_many(self, sizes: list[int]) -> None:
        before = self.snapshot()
        addresses = self.allocator.alloc_many(sizes)
        if addresses is None:
            assert self.snapshot() == before
            return
        for address, nbytes in zip(addresses.tolist(), sizes, strict=True):
            self.take(address, nbytes)

    @rule(data=st.data(), pieces=st.integers(1, 20))
    def free_pieces(self, data: st.DataObject, pieces: int) -> None:
        starts, sizes = [], []
        for _ in range(min(pieces, len(self.ranges))):
            address, nbytes = self.ranges.pop(data.draw(st.integers(0, len(self.ranges) - 1)))
            low = data.draw(st.integers(0, nbytes))
            high = data.draw(st.integers(low, nbytes))
            starts.append(address + low)
            sizes.append(high - low)
            self.used[address + low : address + high] = False
            if low:
                self.ranges.append((address, low))
            if high < nbytes:
                self.ranges.append((address + high, nbytes - high))
        self.allocator.free_many(ints(*starts), ints(*sizes))

    @rule()
    def free_all(self) -> None:
        starts, sizes = zip(*self.ranges, strict=True) if self.ranges else ((), ())
        self.allocator.free_many(ints(*starts), ints(*sizes))
        self.used[:] = False
        self.ranges = []
        assert self.allocator.num_free_ranges <= 1

    @rule(start=st.integers(0, 400_000), nbytes=st.integers(1, 100_000))
    def ask(self, start: int, nbytes: int) -> None:
        is_free = self.allocator.is_free(start, start + nbytes)
        assert is_free == (not self.used[start : start + nbytes].any())

    @rule()
    def restart(self) -> None:
        starts, sizes = zip(*self.ranges, strict=True) if self.ranges else ((), ())
        self.allocator = RangeAllocator.from_used(len(self.used), ints(*starts), ints(*sizes))

    @rule(data=st.data())
    def free_again(self, data: st.DataObject) -> None:
        free = np.flatnonzero(~self.used)
        if len(free):
            at = int(free[data.draw(st.integers(0, len(free) - 1))])
            before = self.snapshot()
            with pytest.raises(ValueError, match="free"):
                self.allocator.free(at, 1)
            assert self.snapshot() == before

    def snapshot(self) -> tuple[object, ...]:
        starts, ends = self.allocator.free_ranges()
        return (
            self.allocator.used_bytes,
            self.allocator.frontier,
            starts.tolist(),
            ends.tolist(),
            self.allocator.largest_free,
        )

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "allocator"):
            return
        allocator = self.allocator
        assert allocator.used_bytes == int(self.used.sum())
        assert allocator.free_bytes == int((~self.used).sum())
        starts, ends = allocator.free_ranges()
        expected = ~self.used[: allocator.frontier]
        seen = np.zeros(allocator.frontier, np.bool_)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            assert start < end
            assert not seen[start:end].any()
            seen[start:end] = True
        assert (seen == expected).all()
        assert bool((starts[1:] > ends[:-1]).all()), "touching ranges were not merged"
        assert not self.used[allocator.frontier :].any()


AllocatorAgainstByteMap.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestAllocatorAgainstByteMap = AllocatorAgainstByteMap.TestCase
