"""Which bytes of an arena are free.

An arena is one flat address space ``[0, capacity_bytes)``; the file segments behind it are the
backend's affair, so a range may be larger than a segment. A range is given out as a whole and may
come back in any pieces, at any byte boundaries: clearing 63 of 64 rows returns 63/64 of the bytes.

Invariant: every byte is either used, in exactly one free range, or above the *frontier*; free
ranges are disjoint, never touch one another, and lie below the frontier. Bytes above the frontier
were never given out. They are taken only when no range below it fits, because a page that was
never touched costs about ten times as much to write as one that was.

Two alignments. Slabs under ``PAGE_ALIGN_FROM_BYTES`` start at 64 B and are padded to 64 B. Larger
ones start at a page and are padded to whole pages, so no page holds bytes of two large slabs:
readers map large slabs copy-on-write, and an edit to one must not freeze a stale copy of a
neighbour's bytes. The padding is at most 1/64 of a slab. With ``whole_pages`` every range is of the
second kind: then no page ever holds bytes of two slabs, which is what page checksums need.

Free ranges are kept in two orders, by address (coalescing) and by aligned size (best fit), so a
lookup is a binary search. A bulk free is one numpy sort and one merge, whatever the number of
pieces; the size order is rebuilt at the next ``alloc``.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.memory.free_ranges import FreeRanges, align_up, merge_adjacent, room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]

ALIGN_BYTES = 64
PAGE_BYTES = mmap.PAGESIZE
"""4 KiB, or 64 KiB on some ARM hosts."""
PAGE_ALIGN_FROM_BYTES = 64 * PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """``nbytes`` bytes from ``address`` on; ``nbytes`` includes the padding."""

    address: int
    nbytes: int


class RangeAllocator:
    """Gives out byte ranges of one arena, best fit first. Pure: no memory is touched here.

    ``used_bytes`` counts every byte given out and not yet freed, padding included.
    """

    def __init__(self, capacity_bytes: int, *, whole_pages: bool = False) -> None:
        if capacity_bytes < 0:
            raise ValueError(f"capacity_bytes must be >= 0, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self._page_from = 1 if whole_pages else PAGE_ALIGN_FROM_BYTES
        self.frontier = 0
        """Bytes from here on were never given out."""
        self._used_bytes = 0
        self._free = FreeRanges(ALIGN_BYTES)

    @classmethod
    def from_used(
        cls, capacity_bytes: int, addresses: Int64s, nbytes: Int64s, *, whole_pages: bool = False
    ) -> RangeAllocator:
        """The allocator of an arena in which exactly these ranges are in use (after a restart).

        ``ValueError`` if two of them overlap or one lies outside the arena.
        """
        allocator = cls(capacity_bytes, whole_pages=whole_pages)
        starts, ends = sorted_pieces(addresses, nbytes)
        if len(starts) == 0:
            return allocator
        if starts[0] < 0 or ends[-1] > capacity_bytes:
            raise ValueError(f"used ranges reach outside [0, {capacity_bytes})")
        starts, ends = merge_adjacent(starts, ends)
        allocator.frontier = int(ends[-1])
        allocator._used_bytes = int((ends - starts).sum())
        gap_starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        is_gap = starts > gap_starts
        allocator._free.add_many(gap_starts[is_gap], starts[is_gap])
        return allocator

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self._used_bytes

    @property
    def num_free_ranges(self) -> int:
        """How many pieces the free space below the frontier is in."""
        return len(self._free)

    @property
    def largest_free(self) -> int:
        """The largest ``nbytes`` for which ``alloc`` succeeds now."""
        small = self._largest_room(ALIGN_BYTES)
        if small < self._page_from:
            return small
        large = self._largest_room(PAGE_BYTES)
        return large if large >= self._page_from else max(0, self._page_from - ALIGN_BYTES)

    @property
    def fragmentation(self) -> float:
        """0.0 when all free space is one piece, towards 1.0 as it crumbles."""
        return 1.0 - self.largest_free / self.free_bytes if self.free_bytes else 0.0

    def alloc(self, nbytes: int) -> Range | None:
        """A range of at least ``nbytes``, or ``None`` when no free range is large enough.

        Zero bytes take no space and get the range ``(0, 0)``.
        """
        if nbytes < 0:
            raise ValueError(f"nbytes must be >= 0, got {nbytes}")
        extent = extent_of(nbytes, self._page_from)
        if extent == 0:
            return Range(address=0, nbytes=0)
        if extent > self.free_bytes:
            return None
        align = _alignment_of(extent, self._page_from)
        address = self._free.take(extent, align)
        if address is None:
            address = self._take_tail(extent, align)
        if address is None:
            return None
        self._used_bytes += extent
        return Range(address=address, nbytes=extent)

    def alloc_fresh(self, nbytes: int) -> int:
        """The address of a range of bytes that were never given out before. ``ValueError`` when
        there are none left. Zero bytes take no space."""
        extent = extent_of(nbytes, self._page_from)
        if extent == 0:
            return 0
        start = self.frontier
        address = align_up(start, _alignment_of(extent, self._page_from))
        if address + extent > self.capacity_bytes:
            raise ValueError(f"no address left for {nbytes} bytes")
        if address > start:
            self._free.add_many(np.array([start]), np.array([address]))
        self.frontier = address + extent
        self._used_bytes += extent
        return address

    def alloc_many(self, nbytes: Sequence[int] | Int64s) -> Int64s | None:
        """Addresses of one range for each size, or ``None`` and no change when not all fit.

        One Python step a range: for the slabs of a put, not for its rows. ``extents`` says how
        large each range is.
        """
        sizes = [int(n) for n in nbytes]
        frontier = self.frontier
        taken: list[int] = []
        for size in sizes:
            got = self.alloc(size)
            if got is None:
                self.undo(np.array(taken, np.int64), sizes[: len(taken)], frontier)
                return None
            taken.append(got.address)
        return np.array(taken, dtype=np.int64)

    def extents(self, nbytes: Sequence[int] | Int64s) -> Int64s:
        """How many bytes a range of each of these sizes takes, padding included."""
        return extents(nbytes, self._page_from)

    def undo(self, addresses: Int64s, nbytes: Sequence[int], frontier: int) -> None:
        """Take back the last ``alloc_many``, of these sizes, as if it had not been.

        ``frontier``: what it was before. Unlike after ``free_many``, bytes above it count as never
        given out again.
        """
        self.free_many(addresses, self.extents(nbytes))
        start = self._tail_start()
        if self.frontier > frontier:
            self._free.remove_last()
            if start < frontier:
                self._free.add_one(start, frontier)
            self.frontier = frontier

    def free(self, address: int, nbytes: int) -> None:
        """Return ``nbytes`` bytes from ``address`` on: all or any part of what was given out.

        ``ValueError``, and no change, if any of these bytes is free already.
        """
        if nbytes < 0:
            raise ValueError(f"negative size {nbytes}")
        if nbytes == 0:
            return
        self._refuse_outside(address, address + nbytes)
        self._free.add_checked(address, address + nbytes)
        self._used_bytes -= nbytes

    def free_many(self, addresses: Int64s, nbytes: Int64s) -> None:
        """``free`` for many pieces, in any order; touching pieces are merged first.

        ``ValueError``, and no change, if any byte is free already or named twice.
        """
        starts, ends = sorted_pieces(addresses, nbytes)
        if len(starts) == 0:
            return
        self._refuse_outside(int(starts[0]), int(ends[-1]))
        starts, ends = merge_adjacent(starts, ends)
        freed = int((ends - starts).sum())
        self._free.add_many(starts, ends)
        self._used_bytes -= freed

    def free_ranges(self) -> tuple[Int64s, Int64s]:
        """Copies of the starts and ends of the free ranges below the frontier, by address."""
        return self._free.snapshot()

    def is_free(self, start: int, end: int) -> bool:
        """Whether no byte of it is used."""
        below = min(end, self.frontier)
        return start >= below or self._free.covers(start, below)

    def _largest_room(self, align: int) -> int:
        tail = room(self._tail_start(), self.capacity_bytes, align)
        return max(0, tail, self._free.largest_room(align))

    def _refuse_outside(self, start: int, end: int) -> None:
        if start < 0 or end > self.frontier:
            raise ValueError(
                f"free of [{start}, {end}): only [0, {self.frontier}) was ever given out"
            )

    def _tail_start(self) -> int:
        """Where the free space that runs to the end of the arena begins."""
        last = self._free.last()
        return last[0] if last is not None and last[1] == self.frontier else self.frontier

    def _take_tail(self, extent: int, align: int) -> int | None:
        start = self._tail_start()
        address = align_up(start, align)
        if address + extent > self.capacity_bytes:
            return None
        if start < self.frontier:
            self._free.remove_last()
        if address > start:
            self._free.add_one(start, address)
        self.frontier = address + extent
        return address


def _alignment_of(nbytes: int, page_from: int) -> int:
    return PAGE_BYTES if nbytes >= page_from else ALIGN_BYTES


def extent_of(nbytes: int, page_from: int = PAGE_ALIGN_FROM_BYTES) -> int:
    """How many bytes a range for ``nbytes`` takes, padding included. ``page_from``: the smallest
    that is given whole pages."""
    return align_up(nbytes, _alignment_of(align_up(nbytes, ALIGN_BYTES), page_from))


def extents(nbytes: Sequence[int] | Int64s, page_from: int = PAGE_ALIGN_FROM_BYTES) -> Int64s:
    """``extent_of`` for an array."""
    sizes = np.asarray(nbytes, dtype=np.int64)
    small = -(-sizes // ALIGN_BYTES) * ALIGN_BYTES
    return np.where(small >= page_from, -(-sizes // PAGE_BYTES) * PAGE_BYTES, small)


def sorted_pieces(addresses: Int64s, nbytes: Int64s) -> tuple[Int64s, Int64s]:
    """Starts and ends by address, empty pieces left out. ``ValueError`` if two overlap."""
    starts = np.asarray(addresses, dtype=np.int64).reshape(-1)
    sizes = np.asarray(nbytes, dtype=np.int64).reshape(-1)
    if starts.shape != sizes.shape:
        raise ValueError(f"{len(starts)} addresses but {len(sizes)} sizes")
    if len(sizes) and sizes.min() <= 0:
        if sizes.min() < 0:
            raise ValueError(f"negative size {sizes.min()}")
        starts, sizes = starts[sizes > 0], sizes[sizes > 0]
    if len(starts) > 1 and not bool((starts[1:] > starts[:-1]).all()):
        order = np.argsort(starts, kind="stable")
        starts, sizes = starts[order], sizes[order]
    ends = starts + sizes
    if len(starts) > 1 and bool((starts[1:] < ends[:-1]).any()):
        at = int(np.argmax(starts[1:] < ends[:-1]))
        raise ValueError(f"bytes from {starts[at + 1]} on are named twice")
    return starts, ends
