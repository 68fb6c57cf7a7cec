"""Who waits on a partition, for what, since when, and what is in the way: plain values.

Every entry has the same keys, so that one table shows them all:

    kind            ``claim``, ``cells`` (`Client.wait`), ``select`` or ``put``
    partition, task, who, fields
    wanted, ready   samples; of a put: rows, and 0
    ready_by_field  of the samples it could have, how many have each field
    since_s, left_s how long it has waited, and until its deadline
    why             what is in the way, in words
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.holders import holders
from transferqueue.coordinator.shortages import groups_rule, unknown_field_hint
from transferqueue.coordinator.table import TaskState
from transferqueue.net.peer_names import peer_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transferqueue.coordinator.feeds import FeedKey
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.uid_ranges import Uids
    from transferqueue.coordinator.waiters import (
        CellWaiter,
        ClaimWaiter,
        PutWaiter,
        SelectWaiter,
        Waiter,
    )


MAX_FEEDS = 8
"""Conditions that are looked at row by row for one report: 30 ms each at 1,000,000 rows, in the one
thread that serves everybody."""


def num_waiting(partition: Partition) -> int:
    """How many requests `waits` has something to say of."""
    claims = sum(1 for _ in partition.claims.waiting())
    return claims + len(partition.cells) + len(partition.selects) + len(partition.quota.waiting)


def waits(partition: Partition, now_s: float, *, hint: str, limit: int) -> list[dict[str, Any]]:
    """The first ``limit`` of them. O(rows) a field for `MAX_FEEDS` feeds and as many selects; of
    the others it is not said how many samples have which field (``ready_by_field`` is empty).

    ``hint``: what may be wrong with waiting on this partition at all.
    """
    return list(islice(_each(partition, now_s, hint), limit))


def _each(partition: Partition, now_s: float, hint: str) -> Iterator[dict[str, Any]]:
    behind: dict[FeedKey, int] = {}
    supplies: dict[FeedKey, _Supply] = {}
    for claim in partition.claims.waiting():
        key = claim.feed.key
        if claim.uids is not None:
            supply = _named(partition, claim.uids, claim.fields)
        else:  # the same for all claims of a feed
            if key not in supplies and len(supplies) < MAX_FEEDS:
                supplies[key] = _supply(partition, claim.fields, _free(partition, claim))
            supply = supplies.get(key) or _Supply(num_rows=partition.table.num_live, by_field={})
        yield _claim(partition, claim, supply, behind.get(key, 0), now_s, hint)
        behind[key] = behind.get(key, 0) + 1
    for cells in partition.cells.waiting():
        yield _cells(partition, cells, now_s, hint)
    for num_before, select in enumerate(partition.selects.waiting()):
        yield _select(partition, select, now_s, hint, is_looked_at=num_before < MAX_FEEDS)
    for put in partition.quota.waiting.values():
        yield _put(partition, put, now_s)


def longest_waits(partition: Partition, now_s: float) -> dict[str, float]:
    """How long the oldest request of each kind has waited; 0 where none does."""
    waiting: dict[str, Iterable[Waiter]] = {
        "claims": partition.claims.waiting(),
        "cells": partition.cells.waiting(),
        "selects": partition.selects.waiting(),
        "puts": partition.quota.waiting.values(),
    }
    return {
        kind: max((now_s - waiter.parked_s for waiter in each), default=0.0)
        for kind, each in waiting.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Supply:
    """The samples that a claim could have, ready or not."""

    num_rows: int
    by_field: dict[str, int]
    """How many of them have each field."""


def _named(partition: Partition, uids: Uids, fields: tuple[str, ...]) -> _Supply:
    rows = partition.table.find(uids)
    return _supply(partition, fields, rows[rows >= 0])


def _supply(partition: Partition, fields: tuple[str, ...], rows: Rows) -> _Supply:
    return _Supply(num_rows=len(rows), by_field=_ready_by_field(partition, fields, rows))


def _entry(partition: Partition, kind: str, waiter: Waiter, now_s: float) -> dict[str, Any]:
    client = waiter.client_id
    return {
        "kind": kind,
        "partition": partition.name,
        "task": "",
        "who": peer_name(client) if isinstance(client, bytes) else str(client),
        "fields": [],
        "wanted": 0,
        "ready": 0,
        "ready_by_field": {},
        "since_s": now_s - waiter.parked_s,
        "left_s": waiter.deadline_s - now_s,
        "why": "",
    }


def _free(partition: Partition, claim: ClaimWaiter) -> Rows:
    """The rows that its task has not taken and its condition lets it have."""
    rows = partition.table.live_rows()
    rows = rows[partition.table.is_in_state(claim.feed.task, rows, TaskState.FREE)]
    rows = rows[~partition.staleness.is_stale(rows)]
    where = claim.feed.where
    return rows if where is None else rows[where.mask(partition.tags, rows)]


def _ready_by_field(partition: Partition, fields: tuple[str, ...], rows: Rows) -> dict[str, int]:
    return {f: int(np.count_nonzero(partition.table.is_ready(f, rows))) for f in fields}


def _claim(
    partition: Partition,
    claim: ClaimWaiter,
    supply: _Supply,
    num_before: int,
    now_s: float,
    hint: str,
) -> dict[str, Any]:
    ready = partition.claims.num_ready(claim)
    unknown = hint or unknown_field_hint(partition.name, partition.table, claim.fields)
    return {
        **_entry(partition, "claim", claim, now_s),
        "task": claim.feed.task,
        "fields": list(claim.fields),
        "wanted": claim.n,
        "ready": ready,
        "ready_by_field": dict(supply.by_field),
        "why": unknown or _why_claim(partition, claim, ready, supply, num_before),
    }


def _why_claim(
    partition: Partition, claim: ClaimWaiter, ready: int, supply: _Supply, num_before: int
) -> str:
    lacking = _lacking(supply.by_field, claim.n)
    if ready >= claim.n:
        if not partition.quota.may_hand_out(claim.n):
            return "samples_per_insert: too few samples have been put since"
        if num_before:
            return f"{num_before} earlier claims of this task and these fields come first"
    if claim.uids is not None:
        return lacking or "another claim of the task holds some of its samples"
    if supply.num_rows < claim.n:
        return f"{supply.num_rows} samples that the task has not taken match, {claim.n} are wanted"
    grouping = claim.sampler.grouping
    if grouping is not None and not lacking:
        return groups_rule(grouping)
    return lacking or "too few samples have all of the fields"


def _lacking(by_field: dict[str, int], wanted: int) -> str:
    short = {field: n for field, n in by_field.items() if n < wanted}
    return ", ".join(f"{field}: {n} of {wanted}" for field, n in short.items())


def _cells(partition: Partition, cells: CellWaiter, now_s: float, hint: str) -> dict[str, Any]:
    lacking = np.unique(np.concatenate(list(cells.missing.values())))
    wanted = len(cells.uids)
    by_field = {f: wanted - len(cells.missing.get(f, ())) for f in cells.fields}
    unknown = hint or unknown_field_hint(partition.name, partition.table, cells.fields)
    return {
        **_entry(partition, "cells", cells, now_s),
        "fields": list(cells.fields),
        "wanted": wanted,
        "ready": wanted - len(lacking),
        "ready_by_field": by_field,
        "why": unknown or _lacking(by_field, wanted),
    }


def _select(
    partition: Partition, select: SelectWaiter, now_s: float, hint: str, *, is_looked_at: bool
) -> dict[str, Any]:
    entry = {
        **_entry(partition, "select", select, now_s),
        "fields": list(select.fields),
        "wanted": select.min_rows,
    }
    if not is_looked_at:
        return {**entry, "why": hint or "not looked at: many others wait before it"}
    rows = partition.table.live_rows()
    if select.where is not None:
        rows = rows[select.where.mask(partition.tags, rows)]
    ready = partition.selects.num_matching(select)
    unknown = hint or unknown_field_hint(partition.name, partition.table, select.fields)
    return {
        **entry,
        "ready": ready,
        "ready_by_field": _ready_by_field(partition, select.fields, rows),
        "why": unknown or f"{ready} of {select.min_rows} samples match",
    }


def _put(partition: Partition, put: PutWaiter, now_s: float) -> dict[str, Any]:
    error = partition.quota.over_limit(put, holders(partition.policy, partition.table))
    return {
        **_entry(partition, "put", put, now_s),
        "who": f"shard {put.slot}",
        "wanted": put.num_rows,
        "why": f"{error} {put.num_bytes:,} bytes wait.",
    }
