"""Rows that were filtered out: nobody new gets them, and they go when the last claim on them does.

The contract, instead of one that counts handles: a handle is a value that is copied, pickled and
kept in notebooks, so no process can tell when the last one goes, and a finalizer that never runs
would leak rows for good. So whoever filters says so (``discard``, or ``ack`` with ``drop``), the
claims of other tasks that are out keep their rows until they end, and a partition that fears to be
told nothing has ``ttl_s`` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.coordinator.table import RowState

if TYPE_CHECKING:
    from transferqueue.coordinator.effects import Effect
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.uid_ranges import Uids


def discard(partition: Partition, uids: Uids, now_s: float) -> tuple[int, list[Effect]]:
    """Take rows from everybody; returns how many were there. Claimed ones stay until let go."""
    uids = np.unique(uids)
    found = partition.table.find(uids)
    # A shard may have stored rows of which it has not told yet; it frees them when it is asked.
    untold = partition.not_gone(uids[found < 0])
    rows = found[found >= 0]
    rows = rows[partition.table.is_live(rows)]
    claimed = partition.table.is_claimed(rows)
    effects = partition.withdraw(rows[claimed], RowState.LEAVING)
    effects += partition.free(rows[~claimed])
    effects += partition.order_frees(untold) + partition.settle(now_s)
    return len(rows) + len(untold), effects
