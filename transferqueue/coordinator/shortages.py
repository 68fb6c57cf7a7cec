"""What may be wrong with a wait for samples, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.coordinator.waiters import ClaimWaiter
from transferqueue.errors import near_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transferqueue.coordinator.samplers.base import Grouping
    from transferqueue.coordinator.table import Table
    from transferqueue.coordinator.waiters import CellWaiter, SelectWaiter


def shortage_hint(
    partition: str, table: Table, waiter: ClaimWaiter | CellWaiter | SelectWaiter
) -> str:
    """What may be wrong with a wait that ends in vain, "" if nothing seems to be. O(1) in rows."""
    unknown = unknown_field_hint(partition, table, waiter.fields)
    if unknown or not isinstance(waiter, ClaimWaiter) or waiter.uids is not None:
        return unknown
    grouping, num_ready = waiter.sampler.grouping, len(waiter.feed.ready)
    if grouping is None or not num_ready:
        return ""
    return f"{num_ready} have all of the fields, but {groups_rule(grouping)}"


def unknown_field_hint(partition: str, table: Table, fields: Iterable[str]) -> str:
    """What may be wrong with a wait for these fields, "" if nothing seems to be."""
    known = list(table.fields)
    unknown = [field for field in fields if known and field not in known]
    if not unknown:
        return ""
    near = near_names(unknown[0], known)
    hint = f", did you mean {near[0]!r}" if near else ""
    return f"no sample of partition {partition!r} has had {unknown[0]!r}{hint}"


def groups_rule(grouping: Grouping) -> str:
    """Why samples that are ready are not handed out by a sampler of groups."""
    return f"only complete groups count: {grouping.size} samples of one {grouping.tag!r}"
