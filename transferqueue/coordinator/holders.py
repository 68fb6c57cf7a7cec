"""Who keeps the rows of a partition: its tasks, or its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.coordinator.policy import Retention
from transferqueue.coordinator.table import TaskState

if TYPE_CHECKING:
    from transferqueue.coordinator.policy import PartitionPolicy
    from transferqueue.coordinator.table import Table


def tasks_of(policy: PartitionPolicy, table: Table) -> list[str]:
    """The declared tasks, or those that have claimed."""
    return list(dict.fromkeys((*policy.tasks, *table.tasks)))


def task_counts(table: Table, task: str) -> dict[str, int]:
    """Live rows by what the task has done with them."""
    counts = table.count_by_state(task)
    return {state.name.lower(): counts.get(state, 0) for state in TaskState}


_YET = {"free": "not taken yet", "claimed": "not acked yet", "dead_letter": "dead letters"}
"""What a task has not done with samples that wait for it."""


def _until(policy: PartitionPolicy) -> str:
    """When a partition that no task keeps full lets its samples go."""
    end = "somebody clears them" if policy.ttl_s is None else f"they are {policy.ttl_s:g} s old"
    return f"until {end} (retention {policy.retention.value!r})"


def holders(policy: PartitionPolicy, table: Table) -> str:
    """Who keeps rows from being freed, in a line."""
    parts = []
    if policy.retention is Retention.CONSUMED:
        for task in tasks_of(policy, table):
            counts = task_counts(table, task)
            shown = [f"{counts[state]} {yet}" for state, yet in _YET.items() if counts[state]]
            if shown:
                parts.append(f"task {task!r} ({', '.join(shown)})")
    else:
        parts.append(f"the partition, {_until(policy)}")
    if table.num_freeing:
        parts.append(f"shards ({table.num_freeing} rows being freed)")
    return ", ".join(parts)
