"""The memory of a window, as the shard's end of a transport uses it."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


PART_BYTES = 8 << 20
"""So that whoever moves it can tell a slow peer from one that hangs."""


class Window:
    """Pieces of memory, end to end."""

    def __init__(self, pieces: Sequence[memoryview], *, writable: bool) -> None:
        self.writable = writable
        self._pieces = [piece.cast("B") for piece in pieces if piece.nbytes]
        self._ends = list(accumulate(piece.nbytes for piece in self._pieces))
        self.nbytes = self._ends[-1] if self._ends else 0

    def holds(self, offset: int, nbytes: int) -> bool:
        """Whether these bytes are within it."""
        return offset >= 0 and nbytes >= 0 and offset + nbytes <= self.nbytes

    def parts(self, offset: int, nbytes: int) -> Iterator[memoryview]:
        """The memory of these bytes, which it holds, in order, at most `PART_BYTES` at a time."""
        at = bisect_right(self._ends, offset)
        while nbytes:
            piece = self._pieces[at]
            skip = offset - (self._ends[at] - piece.nbytes)
            part = piece[skip : skip + min(nbytes, PART_BYTES)]
            yield part
            offset, nbytes = offset + part.nbytes, nbytes - part.nbytes
            at += offset == self._ends[at]
