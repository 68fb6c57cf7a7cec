"""A set of row numbers as a bitmap.

A claim takes the lowest rows of such a set, so it has to find them without looking at the others:
``first`` starts at the lowest word that may have a bit, looks at a few words, then at four times
as many, and so on. A bit a row keeps sixteen tasks' worth of sets at two bytes a sample; queues of
row numbers, tried on paper, take 64, need removal of duplicates when rows are given back, and
lose the order of arrival. The worst case, one row at the far end of 1,000,000, looks at 15,625
words: about 10 us.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Rows: TypeAlias = NDArray[np.int64]
"""Row numbers."""

_WORD_BITS = 64
_FIRST_SPAN_WORDS = 16
_BIT = (1 << np.arange(8)).astype(np.uint8)
_NUM_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1)
NO_ROWS: Rows = np.zeros(0, dtype=np.int64)
NO_ROWS.setflags(write=False)


class RowSet:
    """Rows, in ascending order. Every method that takes rows takes distinct ones."""

    __slots__ = ("_bytes", "_low_word", "_words", "count")

    def __init__(self, num_rows: int = 0) -> None:
        self._bytes: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._words: NDArray[np.uint64] = self._bytes.view(np.uint64)
        self._low_word = 0  # no bit is set in a lower word
        self.count = 0
        self.reserve(num_rows)

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_], capacity: int) -> RowSet:
        """The rows that are true in a mask over all rows."""
        made = cls(capacity)
        packed = np.packbits(mask, bitorder="little")
        made._bytes[: len(packed)] = packed
        made.count = int(np.count_nonzero(mask))
        return made

    def __len__(self) -> int:
        return self.count

    @property
    def num_bytes(self) -> int:
        """Memory of the bitmap."""
        return self._bytes.nbytes

    @property
    def num_words(self) -> int:
        """Words of 64 rows that there is room for."""
        return len(self._words)

    def in_words(self, words: Rows) -> Rows:
        """The rows of some words, word by word as asked."""
        return _rows_of_words(self._words, words, 0) if len(words) else NO_ROWS

    def reserve(self, num_rows: int) -> None:
        """Make room for row numbers below ``num_rows``."""
        words = -(-num_rows // _WORD_BITS)
        if words <= len(self._words):
            return
        grown = np.zeros(8 * max(words, len(self._words) * 5 // 4, 8), dtype=np.uint8)
        grown[: len(self._bytes)] = self._bytes
        self._bytes, self._words = grown, grown.view(np.uint64)

    def contains(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows are in the set."""
        return np.asarray(self._bytes[rows >> 3] & _BIT[rows & 7], dtype=np.bool_)

    def add(self, rows: Rows) -> None:
        """Put rows in; those that are in stay. Room was reserved."""
        if not len(rows):
            return
        where, bits = _bits_by_byte(rows)
        self.count += _num_bits(bits & ~self._bytes[where])
        self._bytes[where] |= bits
        first_byte = where.start if isinstance(where, slice) else int(where[0])
        self._low_word = min(self._low_word, first_byte >> 3)

    def discard(self, rows: Rows) -> None:
        """Take rows out; those that are not in are fine."""
        if not len(rows):
            return
        where, bits = _bits_by_byte(rows)
        self.count -= _num_bits(bits & self._bytes[where])
        self._bytes[where] &= ~bits

    def first(self, n: int) -> Rows:
        """The ``n`` lowest rows, or all there are."""
        wanted = min(n, self.count)
        found: list[Rows] = []
        low, span = self._low_word, max(_FIRST_SPAN_WORDS, wanted // 32)
        while wanted > 0:
            block = self._words[low : low + span]
            nonzero = np.flatnonzero(block)
            if len(nonzero):
                if not found:
                    self._low_word = low + int(nonzero[0])
                rows = _rows_of_words(block, nonzero[:wanted], low)[:wanted]
                found.append(rows)
                wanted -= len(rows)
            low, span = low + span, span * 4
        return np.concatenate(found) if found else NO_ROWS

    def all(self) -> Rows:
        """Every row."""
        return self.first(self.count)

    def keep(self, kept: Rows) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``, the others are gone."""
        members = self.contains(kept)
        packed = np.packbits(members, bitorder="little")
        self._bytes[: len(packed)] = packed
        self._bytes[len(packed) :] = 0
        self._low_word = 0
        self.count = int(np.count_nonzero(members))


def none_of(rows: Rows | slice) -> NDArray[np.bool_]:
    """A mask over rows, or over a range of them, that picks none."""
    num_rows = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    return np.zeros(num_rows, dtype=np.bool_)


def _bits_by_byte(rows: Rows) -> tuple[Rows | slice, NDArray[np.uint8]]:
    """Which bytes to touch, each once and in order, and with which bits."""
    low, high = int(rows[0]), int(rows[-1])
    ascending = bool((rows[1:] > rows[:-1]).all())
    if ascending and high - low + 1 == len(rows):  # a whole put, most of the time
        bits = np.full((high >> 3) - (low >> 3) + 1, 0xFF, dtype=np.uint8)
        bits[0] &= 0xFF << (low & 7) & 0xFF
        bits[-1] &= 0xFF >> (7 - (high & 7))
        return slice(low >> 3, (high >> 3) + 1), bits
    if not ascending:
        rows = np.sort(rows)
    where, bits = rows >> 3, _BIT[rows & 7]
    starts = np.concatenate(([0], np.flatnonzero(where[1:] != where[:-1]) + 1))
    return where[starts], np.bitwise_or.reduceat(bits, starts)


def _num_bits(values: NDArray[np.uint8]) -> int:
    return int(_NUM_BITS[values].sum())


def _rows_of_words(block: NDArray[np.uint64], which: Rows, low_word: int) -> Rows:
    bits = np.unpackbits(block[which].view(np.uint8), bitorder="little")
    at = np.flatnonzero(bits)
    rows: Rows = (which[at >> 6] + low_word) * _WORD_BITS + (at & (_WORD_BITS - 1))
    return rows
