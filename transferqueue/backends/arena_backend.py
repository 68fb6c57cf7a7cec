"""What all backends share whose bytes lie in one arena of ordinary memory of this process."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.base import Backend
from transferqueue.backends.copying import as_bytes, copy_into
from transferqueue.backends.gather import gather, merge_runs
from transferqueue.errors import Closed
from transferqueue.shard.allocator import RangeAllocator, extents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]


class ArenaBackend(Backend):
    """An allocator over ``[0, capacity)`` and memory to match. Addresses are offsets into it."""

    def __init__(self, capacity_bytes: int) -> None:
        self._allocator = RangeAllocator(capacity_bytes)
        self._closed = False

    @abstractmethod
    def _memory(self, address: int, nbytes: int) -> Bytes:
        """The bytes of a range that was checked and lies below what ``_back`` was asked for."""

    def _back(self, end: int) -> bool:
        """Make ``[0, end)`` usable memory. ``False`` when there is none to be had now."""
        return True

    @property
    def capacity_bytes(self) -> int:
        return self._allocator.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self._allocator.used_bytes

    @property
    def largest_free(self) -> int:
        return self._allocator.largest_free

    @property
    def fragmentation(self) -> float:
        """0.0 when all free room is one piece, towards 1.0 as it crumbles."""
        return self._allocator.fragmentation

    def reserve(self, nbytes: Sequence[int]) -> Int64s | None:
        self._refuse_closed()
        frontier = self._allocator.frontier
        addresses = self._allocator.alloc_many(nbytes)
        if addresses is None or self._back(self._allocator.frontier):
            return addresses
        self._allocator.undo(addresses, nbytes, frontier)
        return None

    def extents(self, nbytes: Sequence[int]) -> Int64s:
        return extents(nbytes)

    def writable(self, address: int, nbytes: int) -> memoryview:
        return self._checked(address, nbytes).data

    def write(self, address: int, data: memoryview) -> None:
        copy_into(self._checked(address, data.nbytes), data)

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()

    def read_into(self, address: int, out: memoryview) -> None:
        copy_into(out, self._checked(address, out.nbytes))

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> Bytes:
        self._refuse_closed()
        starts, sizes = merge_runs(addresses, nbytes)
        if not len(starts):
            return np.empty(0, np.uint8)
        low, high = int(starts.min()), int((starts + sizes).max())
        gathered = gather(self._memory(low, high - low), starts - low, sizes)
        return gathered if gathered.base is None else gathered.copy()

    def readable(self, address: int, nbytes: int) -> memoryview:
        return self._checked(address, nbytes).data.toreadonly()

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        self._allocator.free_many(addresses, nbytes)

    def array(self, address: int, nbytes: int) -> Bytes:
        """The bytes as an array, for index work over many ranges: uint8[nbytes], writable."""
        return self._checked(address, nbytes)

    def _checked(self, address: int, nbytes: int) -> Bytes:
        self._refuse_closed()
        if address < 0 or nbytes < 0 or address + nbytes > self._allocator.frontier:
            raise ValueError(
                f"[{address}, {address + nbytes}) is outside [0, {self._allocator.frontier})"
            )
        return as_bytes(self._memory(address, nbytes))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed(f"{type(self).__name__}")
