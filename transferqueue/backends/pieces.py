"""Which pages of a file have one checksum together. No file, no bytes.

A slab is laid out in **pieces** of 64 KiB from its first page on, the last one as long as what is
left, and each piece has one sum: for 16 MiB that is 256 calls and 0.4 ms here, where a sum for each
page of 4 KiB takes 4096 calls and 1 ms (whichever of CRC-32 and XXH3 it is). The price is paid by
gets of single rows, which read and check all of the pieces that these are in. 256 random rows of 64
MiB, in ms of processor time, and what the sums of 16 MiB take, on idle cores:

================  =====  =======  =======  ========  ======
one sum for       4 KiB  12 KiB   32 KiB   192 KiB   16 MiB
================  =====  =======  =======  ========  ======
4 KiB, a CRC-32   1.8    2.3      3.4      11        1.0
32 KiB            3.0    3.6      3.4      8.3       0.46
64 KiB            3.7    4.4      4.4      8.0       0.36
================  =====  =======  =======  ========  ======

Each page has an **entry**, a word of 64 bits: 56 of the piece's sum, 4 for the place of the page in
its piece, 4 for how many pages that has, less one. So entries of any pages tell where their pieces
begin and end, no others are needed, and entries that do not go together are known for that.

A page is in one piece. Those of ranges that were freed keep their entries until they are given out
again, so bytes that nobody has overwritten still have the sum they had.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np

from transferqueue.memory.allocator import PAGE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Entries = NDArray[np.uint64]

PIECE_BYTES = 64 << 10
PIECE_PAGES = max(1, PIECE_BYTES // PAGE_BYTES)
"""At most 16: that is what an entry has room for."""

ENTRY_BYTES = 8
SUM_BITS = 56

_LAYOUT = np.uint64(0xFF)
_PLACE_BITS = np.uint64(0xF0)
_SUM_SHIFT, _PLACE_SHIFT, _PLACE = np.uint64(8), np.uint64(4), np.uint64(0xF)

NO_PIECE = np.uint64(0)
"""Of a page by itself, with the sum 0."""


@lru_cache(maxsize=16)
def layout_of(num_pages: int) -> Entries:
    """Entries of a slab, without sums; not to be changed. uint64[pages]"""
    pages = np.arange(num_pages, dtype=np.uint64)
    places = pages % np.uint64(PIECE_PAGES)
    counts = np.minimum(np.uint64(PIECE_PAGES), np.uint64(num_pages) - (pages - places))
    return (places << _PLACE_SHIFT) | (counts - np.uint64(1))


def with_sums(entries: Entries, pieces: Pieces) -> Entries:
    """The same layout, with the sums of these pieces, which it is of. uint64[pages]"""
    counts = np.array(pieces.ends) - np.array(pieces.starts)
    sums = np.array(pieces.sums, np.uint64) << _SUM_SHIFT
    return (entries & _LAYOUT) | np.repeat(sums, counts)


def bounds(entries: Entries, page: int) -> tuple[int, int]:
    """Where the piece of one page begins and ends."""
    word = int(entries[page])
    first = page - (word >> 4 & 0xF)
    return first, first + (word & 0xF) + 1


def begins(entries: Entries, pages: Int64s) -> Int64s:
    """Where the pieces of these pages begin. ``entries``: of all pages of the file."""
    return pages - _places(entries[pages])


def ends(entries: Entries, pages: Int64s) -> Int64s:
    """And where they end."""
    some = entries[pages]
    return pages - _places(some) + _counts(some)


def plausible(entries: Entries) -> Entries:
    """Entries of all pages of a file, as they were found. What cannot be is in no piece."""
    pages = np.arange(len(entries))
    starts = pages - _places(entries)
    can_be = (starts >= 0) & (starts + _counts(entries) > pages)
    return np.where(can_be, entries, NO_PIECE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Pieces that follow one another, by the numbers of their pages."""

    starts: list[int]
    ends: list[int]
    sums: list[int]

    @classmethod
    def around(cls, first: int, entries: Entries) -> Self | None:
        """Those that pages from ``first`` on are in, of which these are the entries. ``None``:
        the entries do not go together."""
        found = _few(first, entries) if len(entries) <= _FEW else _many(first, entries)
        starts, ends, sums = found
        if starts[0] < 0 or starts[1:] != ends[:-1] or ends[-1] < first + len(entries):
            return None
        return cls(starts=starts, ends=ends, sums=sums)

    def with_sums(self, sums: list[int]) -> Pieces:
        return Pieces(starts=self.starts, ends=self.ends, sums=sums)

    def part(self, low: int, high: int) -> Pieces:
        """Some of them, at least one."""
        some = slice(low, high)
        return Pieces(starts=self.starts[some], ends=self.ends[some], sums=self.sums[some])

    @property
    def first(self) -> int:
        """Page."""
        return self.starts[0]

    @property
    def last(self) -> int:
        """Page after them."""
        return self.ends[-1]

    @property
    def num_pages(self) -> int:
        return self.last - self.first

    def __len__(self) -> int:
        return len(self.starts)


_FEW = 64
"""Pages up to which steps of Python take less time than calls of numpy: 3 µs for a row of two
pieces in place of 10."""


def _few(first: int, entries: Entries) -> tuple[list[int], list[int], list[int]]:
    words: list[int] = entries.tolist()
    starts, ends, sums, at = [], [], [], 0
    while at < len(words):
        word = words[at]
        starts.append(first + at - (word >> 4 & 0xF))
        ends.append(starts[-1] + (word & 0xF) + 1)
        sums.append(word >> 8)
        at = max(at + 1, ends[-1] - first)
    return starts, ends, sums


def _many(first: int, entries: Entries) -> tuple[list[int], list[int], list[int]]:
    is_head = (entries & _PLACE_BITS) == 0
    is_head[0] = True
    heads = np.flatnonzero(is_head)
    some = entries[heads]
    starts = first + heads - _places(some)
    return starts.tolist(), (starts + _counts(some)).tolist(), (some >> _SUM_SHIFT).tolist()


def _places(entries: Entries) -> Int64s:
    return ((entries >> _PLACE_SHIFT) & _PLACE).astype(np.int64)


def _counts(entries: Entries) -> Int64s:
    return (entries & _PLACE).astype(np.int64) + 1
