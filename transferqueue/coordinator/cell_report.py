"""Single samples of a partition, cell by cell, for an operator who asks about a few of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.holders import tasks_of
from transferqueue.coordinator.table import RowState, TaskState
from transferqueue.errors import UID_SAMPLE, InvalidInput, RowsGone, UnknownUids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.leases import Lease, Leases
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.partitions import Partitions
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.tag_values import TagColumnValues
    from transferqueue.coordinator.uid_ranges import Uids

MAX_SAMPLES = 1000
"""Of one answer. Whoever wants to see more wants a count: `reports.status`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRows:
    """A claim that is out, and which of the samples are its."""

    claim_id: int
    task: str
    client: str
    left_s: float
    is_mine: NDArray[np.bool_]  # [rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRows:
    """What one task has done with the samples."""

    states: NDArray[np.uint8]  # [rows], `TaskState`
    deliveries: NDArray[np.uint8]  # [rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Samples of one partition, column by column."""

    partition: str
    num_rows: int
    """Samples of the partition in all, or those asked for by uid."""
    uids: Uids  # [rows]
    absent: Uids  # asked for and not there
    states: NDArray[np.uint8]  # [rows], `RowState`
    ages_s: NDArray[np.float64]  # [rows]
    sites: list[str]  # [rows]
    ready: dict[str, NDArray[np.bool_]]
    """field -> which of the samples have it, for all fields that any sample has had."""
    tasks: dict[str, TaskRows]
    claims: list[ClaimedRows]
    tags: dict[str, TagColumnValues]


def check_limit(limit: int, most: int) -> int:
    """InvalidInput unless so many can be asked for."""
    if not 1 <= limit <= most:
        raise InvalidInput(f"limit must be 1 to {most}, got {limit}")
    return limit


def find_partition(partitions: Partitions, uids: Uids) -> Partition:
    """The partition that has the first of these uids that any has. When none does: RowsGone, or
    UnknownUids where none ever did."""
    for partition in partitions:
        if bool((partition.table.find(uids) >= 0).any()):
            return partition
    had_any = bool(partitions.gone.contains(uids).any())
    told = uids[: UID_SAMPLE + 1].tolist()
    raise RowsGone(len(uids), len(uids), told) if had_any else UnknownUids(told)


def describe(
    partition: Partition, uids: Uids | None, leases: Leases, *, limit: int, now_s: float
) -> Described:
    """The samples of these uids, or the oldest ones; at most ``limit``. O(rows) without uids."""
    table = partition.table
    found = table.present_rows() if uids is None else table.find(uids)
    absent = np.zeros(0, np.int64) if uids is None else uids[found < 0]
    found = found[found >= 0]
    rows = found[:limit]
    return Described(
        partition=partition.name,
        num_rows=len(found),
        uids=table.uids(rows),
        absent=absent[:limit],
        states=table.states(rows),
        ages_s=now_s - partition.lifetimes.arrivals.times_s(rows) if len(rows) else np.zeros(0),
        sites=partition.lifetimes.origins.sites(rows),
        ready={field: table.is_ready(field, rows) for field in table.fields},
        tasks={
            task: _of_task(partition, task, rows)
            for task in tasks_of(partition.policy, partition.table)
        },
        claims=_claims(partition, leases, table.uids(rows), now_s),
        tags={name: values.to_column() for name, values in partition.tags.get(rows).items()},
    )


def _of_task(partition: Partition, task: str, rows: Rows) -> TaskRows:
    table = partition.table
    states = np.zeros(len(rows), dtype=np.uint8)
    for state in TaskState:
        states[table.is_in_state(task, rows, state)] = state
    return TaskRows(states=states, deliveries=table.deliveries(task, rows))


def _claims(partition: Partition, leases: Leases, uids: Uids, now_s: float) -> list[ClaimedRows]:
    marked = ((lease, np.isin(uids, _held(lease))) for lease in leases.of_partition(partition.name))
    return [
        ClaimedRows(
            claim_id=lease.claim_id,
            task=lease.task,
            client=str(lease.client_id),
            left_s=lease.deadline_s - now_s,
            is_mine=is_mine,
        )
        for lease, is_mine in marked
        if bool(is_mine.any())
    ]


def _held(lease: Lease) -> Uids:
    return lease.uids if lease.batch is None else lease.batch.uids


ROW_STATES = {state.value: state.name.lower() for state in RowState}
TASK_STATES = {state.value: state.name.lower() for state in TaskState}


def to_body(described: Described, add: Any) -> dict[str, Any]:
    """Its wire form. ``add`` puts an array beside the body and says what stands for it. Tags are
    the caller's, as those of every other answer."""
    return {
        "partition": described.partition,
        "num_rows": described.num_rows,
        "uids": add(described.uids),
        "absent": add(described.absent),
        "states": add(described.states),
        "ages_s": add(described.ages_s),
        "sites": described.sites,
        "ready": {field: add(ready) for field, ready in described.ready.items()},
        "tasks": {
            task: {"states": add(rows.states), "deliveries": add(rows.deliveries)}
            for task, rows in described.tasks.items()
        },
        "claims": [
            {
                "claim_id": claim.claim_id,
                "task": claim.task,
                "client": claim.client,
                "left_s": claim.left_s,
                "is_mine": add(claim.is_mine),
            }
            for claim in described.claims
        ],
    }
