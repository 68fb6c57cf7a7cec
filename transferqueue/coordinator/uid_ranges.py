"""Uids by ranges: which row has which uid, and which uids are gone for good.

A shard hands out the uids of one put in a row, so both are kept as runs of consecutive uids, in
sorted arrays, one set a shard slot. Looking up a batch is one ``searchsorted`` over the runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from transferqueue.errors import RowsLost
from transferqueue.homes import NAMED, Homes, positions_by
from transferqueue.uids import SEQUENCE_BITS

if TYPE_CHECKING:
    from transferqueue.coordinator.row_set import Rows

Uids = NDArray[np.int64]

_SLOT_MASK = 0xFFFF


def slots_of(uids: Uids) -> Uids:
    """The slot that each uid names."""
    return (uids >> SEQUENCE_BITS) & _SLOT_MASK


def split_by_slot(uids: Uids) -> dict[int, NDArray[np.int64]]:
    """slot that the uid names -> positions in ``uids``, ascending."""
    return positions_by(slots_of(uids))


def _runs(uids: Uids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start positions and lengths of the consecutive runs in ascending uids."""
    breaks = np.flatnonzero(uids[1:] != uids[:-1] + 1) + 1
    starts = np.concatenate(([0], breaks))
    return starts, np.diff(np.append(starts, len(uids)))


