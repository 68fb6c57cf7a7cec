"""The rows of one partition: which cells are ready, and what each task has done with each row.

Columns of one byte a row, in order of arrival:

- a field's cell holds its spec's code (``specs.py``), so ready means ``>= FIRST_SPEC``;
- a task's cell holds the state in its low two bits and the number of deliveries in the others.

Columns grow by a quarter at a time, and dead rows go when they are half of all, so commits and
frees stay O(batch) on average. A fixed-block layout, which never copies, was rejected: every
gather would loop over blocks, and growing 52 MB of columns takes tens of milliseconds once in
200,000 rows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.row_set import Rows, none_of
from transferqueue.coordinator.specs import FIRST_SPEC, NOT_READY, RELEASED, Spec, SpecCodes
from transferqueue.coordinator.uid_ranges import SlotRows, Uids, split_by_slot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from numpy.typing import NDArray

_MIN_CAPACITY = 256
_MIN_DEAD_ROWS = 4096
MAX_DELIVERIES = 63
_STATE_MASK = 0b11
_ONE_DELIVERY = 0b100


class RowState(IntEnum):
    """What a row is to everybody."""

    LIVE = 0
    FREEING = 1
    """Its shard has been told to free it and has not said that it did."""
    DEAD = 2
    LEAVING = 3
    """Nobody new gets it; it is freed when the claims that hold it have ended."""


class TaskState(IntEnum):
    """What a row is to one task."""

    FREE = 0
    CLAIMED = 1
    ACKED = 2
    DEAD_LETTER = 3


class Table:
    """Rows by number. Numbers are stable between two ``keep``."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.capacity = 0
        self.num_live = 0
        self.num_freeing = 0
        self.specs: dict[str, SpecCodes] = {}
        self.num_ready: dict[str, int] = {}
        """field -> live rows that have it."""
        self._uids: Uids = np.zeros(0, dtype=np.int64)
        self._states: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._cells: dict[str, NDArray[np.uint8]] = {}
        self._tasks: dict[str, NDArray[np.uint8]] = {}
        self._num_in_state: dict[str, NDArray[np.int64]] = {}
        """task -> [states] live rows. Counted as they change: a waiting put asks at every ack."""
        self._slots: dict[int, SlotRows] = {}

    # -- rows -----------------------------------------------------------------------------------

    @property
    def num_dead(self) -> int:
        return self.num_rows - self.num_live - self.num_freeing

    @property
    def num_bytes(self) -> int:
        """Memory of all columns and of the lookup, spare capacity included."""
        byte_columns = (self._states, *self._cells.values(), *self._tasks.values())
        lookup = sum(slot.num_bytes for slot in self._slots.values())
        return self._uids.nbytes + sum(column.nbytes for column in byte_columns) + lookup

    def add(self, uids: Uids) -> Rows:
        """New live rows for these ascending uids, none of which is known."""
        first, self.num_rows = self.num_rows, self.num_rows + len(uids)
        self._reserve(self.num_rows)
        self._uids[first : self.num_rows] = uids
        for slot, at in split_by_slot(uids).items():
            self._slots.setdefault(slot, SlotRows()).add(uids[at], first + int(at[0]))
        self.num_live += len(uids)
        for counts in self._num_in_state.values():
            counts[TaskState.FREE] += len(uids)
        return np.arange(first, self.num_rows)

    def _reserve(self, num_rows: int) -> None:
        if num_rows <= self.capacity:
            return
        self.capacity = max(num_rows, self.capacity * 5 // 4, _MIN_CAPACITY)
        self._resize(slice(0, self.capacity))

    def _resize(self, kept: Rows | slice) -> None:
        """Copy every column into one of ``capacity`` rows, kept rows first."""
        self._uids = _resized(self._uids, kept, self.capacity)
        self._states = _resized(self._states, kept, self.capacity)
        for columns in (self._cells, self._tasks):
            for name, column in columns.items():
                columns[name] = _resized(column, kept, self.capacity)

    def find(self, uids: Uids) -> Rows:
        """The row of each uid, -1 where there is none or it is dead."""
        rows = np.full(len(uids), -1, dtype=np.int64)
        for slot, at in split_by_slot(uids).items():
            known = self._slots.get(slot)
            if known is not None:
                rows[at] = known.find(uids[at])
        if self.num_dead:
            rows[(rows >= 0) & (self._states[rows] == RowState.DEAD)] = -1
        return rows

    def uids(self, rows: Rows) -> Uids:
        """The uids of rows."""
        return self._uids[rows]

    def states(self, rows: Rows) -> NDArray[np.uint8]:
        """The `RowState` of each row."""
        return self._states[rows]

    def is_live(self, rows: Rows | slice) -> NDArray[np.bool_]:
        """Which of these rows anybody may see."""
        return np.asarray(self._states[rows] == RowState.LIVE)

    def live_rows(self) -> Rows:
        """Every live row. O(rows)."""
        return np.flatnonzero(self._states[: self.num_rows] == RowState.LIVE)

    def present_rows(self) -> Rows:
        """Every row that its shard still has. O(rows)."""
        return np.flatnonzero(self._states[: self.num_rows] != RowState.DEAD)

    def freeing_rows(self) -> Rows:
        """Every row whose shard has been told to free it. O(rows)."""
        return np.flatnonzero(self._states[: self.num_rows] == RowState.FREEING)

    def is_held(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows claims may hold: live ones, and those that leave with their claim."""
        states = self._states[rows]
        return np.asarray((states == RowState.LIVE) | (states == RowState.LEAVING))

    def leaving_rows(self) -> Rows:
        """Every row that goes when its claims end. O(rows)."""
        return np.flatnonzero(self._states[: self.num_rows] == RowState.LEAVING)

    def is_leaving(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows go when their claims end."""
        return np.asarray(self._states[rows] == RowState.LEAVING)

    def start_freeing(self, rows: Rows, state: RowState = RowState.FREEING) -> None:
        """Live rows are nobody's from now on, or, with ``LEAVING``, once their claims end."""
        self._states[rows] = state
        self.num_live -= len(rows)
        self.num_freeing += len(rows)
        for field, cells in self._cells.items():
            self.num_ready[field] -= int(np.count_nonzero(cells[rows] >= FIRST_SPEC))
        for task, column in self._tasks.items():
            self._num_in_state[task] -= _by_state(column[rows])

    def let_go(self, rows: Rows) -> None:
        """The last claim on leaving rows has ended."""
        self._states[rows] = RowState.FREEING

    def bury(self, rows: Rows) -> None:
        """Rows that are being freed are gone."""
        self._states[rows] = RowState.DEAD
        self.num_freeing -= len(rows)

    def needs_compaction(self) -> bool:
        """Dead rows are half of all, and enough to be worth it."""
        return self.num_dead > max(_MIN_DEAD_ROWS, self.num_rows // 2)

    def compact(self) -> Rows:
        """Renumber the rows without the dead ones; row ``i`` is the one that was ``result[i]``."""
        kept = self.present_rows()
        self.num_rows = len(kept)
        self.capacity = max(self.num_rows * 5 // 4, _MIN_CAPACITY)
        self._resize(_as_slice(kept))
        self._slots = {}
        uids = self._uids[: self.num_rows]
        for slot, at in split_by_slot(uids).items():
            self._slots[slot] = SlotRows.of(uids[at], at)
        return kept

    # -- fields ---------------------------------------------------------------------------------

    @property
    def fields(self) -> Iterable[str]:
        """Every field that any row has had."""
        return self._cells.keys()

    def mark_ready(self, field: str, rows: Rows, spec: Spec) -> NDArray[np.bool_]:
        """These live rows have the field now. Returns which did not before."""
        cells = self._cells.get(field)
        if cells is None:
            cells = self._cells[field] = np.zeros(self.capacity, dtype=np.uint8)
            self.specs[field] = SpecCodes(field)
            self.num_ready[field] = 0
        new = np.asarray(cells[rows] == NOT_READY)
        cells[rows[new]] = self.specs[field].code(spec)
        self.num_ready[field] += int(np.count_nonzero(new))
        return new

    def is_ready(self, field: str, rows: Rows | slice) -> NDArray[np.bool_]:
        """Which of these rows have the field."""
        cells = self._cells.get(field)
        if cells is None:
            return none_of(rows)
        return np.asarray(cells[rows] >= FIRST_SPEC)

    def release(self, field: str, rows: Rows) -> Rows:
        """The field's cells of live rows are done with; returns the rows that had one."""
        had = rows[self.is_ready(field, rows)]
        if len(had):
            self._cells[field][had] = RELEASED
            self.num_ready[field] -= len(had)
        return had

    def spec(self, field: str, rows: Rows) -> Spec:
        """One spec for the field of these rows, which have it."""
        return self.specs[field].merged(self._cells[field][rows])

    def common_fields(self, rows: Rows) -> list[str]:
        """The fields that all of these rows have."""
        return [field for field in self._cells if bool(self.is_ready(field, rows).all())]

    # -- tasks ----------------------------------------------------------------------------------

    @property
    def tasks(self) -> Iterable[str]:
        """Every task that has claimed anything."""
        return self._tasks.keys()

    def add_task(self, task: str) -> None:
        """From now on the task has a state for every row."""
        if task not in self._tasks:
            self._tasks[task] = np.zeros(self.capacity, dtype=np.uint8)
            self._num_in_state[task] = np.array([self.num_live, 0, 0, 0])

    def task_column(self, task: str) -> NDArray[np.uint8]:
        """States and deliveries of every row, to be kept; ``restore`` puts them back."""
        return self._tasks[task]

    def restore(self, task: str, rows: Rows, column: NDArray[np.uint8]) -> None:
        """Put back what ``task_column`` had of these rows. O(rows of the table)."""
        self.add_task(task)
        self._tasks[task][rows] = column
        self._num_in_state[task] = _by_state(self._tasks[task][self.live_rows()])

    def is_in_state(self, task: str, rows: Rows | slice, state: TaskState) -> NDArray[np.bool_]:
        """Which of these rows are in this state for the task."""
        column = self._tasks.get(task)
        if column is None:
            return none_of(rows) | (state is TaskState.FREE)
        return np.asarray(column[rows] & _STATE_MASK == state)

    def count_by_state(self, task: str) -> dict[TaskState, int]:
        """Live rows by their state for the task."""
        counts = self._num_in_state.get(task)
        if counts is None:
            return {TaskState.FREE: self.num_live}
        return {state: int(counts[state]) for state in TaskState}

    def sum_by_state(
        self, task: str, rows: Rows, weights: NDArray[np.float64]
    ) -> dict[TaskState, float]:
        """Of these rows the sum of a number of theirs, by their state for the task. Most are free
        in a full table, so only the others are added up."""
        total, column = float(weights.sum()), self._tasks.get(task)
        if column is None:
            return {TaskState.FREE: total}
        states = column[_as_slice(rows)] & _STATE_MASK
        other = np.flatnonzero(states)
        sums = np.bincount(states[other], weights=weights[other], minlength=len(TaskState))
        sums[TaskState.FREE] = total - sums.sum()
        return {state: float(sums[state]) for state in TaskState}

    def count_idle(self, tasks: Collection[str]) -> int:
        """Live rows that at least one of these tasks has neither acked nor out under a claim.
        O(rows) for more than one."""
        if len(tasks) == 1:
            counts = self.count_by_state(next(iter(tasks)))
            return counts[TaskState.FREE] + counts.get(TaskState.DEAD_LETTER, 0)
        every = slice(0, self.num_rows)
        idle = none_of(every)
        for task in tasks:
            idle |= self.is_in_state(task, every, TaskState.FREE)
            idle |= self.is_in_state(task, every, TaskState.DEAD_LETTER)
        return int(np.count_nonzero(idle & (self._states[every] == RowState.LIVE)))

    def rows_in_state(self, task: str, state: TaskState) -> Rows:
        """Every live row in this state for the task. O(rows)."""
        rows = self.live_rows()
        return rows[self.is_in_state(task, rows, state)]

    def is_claimed(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows a claim of any task holds."""
        claimed = np.zeros(len(rows), dtype=np.bool_)
        for task in self._tasks:
            claimed |= self.is_in_state(task, rows, TaskState.CLAIMED)
        return claimed

    def reset_deliveries(self, task: str, rows: Rows) -> None:
        """Rows are free for the task, and count as never delivered to it."""
        self._count_as(task, rows, TaskState.FREE)
        self._tasks[task][rows] = TaskState.FREE

    def set_state(self, task: str, rows: Rows, state: TaskState) -> None:
        """Put rows into a state; their delivery counts stay."""
        column = self._tasks[task]
        self._count_as(task, rows, state)
        column[rows] = (column[rows] & ~np.uint8(_STATE_MASK)) | np.uint8(state)

    def _count_as(self, task: str, rows: Rows, state: TaskState) -> None:
        live = rows[self.is_live(rows)]
        counts = self._num_in_state[task]
        counts -= _by_state(self._tasks[task][live])
        counts[state] += len(live)

    def deliver(self, task: str, rows: Rows) -> None:
        """Count one more delivery of these rows."""
        column = self._tasks[task]
        values = column[rows]
        column[rows] = np.where(
            values >> 2 < MAX_DELIVERIES, values + np.uint8(_ONE_DELIVERY), values
        )

    def take_delivery_back(self, task: str, rows: Rows) -> None:
        """One delivery of these rows was none. Of a row with too many to count nothing changes."""
        column = self._tasks[task]
        values = column[rows]
        is_counted = (values >> 2 > 0) & (values >> 2 < MAX_DELIVERIES)
        column[rows] = np.where(is_counted, values - np.uint8(_ONE_DELIVERY), values)

    def deliveries(self, task: str, rows: Rows) -> NDArray[np.uint8]:
        """How often each row was delivered to the task."""
        column = self._tasks.get(task)
        if column is None:
            return np.zeros(len(rows), dtype=np.uint8)
        return np.asarray(column[rows] >> 2)

    def eligible_mask(self, task: str, fields: Iterable[str]) -> NDArray[np.bool_]:
        """Which of all rows are live, free for the task and have the fields. O(rows)."""
        every = slice(0, self.num_rows)
        mask = np.asarray(self._states[every] == RowState.LIVE)
        mask &= self.is_in_state(task, every, TaskState.FREE)
        for field in fields:
            mask &= self.is_ready(field, every)
        return mask


def _resized(column: NDArray[Any], kept: Rows | slice, capacity: int) -> NDArray[Any]:
    resized = np.zeros(capacity, dtype=column.dtype)
    values = column[kept]
    resized[: len(values)] = values
    return resized


def _by_state(column: NDArray[np.uint8]) -> NDArray[np.int64]:
    """[states] how many of these cells of a task are in each."""
    return np.bincount(column & _STATE_MASK, minlength=len(TaskState))


def _as_slice(kept: Rows) -> Rows | slice:
    """Rows that are all in a row as a slice: then compaction is a plain copy."""
    if len(kept) and int(kept[-1]) - int(kept[0]) + 1 == len(kept):
        return slice(int(kept[0]), int(kept[-1]) + 1)
    return kept
