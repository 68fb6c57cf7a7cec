"""Bytes in the device memory of shards, and which of them go where."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transferqueue.client.device_access import DeviceAccess
from transferqueue.client.locked_arena import LockedArena
from transferqueue.errors import Malformed

Lent = DeviceAccess | LockedArena
"""Memory of a shard that a device copies from by itself: of a device, or page-locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LentRanges:
    """Where the cells of a part lie in a shard's memory, in order."""

    access: Lent
    starts: np.ndarray  # int64[ranges]
    sizes: np.ndarray  # int64[ranges]

    def row_starts(self, row_sizes: np.ndarray) -> np.ndarray:
        """Where each row begins. Ranges hold whole rows. int64[rows]."""
        within = np.cumsum(row_sizes) - row_sizes
        ends = np.cumsum(self.sizes)
        if int(row_sizes.sum()) != (int(ends[-1]) if len(ends) else 0):
            raise Malformed("the ranges of a column are not as long as its rows")
        at = np.searchsorted(ends, within, "right").clip(max=max(0, len(ends) - 1))
        return np.asarray(self.starts[at] + within - (ends - self.sizes)[at])
