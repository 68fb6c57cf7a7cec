"""A shard's shared memory, page-locked here so that a device copies from and to it by itself.

It is locked as it is used, a step of the arena's growth at a time: a step is in memory as a whole
as soon as a byte of it is in use, where locking the whole arena would take all of its budget at
once. What is locked stays so until the arena goes, since slabs come again at the same addresses; an
arena of shared memory never gives pages back, so what the device reads is what is there.

No quarantine, as there is for slots of device memory: that the writer has ended is seen (`pidfd`)
when the kernel has closed its files, those of the driver among them, and with them its copies.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from transferqueue.backends.mapping import Access, ArenaMapping
from transferqueue.backends.segments import STEP_BYTES
from transferqueue.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transferqueue.backends.arena_address import ArenaAddress
    from transferqueue.devices.base import Device, Registration


class LockedArena(Closing):
    """Of one device. Not safe to use from several threads.

    It is locked for as long as anybody has it: another thread may be copying there when the shard
    has another memory already, and what a device reads must not be unlocked meanwhile.
    """

    def __init__(self, arena: ArenaAddress, device: Device) -> None:
        """``OSError`` when there is no address space for it."""
        self.arena = arena
        self._device = device
        self._mapping = ArenaMapping(arena, Access.WRITE)
        self._locked: dict[int, Registration] = {}  # by the address where a step begins
        self._end = weakref.finalize(self, _end, self._locked, self._mapping)
        self._end.atexit = False

    def lock(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Have these addresses and sizes locked, which are of slabs. `PinningRefused`, ``OSError``:
        some of them are not."""
        for start, nbytes in ranges:
            for low, high in self._steps(start, start + nbytes):
                if low not in self._locked:
                    memory = self._mapping.array(low, high - low)
                    self._locked[low] = self._device.register(memory.data)

    def pieces(self, start: int, nbytes: int) -> Iterator[memoryview]:
        """A range that is locked, in pieces of one step each: no copy crosses the edge of what was
        locked at once."""
        end = start + nbytes
        for low, high in self._steps(start, end):
            first, last = max(low, start), min(high, end)
            yield self._mapping.array(first, last - first).data

    def _steps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The steps that a range lies in, as `SegmentFiles` takes them from the file system."""
        while start < end:
            index, offset = divmod(start, self.arena.segment_bytes)
            segment = index * self.arena.segment_bytes
            low = segment + offset // STEP_BYTES * STEP_BYTES
            high = min(low + STEP_BYTES, segment + self.arena.segment_size(index))
            yield low, high
            start = high

    @property
    def nbytes(self) -> int:
        """That are locked."""
        starts = list(self._locked)
        return sum(high - low for at in starts for low, high in self._steps(at, at + 1))

    def close(self) -> None:
        """At once. Else it ends with its last user."""
        self._end()


def _end(locked: dict[int, Registration], mapping: ArenaMapping) -> None:
    for registration in locked.values():
        registration.close()
    locked.clear()
    mapping.close()
