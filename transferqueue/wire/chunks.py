"""A transfer that is too large for one message: the bytes of its columns end to end, in chunks.

Both ways and at both ends: a put writes its chunks into reserved space, a get reads them. A chunk
is named by its number alone, so a chunk that was lost is asked for or sent again, and one that
comes twice changes nothing. Bytes in flight are the receiver's to bound: whoever drives a
transfer, the client, has at most ``WINDOW_CHUNKS`` of them under way with each shard.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from transferqueue.errors import Malformed
from transferqueue.memory.gather import merge_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.wire.format import Buffer

CHUNK_BYTES: Final = 1 << 20
"""Large enough that a message costs little beside its bytes, small enough that the two ends, and
the sockets between, work on different chunks at the same time. One frame of hundreds of MiB moves
at half the speed: nothing is copied out of it before the last of its bytes has come."""

WINDOW_CHUNKS: Final = 8
"""8 MiB fill a link of 10 Gbit/s at a round trip of 6 ms."""

MAX_FRAMES: Final = 32
"""A chunk of more pieces is brought together first: a frame costs more than copying 32 KiB."""

STREAM_FROM_BYTES: Final = 1 << 20
"""A put or an answer of more bytes than this, not counting what is mapped, goes in chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of a chunk that lies in one column."""

    column: int
    offset: int
    """Where it begins among the column's bytes."""
    nbytes: int


class ChunkGrid:
    """How the bytes of some columns divide into chunks. Columns without bytes are in none."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """``sizes``: bytes of each column."""
        self._ends = list(accumulate(sizes))
        self._starts = [end - size for end, size in zip(self._ends, sizes, strict=True)]
        self.total_bytes = self._ends[-1] if self._ends else 0
        self.num_chunks = -(-self.total_bytes // CHUNK_BYTES)

    def pieces(self, chunk: object) -> list[Piece]:
        """The pieces of a chunk, in order. `Malformed` when there is no such chunk."""
        if type(chunk) is not int or not 0 <= chunk < self.num_chunks:
            raise Malformed(f"no chunk {chunk!r:.40} of {self.num_chunks}")
        low = chunk * CHUNK_BYTES
        high = min(low + CHUNK_BYTES, self.total_bytes)
        pieces = []
        column = bisect_right(self._ends, low)
        while low < high:
            last = min(high, self._ends[column])
            if low < last:
                offset = low - self._starts[column]
                pieces.append(Piece(column=column, offset=offset, nbytes=last - low))
                low = last
            column += 1
        return pieces


def deal(frames: Sequence[Buffer], pieces: Sequence[Piece]) -> Iterator[tuple[Piece, memoryview]]:
    """The bytes that came for the pieces of a chunk, in order, however many frames they came in.

    Pieces may be given out in parts. `Malformed`, before the first of them, unless the frames hold
    exactly as many bytes as the pieces.
    """
    views = [memoryview(frame).cast("B") for frame in frames]
    expected = sum(piece.nbytes for piece in pieces)
    if sum(view.nbytes for view in views) != expected:
        raise Malformed(f"{sum(view.nbytes for view in views)} bytes came for {expected}")
    return _deal(views, pieces)


def _deal(
    views: Sequence[memoryview], pieces: Sequence[Piece]
) -> Iterator[tuple[Piece, memoryview]]:
    left = iter(pieces)
    column, offset, wanted = 0, 0, 0
    for view in views:
        at = 0
        while at < view.nbytes:
            if not wanted:
                piece = next(left)
                column, offset, wanted = piece.column, piece.offset, piece.nbytes
            size = min(wanted, view.nbytes - at)
            yield Piece(column=column, offset=offset, nbytes=size), view[at : at + size]
            at, offset, wanted = at + size, offset + size, wanted - size


class Runs:
    """Ranges of a memory, laid end to end. Any part of what they make is found by binary search."""

    def __init__(self, starts: np.ndarray, sizes: np.ndarray) -> None:
        """``starts``, ``sizes``: int64[runs], none empty."""
        self.starts, self.sizes = starts, sizes
        self._ends = sizes.cumsum()
        self.total_bytes = int(self._ends[-1]) if len(sizes) else 0

    @classmethod
    def of(cls, starts: np.ndarray, sizes: np.ndarray) -> Runs:
        """Of any ranges: neighbours are joined, empty ones left out."""
        return cls(*merge_runs(starts, sizes))

    @classmethod
    def one(cls, start: int, nbytes: int) -> Runs:
        """A single range, or none of no bytes."""
        one = slice(0, 1 if nbytes else 0)
        return cls(np.array([start], dtype=np.int64)[one], np.array([nbytes], dtype=np.int64)[one])

    def cut(self, offset: int, nbytes: int) -> tuple[np.ndarray, np.ndarray]:
        """The ranges that bytes ``[offset, offset + nbytes)`` of the whole come from.

        Starts and sizes, int64 each. ``0 <= offset`` and ``offset + nbytes <= total_bytes``.
        """
        if nbytes == 0:
            return self.starts[:0], self._ends[:0]
        first = int(np.searchsorted(self._ends, offset, side="right"))
        last = int(np.searchsorted(self._ends, offset + nbytes, side="left"))
        ends = np.minimum(self._ends[first : last + 1], offset + nbytes)
        lows = np.empty_like(ends)
        lows[0], lows[1:] = offset, ends[:-1]
        skipped = offset - (int(self._ends[first - 1]) if first else 0)
        starts = self.starts[first : last + 1].copy()
        starts[0] += skipped
        return starts, ends - lows
