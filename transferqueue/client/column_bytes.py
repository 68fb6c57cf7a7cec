"""A column as bytes and lengths, and rows of it on their way to a shard.

`wire.columns` makes bytes of tensors and back. Every step costs a few numpy operations a column,
none a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.memory.copying import copy_into
from transferqueue.memory.gather import gather, gather_into
from transferqueue.wire.chunks import Runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.client.placement import Rows
    from transferqueue.fields import FieldSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column, whose bytes are on the host or on a device. No ABC: every column of every put is
    asked which, and of an ABC that takes longer."""

    spec: FieldSpec
    lengths: np.ndarray | None  # int64[rows] in units; None: one unit each

    def sizes(self, num_rows: int) -> np.ndarray:
        """Bytes of each row. int64[rows]."""
        return sizes_of(self.spec, self.lengths, num_rows)

    @property
    def num_bytes(self) -> int:
        raise NotImplementedError

    def rows(self, lengths: np.ndarray | None, runs: Runs) -> ColumnRows:
        """Some of its rows: their lengths, and where they lie among the bytes."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBytes(Column):
    """In memory of the host."""

    payload: np.ndarray  # uint8[bytes of the rows, in order]
    present: np.ndarray | None = None  # bool[rows]; None: all. Absent rows are zeros or empty

    @property
    def num_bytes(self) -> int:
        return len(self.payload)

    def rows(self, lengths: np.ndarray | None, runs: Runs) -> ColumnRows:
        return HostRows(lengths=lengths, runs=runs, source=self.payload)


def sizes_of(spec: FieldSpec, lengths: np.ndarray | None, num_rows: int) -> np.ndarray:
    """Bytes of each row. int64[rows]."""
    if lengths is None:
        return np.full(num_rows, spec.unit_bytes, dtype=np.int64)
    return lengths * spec.unit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRows(ABC):
    """Some rows of a column that is put, not yet brought together."""

    lengths: np.ndarray | None  # int64[rows] in units; None: one unit each
    runs: Runs
    """Where the rows lie among the bytes of the whole column."""

    @property
    def num_bytes(self) -> int:
        return self.runs.total_bytes

    def get_ready(self) -> None:  # noqa: B027 - most are
        """Have what `cuts` would else wait for a device for."""

    @abstractmethod
    def cut(self, offset: int, nbytes: int) -> np.ndarray:
        """Part of the bytes in one piece, in memory of the host."""

    @abstractmethod
    def cuts(self, pieces: Sequence[tuple[int, int]]) -> Iterator[np.ndarray | None]:
        """`cut` of several, offsets and sizes of at most a chunk, to be taken in order. ``None``:
        the next one is not there yet."""

    @abstractmethod
    def lent(self, pieces: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
        """As `cuts`, each waited for, and of use until the next one is asked for."""

    @abstractmethod
    def copy_to(self, out: np.ndarray, offset: int = 0) -> None:
        """The bytes from ``offset`` on, as many as ``out`` takes, to memory of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRows(ColumnRows):
    """Of a column in memory of the host."""

    source: np.ndarray  # uint8[bytes of the whole column]

    def cut(self, offset: int, nbytes: int) -> np.ndarray:
        """A view where the bytes follow one another, else a copy."""
        return gather(self.source, *self.runs.cut(offset, nbytes))

    def cuts(self, pieces: Sequence[tuple[int, int]]) -> Iterator[np.ndarray | None]:
        return self.lent(pieces)

    def lent(self, pieces: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
        return (self.cut(offset, nbytes) for offset, nbytes in pieces)

    def copy_to(self, out: np.ndarray, offset: int = 0) -> None:
        """The one copy of a put: from the caller's memory to its place in the arena."""
        starts, sizes = self.runs.starts, self.runs.sizes
        if len(out) != self.num_bytes:
            starts, sizes = self.runs.cut(offset, len(out))
        if len(starts) == 1:
            first = int(starts[0])
            copy_into(out, self.source[first : first + len(out)])
        elif len(starts):
            gather_into(out, self.source, starts, sizes)


def rows_of(column: Column, rows: Rows, num_rows: int) -> ColumnRows:
    """Rows of a column of ``num_rows``."""
    lengths = None if column.lengths is None else np.ascontiguousarray(column.lengths[rows])
    if isinstance(rows, slice) and rows.stop - rows.start == num_rows:
        runs = Runs.one(0, column.num_bytes)
    else:
        sizes = column.sizes(num_rows)
        starts = np.cumsum(sizes) - sizes
        runs = Runs.of(starts[rows], sizes[rows])
    return column.rows(lengths, runs)
