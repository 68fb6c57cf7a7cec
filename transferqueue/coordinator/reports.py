"""What a partition holds and for whom, as plain values and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.policy import Retention
from transferqueue.coordinator.table import TaskState
from transferqueue.coordinator.waiters import ClaimWaiter
from transferqueue.errors import near_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.policy import PartitionPolicy
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.samplers.base import Grouping
    from transferqueue.coordinator.waiters import CellWaiter, SelectWaiter


def status(partition: Partition) -> dict[str, Any]:
    """Counts of one partition. O(rows) a task."""
    table, quota = partition.table, partition.quota
    return {
        "rows": table.num_live,
        "rows_being_freed": table.num_freeing,
        "bytes": quota.field_bytes.total,
        "fields": dict(table.num_ready),
        "tasks": {task: task_counts(partition, task) for task in tasks(partition)},
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
        "policy": partition.policy.to_plain(),
    }


def held(partition: Partition, now_s: float) -> dict[str, Any]:
    """Rows and bytes of one partition by field, task, age and site. O(rows) a field and a task.

    The bytes of a site are those that its puts had; of a task or an age, its cells of each field
    times the mean cell of that field.
    """
    quota, rows = partition.quota, partition.table.live_rows()
    row_bytes = _bytes_of_rows(partition, rows)
    return {
        "rows": partition.table.num_live,
        "rows_being_freed": partition.table.num_freeing,
        "bytes": quota.field_bytes.total,
        "bytes_by_field": quota.field_bytes.by_field(),
        "tasks": {task: task_counts(partition, task) for task in tasks(partition)},
        "bytes_by_task": {
            task: _bytes_by_state(partition, task, rows, row_bytes) for task in tasks(partition)
        },
        **partition.lifetimes.ages(now_s, row_bytes),
        "credit": {"rows": quota.credit.rows, "bytes": quota.credit.num_bytes},
        "max_rows": partition.policy.max_rows,
        "max_bytes": partition.policy.max_bytes,
        "held_by": holders(partition),
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
    partition: Partition, task: str, rows: Rows, row_bytes: NDArray[np.float64]
) -> dict[str, int]:
    sums = partition.table.sum_by_state(task, rows, row_bytes)
    return {state.name.lower(): round(sums.get(state, 0.0)) for state in TaskState}


def tasks(partition: Partition) -> list[str]:
    """The declared tasks, or those that have claimed."""
    return list(dict.fromkeys((*partition.policy.tasks, *partition.table.tasks)))


def task_counts(partition: Partition, task: str) -> dict[str, int]:
    """Live rows by what the task has done with them."""
    counts = partition.table.count_by_state(task)
    return {state.name.lower(): counts.get(state, 0) for state in TaskState}


_YET = {"free": "not taken yet", "claimed": "not acked yet", "dead_letter": "dead letters"}
"""What a task has not done with samples that wait for it."""


def _until(policy: PartitionPolicy) -> str:
    """When a partition that no task keeps full lets its samples go."""
    end = "somebody clears them" if policy.ttl_s is None else f"they are {policy.ttl_s:g} s old"
    return f"until {end} (retention {policy.retention.value!r})"


def holders(partition: Partition) -> str:
    """Who keeps rows from being freed, in a line."""
    parts = []
    if partition.policy.retention is Retention.CONSUMED:
        for task in tasks(partition):
            counts = task_counts(partition, task)
            shown = [f"{counts[state]} {yet}" for state, yet in _YET.items() if counts[state]]
            if shown:
                parts.append(f"task {task!r} ({', '.join(shown)})")
    else:
        parts.append(f"the partition, {_until(partition.policy)}")
    if partition.table.num_freeing:
        parts.append(f"shards ({partition.table.num_freeing} rows being freed)")
    return ", ".join(parts)


def unknown_field_hint(partition: Partition, fields: Iterable[str]) -> str:
    """What may be wrong with a wait for these fields, "" if nothing seems to be."""
    known = list(partition.table.fields)
    unknown = [field for field in fields if known and field not in known]
    if not unknown:
        return ""
    near = near_names(unknown[0], known)
    hint = f", did you mean {near[0]!r}" if near else ""
    return f"no sample of partition {partition.name!r} has had {unknown[0]!r}{hint}"


def shortage_hint(partition: Partition, waiter: ClaimWaiter | CellWaiter | SelectWaiter) -> str:
    """What may be wrong with a wait that ends in vain, "" if nothing seems to be. O(1) in rows."""
    unknown = unknown_field_hint(partition, waiter.fields)
    if unknown or not isinstance(waiter, ClaimWaiter) or waiter.uids is not None:
        return unknown
    grouping, num_ready = waiter.sampler.grouping, len(waiter.feed.ready)
    if grouping is None or not num_ready:
        return ""
    return f"{num_ready} have all of the fields, but {groups_rule(grouping)}"


def groups_rule(grouping: Grouping) -> str:
    """Why samples that are ready are not handed out by a sampler of groups."""
    return f"only complete groups count: {grouping.size} samples of one {grouping.tag!r}"
