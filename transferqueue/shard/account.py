"""Everything a shard holds, as the commits that would have made it: what a coordinator that knows
nothing is told.

First the rows of a partition, in the order of their uids, then field by field who has it. Tags are
not among it: the coordinator keeps them, and what it had not acknowledged is told before this, by
`tags_left`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.shard.store import Committed
from transferqueue.shard.uplink import Whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.shard.rows import RowTable
    from transferqueue.shard.store import Store


def account(store: Store) -> Iterator[Committed | Whole]:
    """O(live)."""
    for partition, table in store.partitions.items():
        if len(table):
            yield Committed(partition=partition, uids=table.uids(), specs={}, nbytes={}, tags={})
            yield from _fields(store, partition, table)
    yield Whole(next_uid=store.next_uid)


def tags_left(store: Store, committed: Committed) -> Committed | None:
    """Of a put that was perhaps not heard of what the account leaves out: the tags of those of its
    rows that are still there.

    While a coordinator is away puts and clears go on, thousands of them. A new one that had to hear
    of each kept its clients waiting for 5 s where it takes 0.1 s to tell what is left.
    """
    table = store.partitions.get(committed.partition)
    if not committed.tags or table is None:
        return None
    _, there = table.find(committed.uids)
    if not there.any():
        return None
    tags = {name: _of_rows(value, there) for name, value in committed.tags.items()}
    return replace(committed, uids=committed.uids[there], specs={}, nbytes={}, tags=tags)


def _of_rows(value: Any, there: np.ndarray) -> Any:
    """A tag's value of some of the rows that it is for."""
    if isinstance(value, np.ndarray):
        return value[there]
    return list(compress(value, there)) if isinstance(value, list) else value


def _fields(store: Store, partition: str, table: RowTable) -> Iterator[Committed]:
    uids = table.uids()
    for field, present, cells in table.columns():
        having = uids[present]
        sizes = cells.lengths * store.slabs.unit_bytes[cells.slabs]
        specs, of_row = store.specs.distinct(store.slabs.spec_id[cells.slabs])
        for number, spec in enumerate(specs):
            mine = np.ones(len(having), bool) if of_row is None else of_row == number
            yield Committed(
                partition=partition,
                uids=having[mine],
                specs={field: spec},
                nbytes={field: int(sizes[mine].sum())},
                tags={},
            )


def holdings(store: Store) -> dict[str, Any]:
    """What is held and looked at, for ``status``."""
    return {
        "rows": store.num_rows,
        "partitions": {
            name: {"rows": len(table), "fields": table.fields}
            for name, table in store.partitions.items()
        },
        "slabs": len(store.slabs),
        "leases": len(store.leases),
        "leased_bytes": store.leases.pinned_bytes(),
        "held_bytes": store.leases.held_bytes,
        "puts_under_way": store.num_puts_under_way,
    }
