"""What a partition holds and for whom, as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.holders import holders, task_counts, tasks_of
from transferqueue.coordinator.table import TaskState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.table import Table


def status(partition: Partition) -> dict[str, Any]:
    """Counts of one partition. O(rows) a task."""
    table, quota, policy = partition.table, partition.quota, partition.policy
    return {
        "rows": table.num_live,
        "rows_being_freed": table.num_freeing,
        "bytes": quota.field_bytes.total,
        "fields": dict(table.num_ready),
        "tasks": {task: task_counts(table, task) for task in tasks_of(policy, table)},
        "tags": {name: column.kind.value for name, column in partition.tags.columns.items()},
        "tag_values_refused": dict(partition.num_refused_tags),
        "waiting": {
            "claims": sum(1 for _ in partition.claims.waiting()),
            "cells": len(partition.cells),
            "selects": len(partition.selects),
            "puts": len(quota.waiting),
        },
        "newest_policy_version": partition.staleness.newest,
        "stale_rows_held": partition.num_stale(),
        "stale_rows_dropped": partition.lifetimes.num_dropped_stale,
        "old_rows_dropped": partition.lifetimes.num_dropped_old,
        "rows_put": quota.rows_put,
        "rows_handed_out": quota.rows_handed_out,
        "puts_let_past_quota": quota.num_let_past,
        "coordinator_bytes": table.num_bytes + partition.tags.num_bytes + partition.feeds.num_bytes,
        "policy": policy.to_plain(),
    }


def held(partition: Partition, now_s: float) -> dict[str, Any]:
    """Rows and bytes of one partition by field, task, age and site. O(rows) a field and a task.

    The bytes of a site are those that its puts had; of a task or an age, its cells of each field
    times the mean cell of that field.
    """
    table, quota, policy = partition.table, partition.quota, partition.policy
    tasks, rows = tasks_of(policy, table), table.live_rows()
    row_bytes = _bytes_of_rows(partition, rows)
    return {
        "rows": table.num_live,
        "rows_being_freed": table.num_freeing,
        "bytes": quota.field_bytes.total,
        "bytes_by_field": quota.field_bytes.by_field(),
        "tasks": {task: task_counts(table, task) for task in tasks},
        "bytes_by_task": {task: _bytes_by_state(table, task, rows, row_bytes) for task in tasks},
        **partition.lifetimes.ages(now_s, row_bytes),
        "credit": {"rows": quota.credit.rows, "bytes": quota.credit.num_bytes},
        "max_rows": policy.max_rows,
        "max_bytes": policy.max_bytes,
        "held_by": holders(policy, table),
    }


def _bytes_of_rows(partition: Partition, rows: Rows) -> NDArray[np.float64]:
    """Of these rows, each cell taken for an average one of its field."""
    table, num_bytes = partition.table, np.zeros(len(rows))
    for field, cell_bytes in partition.quota.field_bytes.of_a_cell().items():
        if table.num_ready[field] == len(rows):  # most fields are complete, and this takes no look
            num_bytes += cell_bytes
        else:
            np.add(num_bytes, cell_bytes, out=num_bytes, where=table.is_ready(field, rows))
    return num_bytes


def _bytes_by_state(
    table: Table, task: str, rows: Rows, row_bytes: NDArray[np.float64]
) -> dict[str, int]:
    sums = table.sum_by_state(task, rows, row_bytes)
    return {state.name.lower(): round(sums.get(state, 0.0)) for state in TaskState}
