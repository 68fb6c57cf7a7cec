"""Rows by the value of a tag, and which groups are complete: what ``Groups`` stands on.

Finding complete groups among a million candidates must not look at all of them, so each set of
candidates keeps a count a group, and the table keeps the rows of a group as a chain: ``next_row``
from the oldest to the newest. Groups are numbered in order of their first row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.row_set import NO_ROWS, Rows, RowSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.tags import TagTable

_MAX_STEPS = 64
"""How far a chain is followed before one look over the whole column is the cheaper way."""


class GroupIndex:
    """Which rows share a value of one tag."""

    def __init__(self, tag: str, tags: TagTable, rows: Rows, capacity: int) -> None:
        self.tag = tag
        self._tags = tags
        self._clear(capacity)
        self.add(rows)

    def _clear(self, capacity: int) -> None:
        self._code_of: dict[Any, int] = {}
        self._codes = np.full(capacity, -1, dtype=np.int32)  # [rows]
        self._next_row = np.full(capacity, -1, dtype=np.int32)  # [rows]
        self._first_row = np.zeros(0, dtype=np.int32)  # [groups]
        self._last_row = np.zeros(0, dtype=np.int32)  # [groups]

    @property
    def num_groups(self) -> int:
        return len(self._code_of)

    def reserve(self, capacity: int) -> None:
        """Make room for row numbers below ``capacity``."""
        extra = capacity - len(self._codes)
        if extra > 0:
            fill = np.full(extra, -1, dtype=np.int32)
            self._codes = np.concatenate((self._codes, fill))
            self._next_row = np.concatenate((self._next_row, fill))

    def rebuild(self, rows: Rows, capacity: int) -> None:
        """Start anew with these rows; group numbers change."""
        self._clear(capacity)
        self.add(rows)

    def codes(self, rows: Rows) -> NDArray[np.int32]:
        """The group of each row, -1 where it has none."""
        return self._codes[rows]

    def add(self, rows: Rows) -> None:
        """Rows, ascending, that are in no group yet; those without the tag stay in none."""
        column = self._tags.columns.get(self.tag)
        if column is None or not len(rows):
            return
        rows = rows[column.present(rows)]
        if not len(rows):
            return
        codes = self._number(column.raw(rows))
        self._codes[rows] = codes
        order = np.argsort(codes, kind="stable")
        rows, codes = rows[order], codes[order]
        opens = np.concatenate(([True], codes[1:] != codes[:-1]))
        closes = np.append(opens[1:], True)
        self._next_row[rows[:-1][~closes[:-1]]] = rows[1:][~opens[1:]]
        self._append(codes[opens], rows[opens], rows[closes])

    def retag(self, rows: Rows) -> Rows | None:
        """The tag was set on rows, ascending, that were in the table before.

        Returns the rows that are in a group now and were in none, or ``None`` if a row would
        change its group: then the index has to be rebuilt.
        """
        column = self._tags.columns[self.tag]
        rows = rows[column.present(rows)]
        before = self._codes[rows]
        loose = before < 0
        if bool((self._number(column.raw(rows))[~loose] != before[~loose]).any()):
            return None
        self.add(rows[loose])
        return rows[loose]

    def _number(self, values: NDArray[Any]) -> NDArray[np.int64]:
        unique, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        numbers = np.zeros(len(unique), dtype=np.int64)
        for at in np.argsort(first).tolist():  # a step a group, not a row
            numbers[at] = self._code_of.setdefault(unique[at].item(), len(self._code_of))
        return numbers[inverse]

    def _append(self, codes: Rows, first: Rows, last: Rows) -> None:
        if self.num_groups > len(self._first_row):
            extra = max(self.num_groups - len(self._first_row), len(self._first_row) // 4, 64)
            fill = np.full(extra, -1, dtype=np.int32)
            self._first_row = np.concatenate((self._first_row, fill))
            self._last_row = np.concatenate((self._last_row, fill))
        before = self._last_row[codes]
        known = before >= 0
        self._next_row[before[known]] = first[known]
        self._first_row[codes[~known]] = first[~known]
        self._last_row[codes] = last

    def rows_of(self, codes: Rows) -> Rows:
        """Every row of these groups, group by group as asked, oldest first."""
        found_rows, found_at = [], []
        at = np.arange(len(codes))
        rows = self._first_row[codes].astype(np.int64)
        for _ in range(_MAX_STEPS):
            there = rows >= 0
            at, rows = at[there], rows[there]
            if not len(rows):
                break
            found_rows.append(rows)
            found_at.append(at)
            rows = self._next_row[rows].astype(np.int64)
        else:
            return self._scan(codes)
        if not found_rows:
            return NO_ROWS
        all_rows, all_at = np.concatenate(found_rows), np.concatenate(found_at)
        return all_rows[np.argsort(all_at, kind="stable")]

    def _scan(self, codes: Rows) -> Rows:
        rows = np.flatnonzero(np.isin(self._codes, codes))
        place = np.zeros(self.num_groups, dtype=np.int64)
        place[codes] = np.arange(len(codes))
        return rows[np.argsort(place[self._codes[rows]], kind="stable")]


class ReadyGroups:
    """Which groups have ``size`` candidates or more, of one set of candidates."""

    def __init__(self, index: GroupIndex, size: int, ready: RowSet) -> None:
        self.index = index
        self.size = size
        self._ready = ready
        self.rebuild()

    def rebuild(self) -> None:
        """Count all candidates anew."""
        codes = self.index.codes(self._ready.all())
        self._counts = np.bincount(codes[codes >= 0], minlength=self.index.num_groups)
        self._complete = RowSet(self.index.num_groups)
        self._complete.add(np.flatnonzero(self._counts >= self.size))
        self.num_complete = int((self._counts // self.size).sum())

    def change(self, rows: Rows, delta: int) -> None:
        """These rows have become candidates (1), or no longer are (-1)."""
        every = self.index.codes(rows).astype(np.int64)
        codes, counts = np.unique(every[every >= 0], return_counts=True)
        if not len(codes):
            return
        self._reserve()
        before = self._counts[codes]
        after = before + delta * counts
        self._counts[codes] = after
        self.num_complete += int((after // self.size - before // self.size).sum())
        self._complete.add(codes[after >= self.size])
        self._complete.discard(codes[after < self.size])

    def _reserve(self) -> None:
        extra = self.index.num_groups - len(self._counts)
        if extra > 0:
            extra = max(extra, len(self._counts) // 4)
            self._counts = np.concatenate((self._counts, np.zeros(extra, dtype=np.int64)))
            self._complete.reserve(len(self._counts))

    def first(self, num_groups: int) -> Rows:
        """The candidates of the ``num_groups`` oldest complete groups, group by group."""
        codes = self._complete.first(num_groups).astype(np.int64)
        rows = self.index.rows_of(codes)
        return rows[self._ready.contains(rows)]
