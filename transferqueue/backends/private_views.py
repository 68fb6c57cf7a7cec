"""Copy-on-write views of an arena that cost nothing to make again.

One private mapping of the arena is kept for the life of the process. A page of it is *clean* (it
shows the arena, whatever is written there later) until this process writes to it, and then *own*:
an anonymous copy that the arena's changes no longer reach.

Invariant: a page that no live view covers is clean. So a new view over such pages shows the arena,
and whatever earlier readers edited is gone. Kept by ``end``: when views end, the kernel's page map
tells which of their pages are own, and only those are dropped; all others stay mapped and warm.

Two views must never see one another's edits, so a view does not go into the kept mapping when

* some of its bytes are under a live view already, or
* it shares a page with a live view, and the page is own: a copy made before these bytes were put.

It gets a mapping of its own then, which ends with its arrays. Slabs large enough for views have
their pages to themselves, so this is for a field that is read twice at a time.

What it costs, for 320 MB: finding own pages 3.5 ms; dropping everything instead would cost 44 ms
and 60 ms more at the next read. Where the kernel hides the page map, that is what is done.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.mapping import MADV_DONTNEED, Access, ArenaMapping
from transferqueue.backends.read_ahead import ReadAhead
from transferqueue.memory.allocator import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from transferqueue.backends.arena_address import ArenaAddress

    Bytes = NDArray[np.uint8]
    Int64s = NDArray[np.int64]

_PAGES_AT_ONCE = 1 << 16
_PAGES_PER_RUN = 16
"""Dropping one run of own pages costs a call, 10 µs; dropping a page that need not be, and mapping
it again at its next use, 0.6 µs. With fewer pages to a run than this, all are dropped at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One view that was given out, to be handed to ``end``. Holds no memory."""

    address: int
    nbytes: int
    in_kept_mapping: bool


class _Bytes:
    """The memory of one view: keeps the mapping and the caller's ``keep`` alive."""

    __slots__ = ("__array_interface__", "_keep", "_mapped")

    def __init__(self, mapped: Bytes, keep: object) -> None:
        self.__array_interface__: dict[str, Any] = mapped.__array_interface__
        self._mapped = mapped
        self._keep = keep


