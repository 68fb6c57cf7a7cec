"""Puts and gets whose bytes come and go in chunks. No bytes, no socket, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.errors import InvalidInput
from transferqueue.wire.chunks import ChunkGrid, Runs, deal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.wire.format import Buffer


class _Transfer:
    """Some columns of known sizes, of which chunks are moved in any order, some more than once."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._grid = ChunkGrid(sizes)
        self._was_moved = np.zeros(self._grid.num_chunks, dtype=bool)
        self._num_left = self._grid.num_chunks

    @property
    def is_complete(self) -> bool:
        """Whether every chunk was moved at least once."""
        return self._num_left == 0

    def note(self, chunk: int) -> None:
        """A chunk was moved."""
        self._num_left -= int(not self._was_moved[chunk])
        self._was_moved[chunk] = True


class IncomingPut(_Transfer):
    """A reserved put: where the bytes of each chunk go."""

    def __init__(self, sizes: Sequence[int], addresses: np.ndarray) -> None:
        """``sizes``: bytes of each column; ``addresses``: int64[columns], where it is reserved."""
        super().__init__(sizes)
        self._addresses: list[int] = addresses.tolist()

    def places(self, chunk: object, frames: Sequence[Buffer]) -> Iterator[tuple[int, memoryview]]:
        """Addresses and what goes there. `Malformed` when the frames are not the chunk's bytes."""
        for piece, block in deal(frames, self._grid.pieces(chunk)):
            yield self._addresses[piece.column] + piece.offset, block

    def refuse_unless_complete(self) -> None:
        """`InvalidInput` for a commit that comes before all of the bytes."""
        if not self.is_complete:
            raise InvalidInput(
                f"{self._num_left} of {self._grid.num_chunks} chunks of the put have not come"
            )


class OutgoingGet(_Transfer):
    """An answer that is held ready: where the bytes of each chunk lie."""

    def __init__(self, columns: Sequence[Runs]) -> None:
        """``columns``: the cells of each column, as address ranges in the order of the rows."""
        super().__init__([runs.total_bytes for runs in columns])
        self._columns = list(columns)

    def ranges(self, chunk: object) -> list[tuple[np.ndarray, np.ndarray]]:
        """Addresses and sizes, int64 each, of every piece of a chunk. `Malformed`."""
        return [
            self._columns[piece.column].cut(piece.offset, piece.nbytes)
            for piece in self._grid.pieces(chunk)
        ]
