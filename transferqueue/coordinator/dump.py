"""What of a control plane no shard knows, as journal records. O(live)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.journal import DISCARDED, LOST, granted_record
from transferqueue.coordinator.tag_values import TagKind
from transferqueue.journal.records import Record
from transferqueue.wire.arrays import ArrayWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transferqueue.coordinator.control_plane import ControlPlane
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.tags import TagColumn
    from transferqueue.coordinator.uid_ranges import Uids

HEAD, PARTITION, ROWS, FREEING, LEFT, LINE = "head", "partition", "rows", "freeing", "left", "line"


def dump(
    plane: ControlPlane,
    requests: Mapping[int, tuple[bytes, int]],
    lost: Mapping[int, str],
    now_s: float,
    *,
    every_row: bool = False,
) -> Iterator[Record]:
    """Records that a `Replay` makes the same of. ``requests``: those that claims answer. ``lost``:
    slots that were given up, with the incarnation of their shard. ``every_row``: also those of
    which a shard knows all but when they came."""
    arrays = ArrayWriter()
    closed = plane.leases.closed()
    ids = np.fromiter(closed, np.int64, len(closed))
    ended_s = [np.nan if at_s is None else at_s for at_s in closed.values()]
    head = {
        "next_claim_id": plane.leases.peek_claim_id(),
        "next_slot": plane.next_slot,
        "closed": arrays.add(ids),
        "expired_s": arrays.add(np.array(ended_s, dtype=np.float64)),
        "at_s": now_s,
    }
    yield Record(kind=HEAD, body=head, frames=arrays.frames)
    for slot, incarnation in lost.items():
        yield Record(kind=LOST, body={"slot": slot, "incarnation": incarnation, "at_s": now_s})
    for partition in plane.partitions:
        yield from _partition(plane, partition, now_s, every_row=every_row)
    for (slot, name), uids in plane.partitions.dropped().items():
        yield _uids(LEFT, name, uids, slot=slot)
    for lease in plane.leases.each():
        known = plane.partitions.get(lease.partition)
        if known is not None:
            yield granted_record(
                lease, known.claims, requests.get(lease.claim_id), now_s, is_new=False
            )
    for partition in plane.partitions:  # after the claims that keep them
        leaving = partition.table.leaving_rows()
        if len(leaving):
            yield _uids(DISCARDED, partition.name, partition.table.uids(leaving), at_s=now_s)


def live_bytes(plane: ControlPlane) -> int:
    """No less than a dump takes."""
    return 4096 + sum(p.table.num_live * (16 + 16 * len(p.tags.columns)) for p in plane.partitions)


def _partition(
    plane: ControlPlane, partition: Partition, now_s: float, *, every_row: bool
) -> Iterator[Record]:
    is_declared = plane.partitions.is_declared(partition.name)
    yield Record(
        kind=PARTITION,
        body={
            "partition": partition.name,
            "policy": partition.policy.to_plain() if is_declared else None,
            "newest": partition.staleness.newest,
            "rows_put": partition.quota.rows_put,
            "rows_handed_out": partition.quota.rows_handed_out,
            "at_s": now_s,
        },
    )
    for plain, batches in partition.claims.lines_to_plain():
        arrays = ArrayWriter()
        listed = [[arrays.add(batch.uids), sorted(batch.acked)] for batch in batches]
        body = {"partition": partition.name, "line": plain, "batches": listed}
        yield Record(kind=LINE, body=body, frames=arrays.frames)
    yield _rows(partition, every_row=every_row)
    uids = partition.table.uids(partition.table.freeing_rows())
    if len(uids):
        yield _uids(FREEING, partition.name, uids)


def _uids(kind: str, name: str, uids: Uids, **more: float) -> Record:
    arrays = ArrayWriter()
    body = {"partition": name, "uids": arrays.add(uids), **more}
    return Record(kind=kind, body=body, frames=arrays.frames)


def _rows(partition: Partition, *, every_row: bool) -> Record:
    """Every row that is held by somebody and has a tag, or that a task has touched, or that goes
    when its time is up."""
    table, tags = partition.table, partition.tags.columns
    # In order of arrival, which is how they are entered again.
    rows = np.sort(np.concatenate([table.live_rows(), table.leaving_rows()]))
    touched = {task: table.task_column(task)[rows] for task in table.tasks}
    matters = np.full(len(rows), every_row or partition.policy.ttl_s is not None)
    for column in touched.values():
        matters |= column != 0
    for tag in tags.values():
        matters |= tag.present(rows)
    rows = rows[matters]
    arrays = ArrayWriter()
    body: dict[str, Any] = {
        "partition": partition.name,
        "uids": arrays.add(table.uids(rows)),
        "came_s": arrays.add(partition.lifetimes.arrivals.times_s(rows)),
        "tasks": {task: arrays.add(column[matters]) for task, column in touched.items()},
        "tags": {name: _tag(tag, rows, arrays) for name, tag in tags.items()},
    }
    return Record(kind=ROWS, body=body, frames=arrays.frames)


def _tag(tag: TagColumn, rows: np.ndarray, arrays: ArrayWriter) -> list[Any]:
    """Kind, values, which rows have one, and the strings that values are codes of."""
    values, strings = tag.raw(rows), None
    if tag.kind is TagKind.STR:
        codes, values = np.unique(values, return_inverse=True)
        strings = [tag.string(code) for code in codes.tolist()]
    return [tag.kind.value, arrays.add(values), arrays.add(tag.present(rows)), strings]