class PrivateViews:
    """Gives out views and takes them back. Safe to use from several threads."""

    def __init__(self, arena: ArenaAddress) -> None:
        self._arena = arena
        self._kept: ArenaMapping | None = None
        self._ahead: ReadAhead | None = None  # of the kept mapping
        self._lock = threading.Lock()
        self._starts: list[int] = []  # live views in the kept mapping, disjoint, by address
        self._ends: list[int] = []
        self._page_map = _PageMap()
        self._closed = False

    def view(self, address: int, nbytes: int, keep: object = None) -> tuple[Bytes, View]:
        """``nbytes`` from ``address`` on as uint8[nbytes], writable, the caller's own to edit.

        The bytes must be under a lease until ``end``. The array and everything made from it keeps
        ``keep`` alive, so a finalizer on ``keep`` tells when the view can end.

        ``OSError`` when the kernel refuses the mapping.
        """
        if nbytes == 0:
            nothing = np.empty(0, np.uint8)
            view = View(address=address, nbytes=0, in_kept_mapping=False)
            return np.asarray(_Bytes(nothing, keep)), view
        with self._lock:
            shared = not self._needs_own(address, address + nbytes)
            mapped = (self._kept_array if shared else self._own_array)(address, nbytes)
            if shared:
                at = bisect_left(self._starts, address)
                self._starts.insert(at, address)
                self._ends.insert(at, address + nbytes)
        view = View(address=address, nbytes=nbytes, in_kept_mapping=shared)
        return np.asarray(_Bytes(mapped, keep)), view

    def end(self, views: Iterable[View]) -> None:
        """Forget views of which no array is left, and what was edited in them.

        To be called once a view, *before* its lease is released, and not from a finalizer, which
        may run while this very thread is in here: a finalizer notes the view for later.
        """
        with self._lock:
            if self._closed:
                return  # no view will be made of these pages again
            for view in views:
                if view.in_kept_mapping:
                    self._end(view)

    def close(self) -> None:
        """Nothing new is given out. Arrays stay valid as long as they live."""
        with self._lock:
            if self._ahead is not None:
                self._ahead.close()
            if self._kept is not None:
                self._kept.close()
            self._closed = True
            self._page_map.close()

    @property
    def num_live(self) -> int:
        """Views in the kept mapping that have not ended."""
        return len(self._starts)

    def _needs_own(self, start: int, end: int) -> bool:
        at = bisect_right(self._ends, start)  # the first view that ends after start
        if at < len(self._starts) and self._starts[at] < end:
            return True
        shares_first = at > 0 and self._ends[at - 1] > page_down(start)
        shares_last = at < len(self._starts) and self._starts[at] < page_up(end)
        return (shares_first and self._is_own(page_down(start))) or (
            shares_last and self._is_own(page_down(end - 1))
        )

    def _is_own(self, page: int) -> bool:
        """Whether a page of the kept mapping may differ from the arena."""
        own = self._own_pages(page, page + PAGE_BYTES)
        return own is None or len(own) > 0

    def _kept_array(self, address: int, nbytes: int) -> Bytes:
        if self._kept is None or self._ahead is None:
            self._kept = ArenaMapping(self._arena, Access.PRIVATE)
            self._ahead = ReadAhead(self._kept)
            if self._closed:
                self._kept.close()
        found = self._kept.array(address, nbytes)  # `Closed` after close
        self._ahead.ask(address, nbytes)
        return found

    def _own_array(self, address: int, nbytes: int) -> Bytes:
        mapping = ArenaMapping(self._arena, Access.PRIVATE, address, address + nbytes)
        if self._closed:
            mapping.close()
        return mapping.array(address, nbytes)

    def _end(self, view: View) -> None:
        at = bisect_left(self._starts, view.address)
        if at == len(self._starts) or self._starts[at] != view.address:
            return  # has ended before
        del self._starts[at], self._ends[at]
        # A page that a neighbour looks at too is dropped when the neighbour ends.
        low, high = page_down(view.address), page_up(view.address + view.nbytes)
        if at > 0 and self._ends[at - 1] > low:
            low += PAGE_BYTES
        if at < len(self._starts) and self._starts[at] < high:
            high -= PAGE_BYTES
        if low < high:
            self._drop_own(low, high)

    def _drop_own(self, low: int, high: int) -> None:
        assert self._kept is not None
        assert self._ahead is not None
        own = self._own_pages(low, high)
        runs = _runs(own) if own is not None and len(own) else []
        if own is None or len(runs) * _PAGES_PER_RUN * PAGE_BYTES > high - low:
            self._kept.advise(low, high - low, MADV_DONTNEED)
            self._ahead.forget(low, high)
            return
        for first, count in runs:
            self._kept.advise(low + first * PAGE_BYTES, count * PAGE_BYTES, MADV_DONTNEED)

    def _own_pages(self, low: int, high: int) -> Int64s | None:
        """Indices, from ``low`` on, of the pages that are own; ``None`` if it cannot be told."""
        assert self._kept is not None
        start = self._kept.virtual_address(low)
        return self._page_map.own_pages(start, (high - low) // PAGE_BYTES)


class _PageMap:
    """``/proc/self/pagemap``: 8 bytes a page of this process's address space."""

    # The top byte of an entry: bit 63 present, 62 swapped, 61 of a file or shared.
    _PRESENT_OR_SWAPPED, _OF_FILE = 0xC0, 0x20

    def __init__(self) -> None:
        self._fd: int | None = None
        self._pid = -1
        self._hidden = False

    def own_pages(self, start: int, count: int) -> Int64s | None:
        """Which of ``count`` pages from the virtual address ``start`` on are anonymous copies.

        ``None`` where the kernel does not tell.
        """
        found = []
        for first in range(0, count, _PAGES_AT_ONCE):
            part = min(_PAGES_AT_ONCE, count - first)
            entries = self._read(start // PAGE_BYTES + first, part)
            if entries is None:
                return None
            top = entries.view(np.uint8)[7::8]  # little-endian, as every Linux this runs on
            own = ((top & self._OF_FILE) == 0) & ((top & self._PRESENT_OR_SWAPPED) != 0)
            found.append(np.flatnonzero(own) + first)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _read(self, page: int, count: int) -> NDArray[np.uint64] | None:
        if self._hidden:
            return None
        entries = np.empty(count, np.uint64)
        try:
            done = os.preadv(self._open(), [entries.data], page * 8)
        except OSError:
            done = -1
        self._hidden = done != entries.nbytes
        return None if self._hidden else entries

    def _open(self) -> int:
        """A descriptor of this process's own map: one that a fork inherited is its parent's."""
        if self._fd is None or self._pid != os.getpid():
            self.close()
            self._fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            self._pid = os.getpid()
        return self._fd


def page_down(address: int) -> int:
    return address // PAGE_BYTES * PAGE_BYTES


def page_up(address: int) -> int:
    return -(-address // PAGE_BYTES) * PAGE_BYTES


def _runs(pages: Int64s) -> list[tuple[int, int]]:
    """First page and length of each run of consecutive pages. ``pages`` rises, not empty."""
    breaks = np.flatnonzero(np.diff(pages) != 1) + 1
    firsts = np.concatenate((np.zeros(1, np.int64), breaks))
    counts = np.diff(np.concatenate((firsts, np.array([len(pages)]))))
    return list(zip(pages[firsts].tolist(), counts.tolist(), strict=True))
