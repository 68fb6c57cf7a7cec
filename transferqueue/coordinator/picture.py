"""A partition as a picture: along one side its samples, oldest first, along the other its fields
and what each task has done, and how old the policy versions are that it holds.

A picture has a number of columns that does not depend on the samples: each stands for a stretch of
them, and a cell says how many in 255 of the stretch have the field. 255 is said of a stretch that
is complete, and 0 of one that has nothing; all between is 1 to 254. So a picture of 1,000 columns
shows one hole in 1,000,000 samples.

It costs O(rows) a field, but one that all samples have or none has costs nothing: 1,000,000 rows
with 20 mixed fields take about 30 ms here, with complete ones 2 ms. Above `MAX_ROWS` every second
row, or third, … stands for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.holders import tasks_of
from transferqueue.coordinator.table import TaskState
from transferqueue.coordinator.tag_values import TagKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.tags import TagColumn

    Levels = NDArray[np.uint8]  # [columns]

MAX_COLUMNS = 2048
MAX_ROWS = 1 << 20
MAX_FIELDS = 256
"""That are shown: a model's weights have more, and nobody looks at each."""

STALENESS_CLASSES = 17
"""0 to 15 versions behind the newest, and beyond."""

FULL = 255

BLOCK = 1 << 16
"""Rows whose versions are looked at together: what that takes stays in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What there is to draw."""

    partition: str
    num_rows: int
    step: int
    """Each how many-th row was looked at."""
    ends: NDArray[np.int64]  # [columns], the first sample after each stretch
    fields: dict[str, Levels]
    num_ready: dict[str, int]
    """field -> samples that have it."""
    num_fields_left_out: int
    tasks: dict[str, dict[str, Levels]]
    """task -> state but free -> how much of each stretch is in it."""
    newest_version: int | None
    staleness: list[int]
    """[classes] samples by versions behind the newest; ``[]`` where no sample has a version."""


def picture(partition: Partition, num_columns: int) -> Picture:
    """Of at most so many columns."""
    table = partition.table
    grid = _Grid.over(partition, num_columns)
    fields = list(islice(table.fields, MAX_FIELDS))
    newest, staleness = _staleness(partition, grid)
    return Picture(
        partition=partition.name,
        num_rows=table.num_live,
        step=grid.step,
        ends=np.append(grid.firsts[1:] * grid.step, table.num_live)[: len(grid.firsts)],
        fields={field: _field(partition, field, grid) for field in fields},
        num_ready={field: table.num_ready[field] for field in fields},
        num_fields_left_out=len(list(table.fields)) - len(fields),
        tasks={
            task: _task(partition, task, grid)
            for task in tasks_of(partition.policy, partition.table)
        },
        newest_version=newest,
        staleness=staleness,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Which rows are looked at, and how they divide into stretches of equal numbers of live ones.

    Columns of the table are cut, not gathered from: a gather of 1,000,000 rows takes 5 ms.
    """

    step: int
    rows: slice
    num_rows: int
    """That are looked at, dead ones too."""
    is_live: NDArray[np.bool_] | None
    """Of the rows that are looked at; ``None``: all are."""
    firsts: NDArray[np.int64]  # [columns], live ones before each stretch
    starts: NDArray[np.int64]  # [columns], where each stretch begins among the rows looked at
    sizes: NDArray[np.int64]  # [columns], live ones in each stretch

    @classmethod
    def over(cls, partition: Partition, num_columns: int) -> _Grid:
        table = partition.table
        step = max(1, -(-table.num_rows // MAX_ROWS))
        rows = slice(0, table.num_rows, step)
        is_live = None if table.num_live == table.num_rows else table.is_live(rows)
        at = None if is_live is None else np.flatnonzero(is_live)
        num_rows = -(-table.num_rows // step)
        num_seen = num_rows if at is None else len(at)
        num = min(num_seen, num_columns)
        firsts = np.arange(num, dtype=np.int64) * num_seen // max(1, num)
        sizes = np.diff(firsts, append=num_seen) if num else firsts
        starts = firsts if at is None else at[firsts]
        return cls(
            step=step,
            rows=rows,
            num_rows=num_rows,
            is_live=is_live,
            firsts=firsts,
            starts=starts,
            sizes=sizes,
        )

    def levels(self, mask: NDArray[np.bool_]) -> Levels:
        """How many in 255 of each stretch are set; 0 for none and 255 for all of them only."""
        if not len(self.starts):
            return np.zeros(0, dtype=np.uint8)
        if self.is_live is not None:
            mask = mask & self.is_live
        counts = np.add.reduceat(mask.view(np.uint8), self.starts, dtype=np.int32)
        levels = np.clip(counts * np.int64(FULL) // self.sizes, np.sign(counts), FULL - 1)
        levels[counts == self.sizes] = FULL
        return np.asarray(levels, dtype=np.uint8)


def _field(partition: Partition, field: str, grid: _Grid) -> Levels:
    table = partition.table
    num_ready = table.num_ready[field]
    if num_ready in (0, table.num_live):
        return np.full(len(grid.starts), FULL if num_ready else 0, dtype=np.uint8)
    return grid.levels(table.is_ready(field, grid.rows))


def _task(partition: Partition, task: str, grid: _Grid) -> dict[str, Levels]:
    table, counts = partition.table, partition.table.count_by_state(task)
    return {
        state.name.lower(): grid.levels(table.is_in_state(task, grid.rows, state))
        for state in TaskState
        if state is not TaskState.FREE and counts.get(state, 0)
    }


def _staleness(partition: Partition, grid: _Grid) -> tuple[int | None, list[int]]:
    newest = partition.staleness.newest
    column = partition.tags.columns.get(partition.policy.version_tag)
    if column is None or column.kind not in (TagKind.INT, TagKind.FLOAT):
        return newest, []
    parts = [_versions(column, grid, at) for at in range(0, grid.num_rows, BLOCK)]
    if not any(len(part) for part in parts):
        return newest, []
    highest = max(int(part.max()) for part in parts if len(part))
    newest = highest if newest is None else max(newest, highest)
    counts = np.zeros(STALENESS_CLASSES, dtype=np.int64)
    for part in parts:
        behind = np.clip(newest - part, 0, STALENESS_CLASSES - 1).astype(np.int64)
        counts += np.bincount(behind, minlength=STALENESS_CLASSES)
    return newest, counts.tolist()


def _versions(column: TagColumn, grid: _Grid, at: int) -> NDArray[Any]:
    """Of a block of the rows that are looked at, from the ``at``-th on."""
    end = min(at + BLOCK, grid.num_rows)
    rows = slice(at * grid.step, (end - 1) * grid.step + 1, grid.step)
    is_there = column.present(rows)
    if grid.is_live is not None:
        is_there = is_there & grid.is_live[at:end]
    versions = column.raw(rows)[is_there]
    return versions if column.kind is TagKind.INT else versions[np.isfinite(versions)]


def to_body(made: Picture, add: Any) -> dict[str, Any]:
    """Its wire form. ``add`` puts an array beside the body and says what stands for it."""
    return {
        "partition": made.partition,
        "num_rows": made.num_rows,
        "step": made.step,
        "ends": add(made.ends),
        "fields": {field: add(levels) for field, levels in made.fields.items()},
        "num_ready": made.num_ready,
        "num_fields_left_out": made.num_fields_left_out,
        "tasks": {
            task: {state: add(levels) for state, levels in states.items()}
            for task, states in made.tasks.items()
        },
        "newest_version": made.newest_version,
        "staleness": made.staleness,
    }
