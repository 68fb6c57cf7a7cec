"""Where each cell of one partition lies on this shard. No bytes, no socket, no clock.

Rows are kept in the order of their uids, which a shard gives out rising, so that finding any
number of them is one binary search. Cleared rows leave when they are half of all, so that memory
and search follow what is alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.errors import UID_SAMPLE, FieldExists, FieldsMissing, RowsGone, near_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NO_CELL = -1
RESERVED = -2
"""A put has reserved the cell and not yet committed it: absent for readers, taken for writers."""

_MIN_CAPACITY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Where the cells of one field lie, for some rows in order."""

    slabs: np.ndarray  # int32[rows]
    starts: np.ndarray  # int64[rows], byte address
    lengths: np.ndarray  # int64[rows], in units of the slab

    def __len__(self) -> int:
        return len(self.slabs)

    @property
    def is_there(self) -> np.ndarray:
        """Which rows have the cell. bool[rows]."""
        return self.slabs > NO_CELL

    def take(self, rows: np.ndarray) -> Cells:
        """``rows``: int64[n]."""
        return Cells(
            slabs=self.slabs.take(rows),
            starts=self.starts.take(rows),
            lengths=self.lengths.take(rows),
        )


class _Column:
    """The cells of one field, for every row of the table."""

    __slots__ = ("lengths", "slabs", "starts")

    def __init__(self, capacity: int) -> None:
        self.slabs = np.full(capacity, NO_CELL, dtype=np.int32)
        self.starts = np.zeros(capacity, dtype=np.int64)
        self.lengths = np.zeros(capacity, dtype=np.int64)

    def resized(self, capacity: int, keep: np.ndarray | slice) -> _Column:
        column = _Column(capacity)
        kept = self.slabs[keep]
        column.slabs[: len(kept)] = kept
        column.starts[: len(kept)] = self.starts[keep]
        column.lengths[: len(kept)] = self.lengths[keep]
        return column


