"""Rows that were discarded while claims had them, and go with the last of these claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transferqueue.coordinator.leases import Lease
    from transferqueue.coordinator.table import Table
    from transferqueue.coordinator.uid_ranges import Uids

_NO_UIDS = np.zeros(0, dtype=np.int64)


def let_go(table: Table, lease: Lease) -> Uids:
    """A claim has ended. Returns those of its rows that were leaving and that nobody has any more:
    their shards are to free them. The rows of a shared batch go with the last claim on it."""
    if not lease.is_last:
        return _NO_UIDS
    rows = table.find(lease.uids)
    rows = rows[rows >= 0]
    rows = rows[table.is_leaving(rows)]
    if not len(rows):
        return _NO_UIDS
    if lease.exclusive:
        table.reset_deliveries(lease.task, rows)
    rows = rows[~table.is_claimed(rows)]
    table.let_go(rows)
    return table.uids(rows)
