"""A shard's shared-memory arena as one client process sees it.

Three ways to the same bytes:

* **write**: a shared mapping, into ranges that the shard reserved for this client;
* **read, copying**: a shared read-only mapping, always the truth, for small or scattered ranges;
* **view**: a private mapping (copy-on-write), for large contiguous ranges: no copy, and the reader
  may edit in place without anybody seeing it.

Each segment is mapped once in each way and stays mapped, so that a page costs a fault only the
first time this process touches it. Measured for 320 MB on pages of 4 KiB, medians on two idle cores
(memcpy into warm memory 28 ms, summing ordinary memory 12 ms): `write` 28 ms over pages touched
before, 45 ms the first time; making a view 0.05 ms; summing it 28 ms the first time, 14 to 17 ms
later; ending it 3.5 ms. On huge pages, which an arena has where the kernel gives them, every sum
takes as long as of ordinary memory (`huge_pages`).

A get maps nothing itself (``MADV_POPULATE_READ`` of all of it: 18 ms before the read that then
takes 12): a thread does, beside the read; see `read_ahead`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.mapping import MADV_POPULATE_READ, Access, ArenaMapping
from transferqueue.backends.private_views import PrivateViews
from transferqueue.memory.allocator import PAGE_ALIGN_FROM_BYTES, PAGE_BYTES
from transferqueue.memory.copying import as_bytes, copy_into

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from transferqueue.backends.arena_address import ArenaAddress
    from transferqueue.backends.private_views import View

    Bytes = NDArray[np.uint8]

VIEW_FROM_BYTES = PAGE_ALIGN_FROM_BYTES
"""Ranges from here on are worth a view; smaller ones are copied in less time than a view takes,
and their slabs share pages with others."""


class ShmReader:
    """Reads and writes one arena. Safe to use from several threads."""

    def __init__(self, arena: ArenaAddress) -> None:
        self.arena = arena
        self._readable = ArenaMapping(arena, Access.READ)
        self._writable = _WritableArena(arena)
        self._views = PrivateViews(arena)

    def write(self, address: int, data: memoryview | Bytes) -> None:
        """Copy ``data``, contiguous, into a range reserved for this client."""
        source = as_bytes(data)
        copy_into(self.writable(address, len(source)), source)

    def writable(self, address: int, nbytes: int) -> Bytes:
        """A range reserved for this client, to be filled in place: uint8[nbytes].

        Write nothing after the put is committed or given up: the bytes belong to others then.
        """
        return self._writable.array(address, nbytes)

    def readable(self, low: int, high: int) -> Bytes:
        """``[low, high)`` as it is in the arena, read-only: uint8[high - low].

        To copy from: the bytes are only stable where a lease holds them.
        """
        return self._readable.array(low, high - low)

    def view(self, address: int, nbytes: int, keep: object = None) -> tuple[Bytes, View]:
        """Bytes under a lease, without a copy, the caller's own to edit: see `PrivateViews.view`.

        ``OSError`` when the kernel refuses the mapping (limits on address space): copy instead.
        """
        return self._views.view(address, nbytes, keep)

    def end(self, views: Iterable[View]) -> None:
        """Forget views whose arrays are gone, before their lease is released."""
        self._views.end(views)

    def close(self) -> None:
        """Nothing new is given out. Arrays stay valid as long as they live."""
        self._readable.close()
        self._writable.close()
        self._views.close()


class _WritableArena:
    """The shared writable mapping, and which of its pages this process has touched.

    The first write to a page costs a fault of its own, 1 µs each: 320 MB take 98 ms. Asking for
    all pages *for reading* maps them 16 to a fault and writable all the same, since a shared
    mapping of a memory file needs no dirty tracking: 18 ms, and then the copy runs at full speed.
    (``MADV_POPULATE_WRITE`` takes 50 ms, ``pwrite`` instead of a mapping 50 ms every time.)
    """

    def __init__(self, arena: ArenaAddress) -> None:
        self._mapping = ArenaMapping(arena, Access.WRITE)
        self._segment_bytes = arena.segment_bytes
        self._touched: dict[int, NDArray[np.bool_]] = {}  # segment -> bool[pages]
        self._lock = threading.Lock()

    def array(self, address: int, nbytes: int) -> Bytes:
        found = self._mapping.array(address, nbytes)
        if nbytes >= VIEW_FROM_BYTES:
            for low, high in self._by_segment(address, address + nbytes):
                self._touch(low, high)
        return found

    def close(self) -> None:
        self._mapping.close()

    def _by_segment(self, low: int, high: int) -> Iterable[tuple[int, int]]:
        size = self._segment_bytes
        for index in range(low // size, (high - 1) // size + 1):
            yield max(low, index * size), min(high, (index + 1) * size)

    def _touch(self, low: int, high: int) -> None:
        index, offset = divmod(low, self._segment_bytes)
        first, last = offset // PAGE_BYTES, (offset + high - low - 1) // PAGE_BYTES
        with self._lock:
            pages = self._touched.get(index)
            if pages is None:
                pages = np.zeros(-(-self._segment_bytes // PAGE_BYTES), np.bool_)
                self._touched[index] = pages
            if pages[first : last + 1].all():
                return
            pages[first : last + 1] = True
        self._mapping.advise(low, high - low, MADV_POPULATE_READ)