class RowTable:
    """Invariant: ``uids[:num]`` rises strictly; a dead row has no cell in any column."""

    def __init__(self) -> None:
        self._uids = np.empty(_MIN_CAPACITY, dtype=np.int64)
        self._alive = np.zeros(_MIN_CAPACITY, dtype=bool)
        self._num = 0
        self._num_alive = 0
        self._columns: dict[str, _Column] = {}

    def __len__(self) -> int:
        """Rows alive."""
        return self._num_alive

    @property
    def fields(self) -> list[str]:
        return list(self._columns)

    def uids(self) -> np.ndarray:
        """Uids of the rows alive, rising. int64[rows]."""
        return self._uids[: self._num][self._alive[: self._num]]

    def columns(self) -> Iterator[tuple[str, np.ndarray, Cells]]:
        """Every field that a row has: its name, which rows alive have it (bool[rows], in the
        order of `uids`), and their cells."""
        rows = np.flatnonzero(self._alive[: self._num])
        for name in self._columns:
            cells = self.read(name, rows)
            present = cells.is_there
            if present.any():
                yield name, present, cells.take(np.flatnonzero(present))

    def cells_in(self, is_wanted: np.ndarray) -> Iterator[tuple[str, np.ndarray, Cells]]:
        """Every field with cells in some slabs, the rows of those and the cells themselves.
        ``is_wanted``: bool[slab ids]."""
        for name, column in self._columns.items():
            slabs = column.slabs[: self._num]
            rows = np.flatnonzero(is_wanted[slabs] & (slabs > NO_CELL))
            if len(rows):
                yield name, rows, self.read(name, rows)

    def move(self, field: str, rows: np.ndarray, starts: np.ndarray) -> None:
        """The cells of these rows are somewhere else now."""
        self._columns[field].starts[rows] = starts

    def append(self, uids: np.ndarray) -> np.ndarray:
        """Add rows; ``uids`` rise and lie above all before. Returns their row numbers."""
        end = self._num + len(uids)
        if end > len(self._uids):
            self._resize(max(2 * len(self._uids), end), slice(0, self._num))
        assert not len(uids) or not self._num or uids[0] > self._uids[self._num - 1]
        self._uids[self._num : end] = uids
        self._alive[self._num : end] = True
        rows = np.arange(self._num, end)
        self._num = end
        self._num_alive += len(uids)
        return rows

    def locate(self, uids: np.ndarray) -> np.ndarray:
        """Row numbers of ``uids``, in their order. RowsGone when some are not there."""
        rows, found = self.find(uids)
        if not found.all():
            gone = uids[~found]
            raise RowsGone(len(gone), len(uids), gone[: UID_SAMPLE + 1].tolist())
        return rows

    def find(self, uids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers, and which of them are there: int64[n], bool[n]."""
        known = self._uids[: self._num]
        rows = np.searchsorted(known, uids)
        if self._num == 0:
            return rows, np.zeros(len(uids), dtype=bool)
        np.minimum(rows, self._num - 1, out=rows)
        return rows, (known[rows] == uids) & self._alive[rows]

    def check_free(self, field: str, rows: np.ndarray, *, allow_written: bool = False) -> None:
        """FieldExists when one of the rows has the field (unless ``allow_written``), or a put has
        reserved it."""
        column = self._columns.get(field)
        if column is None:
            return
        taken = column.slabs[rows] == RESERVED if allow_written else column.slabs[rows] != NO_CELL
        if taken.any():
            uids = self._uids[rows[taken]]
            raise FieldExists(field, len(uids), uids[: UID_SAMPLE + 1].tolist())

    def reserve(self, field: str, rows: np.ndarray) -> None:
        """Keep the empty cells of a put that has not committed yet from other puts. Cells that
        hold something stay as they are: the put will replace them."""
        column = self._column(field)
        column.slabs[rows[column.slabs[rows] == NO_CELL]] = RESERVED

    def unreserve(self, field: str, rows: np.ndarray) -> None:
        """Inverse of `reserve`, for a put that was given up."""
        column = self._columns.get(field)
        if column is not None:
            column.slabs[rows[column.slabs[rows] == RESERVED]] = NO_CELL

    def write(self, field: str, rows: np.ndarray, cells: Cells) -> Cells:
        """Set the cells of the rows. Returns the ones they replace, absent ones left out."""
        column = self._column(field)
        old = self._existing(column, rows)
        column.slabs[rows] = cells.slabs
        column.starts[rows] = cells.starts
        column.lengths[rows] = cells.lengths
        return old

    def read(self, field: str, rows: np.ndarray) -> Cells:
        """The cells of the rows, those that are not there among them."""
        column = self._columns.get(field)
        if column is None:
            return Cells(
                slabs=np.full(len(rows), NO_CELL, dtype=np.int32),
                starts=np.zeros(len(rows), dtype=np.int64),
                lengths=np.zeros(len(rows), dtype=np.int64),
            )
        return Cells(
            slabs=column.slabs.take(rows),
            starts=column.starts.take(rows),
            lengths=column.lengths.take(rows),
        )

    def read_all(self, fields: list[str], rows: np.ndarray) -> dict[str, Cells]:
        """The cells of several fields. FieldsMissing counts, by field, the rows that lack it."""
        read = {field: self.read(field, rows) for field in fields}
        present = {field: int(np.count_nonzero(c.is_there)) for field, c in read.items()}
        missing = {field: len(rows) - n for field, n in present.items() if n < len(rows)}
        if missing:
            first = next(iter(missing))
            lacking = self._uids[rows[~read[first].is_there]]
            known = [name for name in self._columns if name not in missing]
            told = lacking[: UID_SAMPLE + 1].tolist()
            raise FieldsMissing(missing, len(rows), told, near_names(first, known))
        return read

    def clear(self, rows: np.ndarray) -> list[Cells]:
        """Remove rows, none named twice. Returns, by field, the cells that they had.

        Row numbers from before are void after it.
        """
        freed = []
        for column in self._columns.values():
            freed.append(self._existing(column, rows))
            column.slabs[rows] = NO_CELL
        self._alive[rows] = False
        self._num_alive -= len(rows)
        if self._num > _MIN_CAPACITY and self._num_alive * 2 < self._num:
            self._compact()
        return freed

    def release_fields(self, fields: Sequence[str], rows: np.ndarray) -> list[Cells]:
        """Remove the cells of some fields. Returns, by field, those that were there; a cell that a
        put has reserved stays reserved."""
        freed = []
        for field in fields:
            column = self._columns.get(field)
            if column is not None:
                freed.append(self._existing(column, rows))
                column.slabs[rows[column.slabs[rows] >= 0]] = NO_CELL
        return freed

    def _column(self, field: str) -> _Column:
        column = self._columns.get(field)
        if column is None:
            column = self._columns[field] = _Column(len(self._uids))
        return column

    def _existing(self, column: _Column, rows: np.ndarray) -> Cells:
        rows = rows[column.slabs[rows] >= 0]
        return Cells(
            slabs=column.slabs[rows], starts=column.starts[rows], lengths=column.lengths[rows]
        )

    def _compact(self) -> None:
        keep = np.flatnonzero(self._alive[: self._num])
        self._resize(max(_MIN_CAPACITY, 2 * len(keep)), keep)
        empty = [name for name, col in self._columns.items() if not (col.slabs != NO_CELL).any()]
        for name in empty:
            del self._columns[name]

    def _resize(self, capacity: int, keep: np.ndarray | slice) -> None:
        kept = self._uids[keep]
        uids = np.empty(capacity, dtype=np.int64)
        uids[: len(kept)] = kept
        alive = np.zeros(capacity, dtype=bool)
        alive[: len(kept)] = self._alive[keep]
        self._uids, self._alive, self._num = uids, alive, len(kept)
        self._columns = {
            name: column.resized(capacity, keep) for name, column in self._columns.items()
        }
