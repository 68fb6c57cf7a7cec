"""Everything a shard holds, as the commits that would have made it: what a coordinator that knows
nothing is told.

First the rows of a partition, in the order of their uids, then field by field who has it. Tags are
not among it: the coordinator keeps them, and what it had not acknowledged is told before this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