class _Growing:
    """An int array that is appended to."""

    __slots__ = ("_data", "size")

    def __init__(self, dtype: type[np.signedinteger]) -> None:
        self._data = np.zeros(16, dtype=dtype)
        self.size = 0

    @property
    def values(self) -> NDArray[np.signedinteger]:
        """A view of what is in; valid until the next change."""
        return self._data[: self.size]

    @property
    def num_bytes(self) -> int:
        return self._data.nbytes

    def append(self, values: NDArray[np.signedinteger]) -> None:
        end = self.size + len(values)
        if end > len(self._data):
            grown = np.zeros(max(end, len(self._data) * 5 // 4), dtype=self._data.dtype)
            grown[: self.size] = self.values
            self._data = grown
        self._data[self.size : end] = values
        self.size = end

    def insert(self, at: NDArray[np.int64], values: NDArray[np.signedinteger]) -> None:
        self._data = np.insert(self.values, at, values)
        self.size = len(self._data)


class SlotRows:
    """uid -> row for the rows of one slot. Uids are added once; a run has consecutive rows."""

    def __init__(self) -> None:
        self._uids = _Growing(np.int64)  # first uid of each run, ascending
        self._rows = _Growing(np.int32)  # its row
        self._lengths = _Growing(np.int32)

    @classmethod
    def of(cls, uids: Uids, rows: Rows) -> SlotRows:
        """A lookup of all these rows at once, in any order."""
        order = np.argsort(uids)
        uids, rows = uids[order], rows[order]
        breaks = (uids[1:] != uids[:-1] + 1) | (rows[1:] != rows[:-1] + 1)
        starts = np.concatenate(([0], np.flatnonzero(breaks) + 1))
        made = cls()
        made._uids.append(uids[starts])
        made._rows.append(rows[starts])
        made._lengths.append(np.diff(np.append(starts, len(uids))))
        return made

    @property
    def num_bytes(self) -> int:
        return self._uids.num_bytes + self._rows.num_bytes + self._lengths.num_bytes

    def add(self, uids: Uids, first_row: int) -> None:
        """Ascending uids, not in yet, get the rows ``first_row, first_row + 1, ...``."""
        starts, lengths = _runs(uids)
        first_uids = uids[starts]
        if self._extends_last(first_uids[0], first_row):
            self._lengths.values[-1] += lengths[0]
            starts, first_uids, lengths = starts[1:], first_uids[1:], lengths[1:]
            if not len(starts):
                return
        rows = first_row + starts
        columns = ((self._uids, first_uids), (self._rows, rows), (self._lengths, lengths))
        if not self._uids.size or first_uids[0] > self._uids.values[-1]:
            for column, values in columns:
                column.append(values)
            return
        # Two puts of a shard may commit in the other order than they took their uids.
        at = np.searchsorted(self._uids.values, first_uids)
        for column, values in columns:
            column.insert(at, values)

    def _extends_last(self, uid: np.int64, row: int) -> bool:
        if not self._uids.size:
            return False
        length = self._lengths.values[-1]
        return bool(self._uids.values[-1] + length == uid and self._rows.values[-1] + length == row)

    def find(self, uids: Uids) -> Rows:
        """The row of each uid, -1 where there is none."""
        if not self._uids.size:
            return np.full(len(uids), -1, dtype=np.int64)
        run = np.searchsorted(self._uids.values, uids, side="right") - 1
        offset = uids - self._uids.values[run]  # run -1 wraps to the last: offset is negative
        found = (offset >= 0) & (offset < self._lengths.values[run])
        return np.where(found, self._rows.values[run] + offset, -1)


class UidRanges:
    """A set of uids of one slot, as disjoint ranges that do not touch."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: Uids = np.zeros(0, dtype=np.int64)
        self._stops: Uids = np.zeros(0, dtype=np.int64)

    @property
    def num_ranges(self) -> int:
        return len(self._starts)

    def contains(self, uids: Uids) -> NDArray[np.bool_]:
        """Which of these uids are in."""
        if not len(self._starts):
            return np.zeros(len(uids), dtype=np.bool_)
        at = np.searchsorted(self._starts, uids, side="right") - 1
        return (at >= 0) & (uids < self._stops[at])

    def add(self, uids: Uids) -> None:
        """Put uids in, in any order, repeats welcome."""
        if not len(uids):
            return
        uids = np.unique(uids)
        at, lengths = _runs(uids)
        self._merge(uids[at], uids[at] + lengths)

    def _merge(self, more_starts: Uids, more_stops: Uids) -> None:
        """Put non-empty ranges in."""
        starts = np.concatenate((self._starts, more_starts))
        stops = np.concatenate((self._stops, more_stops))
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(stops[order])
        opens = np.concatenate(([True], starts[1:] > reach[:-1]))
        closes = np.append(opens[1:], True)
        self._starts, self._stops = starts[opens], reach[closes]

    def add_all_but(self, uids: Uids, begin: int, end: int) -> None:
        """Put everything from ``begin`` to ``end`` in but these ascending uids, which are in
        between."""
        begins = np.array([begin], dtype=np.int64)
        ends = np.array([end], dtype=np.int64)
        if len(uids):
            at, lengths = _runs(uids)
            begins = np.concatenate((begins, uids[at] + lengths))
            ends = np.concatenate((uids[at], ends))
        some = ends > begins
        if bool(some.any()):
            self._merge(begins[some], ends[some])


class GoneUids:
    """Uids that were freed, of the whole service.

    Without it a commit stream that is sent again would bring freed rows back to life. Slots are
    shared by partitions, and over all of them freed uids grow together into few ranges: never
    more than there are live rows and aborted puts.
    """

    def __init__(self, homes: Homes = NAMED) -> None:
        self.homes = homes
        self._by_slot: dict[int, UidRanges] = {}
        self._across = UidRanges()
        """Ranges over many slots, of a restored service: those between its uids and older ones."""
        self.lost_slots: set[int] = set()
        """Slots whose shard is gone for good."""

    def check_not_lost(self, uids: Uids) -> None:
        """RowsLost if one of these was on a shard that is gone for good."""
        if not self.lost_slots:
            return
        homes = self.homes.of(uids)
        lost = np.isin(homes, list(self.lost_slots))
        if bool(lost.any()):
            slots = np.unique(homes[lost]).tolist()
            raise RowsLost(int(lost.sum()), len(uids), slots)

    @property
    def num_ranges(self) -> int:
        by_slot = sum(ranges.num_ranges for ranges in self._by_slot.values())
        return by_slot + self._across.num_ranges

    def add(self, uids: Uids) -> None:
        for slot, at in split_by_slot(uids).items():
            self._by_slot.setdefault(slot, UidRanges()).add(uids[at])

    def add_all_but(self, slot: int, uids: Uids, next_uid: int) -> None:
        """Of those at home on a slot every uid below ``next_uid`` but these ascending ones."""
        for home in self.homes.ranges_of(slot):
            start, stop = home.start, min(home.stop, next_uid)
            if start < stop:
                low, high = np.searchsorted(uids, (start, stop))
                self._ranges_for(start, stop).add_all_but(uids[low:high], start, stop)

    def _ranges_for(self, start: int, stop: int) -> UidRanges:
        named = start >> SEQUENCE_BITS
        if named == (stop - 1) >> SEQUENCE_BITS:
            return self._by_slot.setdefault(named, UidRanges())
        return self._across

    def contains(self, uids: Uids) -> NDArray[np.bool_]:
        gone = self._across.contains(uids)
        for slot, at in split_by_slot(uids).items():
            ranges = self._by_slot.get(slot)
            if ranges is not None:
                gone[at] |= ranges.contains(uids[at])
        return gone
