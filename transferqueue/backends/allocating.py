"""What all backends share that give out ranges of one address space of a fixed size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.backends.base import Backend
from transferqueue.errors import Closed
from transferqueue.memory.allocator import RangeAllocator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


class AllocatingBackend(Backend):
    """An allocator over ``[0, capacity)``: the half of the contract that touches no bytes.

    The other half is ``writable``, ``write``, ``seal``, ``read_into``, ``readable`` and ``close``,
    which sets ``_closed``. Addresses are offsets.
    """

    def __init__(self, capacity_bytes: int, *, whole_pages: bool = False) -> None:
        """``whole_pages``: no two slabs have bytes in one page."""
        self._whole_pages = whole_pages
        self._allocator = RangeAllocator(capacity_bytes, whole_pages=whole_pages)
        self._closed = False

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
        if addresses is None:
            return None
        is_backed = False
        try:
            is_backed = self._back(addresses, self.extents(nbytes))
        finally:
            if not is_backed:
                self._allocator.undo(addresses, nbytes, frontier)
        return addresses if is_backed else None

    def extents(self, nbytes: Sequence[int]) -> Int64s:
        return self._allocator.extents(nbytes)

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        self._allocator.free_many(addresses, nbytes)

    def adopt(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        self._allocator = RangeAllocator.from_used(
            self.capacity_bytes, addresses, nbytes, whole_pages=self._whole_pages
        )

    def _back(self, addresses: Int64s, extents: Int64s) -> bool:
        """Have room behind ranges that were just given out. ``False`` when there is none to be
        had now."""
        del addresses, extents
        return True

    def _check(self, address: int, nbytes: int) -> None:
        """``ValueError`` for bytes that were never given out, `Closed` after ``close``."""
        self._refuse_closed()
        if address < 0 or nbytes < 0 or address + nbytes > self._allocator.frontier:
            raise ValueError(
                f"[{address}, {address + nbytes}) is outside [0, {self._allocator.frontier})"
            )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed(f"{type(self).__name__}")
