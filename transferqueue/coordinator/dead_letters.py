"""Rows that a task was given too often without an ack: looking at them, and trying them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.coordinator.effects import DeadLetters
from transferqueue.coordinator.table import TaskState
from transferqueue.errors import FieldSpecMismatch, InvalidInput

if TYPE_CHECKING:
    from transferqueue.coordinator.effects import Effect
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.specs import Spec
    from transferqueue.coordinator.uid_ranges import Uids


def look(partition: Partition, task: str) -> DeadLetters:
    """All of a task, oldest first. O(rows)."""
    table = partition.table
    rows = table.rows_in_state(task, TaskState.DEAD_LETTER)
    tags = partition.tags.get(rows)
    return DeadLetters(
        uids=table.uids(rows),
        fields=_specs(partition, rows),
        tags={name: values.to_column() for name, values in tags.items()},
        deliveries=table.deliveries(task, rows),
    )


def _specs(partition: Partition, rows: Rows) -> dict[str, Spec]:
    specs = {}
    for field in partition.table.common_fields(rows) if len(rows) else ():
        try:
            specs[field] = partition.table.spec(field, rows)
        except FieldSpecMismatch:  # nobody asked for it by name
            continue
    return specs


def redrive(
    partition: Partition, task: str, uids: Uids | None, now_s: float
) -> tuple[int, list[Effect]]:
    """Let the task have its dead letters (``None``: all) again, counted from nought.

    Returns how many. InvalidInput, and no change, if one of ``uids`` is none of them.
    """
    table = partition.table
    rows = table.rows_in_state(task, TaskState.DEAD_LETTER)
    if uids is not None:
        rows = _chosen(table.find(uids), rows, task)
    if not len(rows):
        return 0, []
    table.reset_deliveries(task, rows)
    feeds = partition.feeds.of_task(task)
    partition.feeds.refresh(rows, feeds)
    return len(rows), partition.serve(feeds, now_s)


def _chosen(asked: Rows, dead: Rows, task: str) -> Rows:
    wrong = ~np.isin(asked, dead)
    if bool(wrong.any()):
        raise InvalidInput(
            f"{int(wrong.sum())} of {len(asked)} rows are no dead letters of task {task!r}; "
            f"dead_letters() lists those that are"
        )
    return np.unique(asked)
