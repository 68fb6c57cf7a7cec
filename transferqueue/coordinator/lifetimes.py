"""When rows are to be freed without being told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.origins import Origins
from transferqueue.coordinator.policy import PartitionPolicy, Retention, StaleRows
from transferqueue.coordinator.row_set import NO_ROWS, Rows
from transferqueue.coordinator.steps import Steps
from transferqueue.coordinator.table import Table, TaskState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.staleness import Staleness

AGE_BOUNDS_S = (60.0, 600.0, 3600.0)
"""Where the age classes of a report end."""


class Arrivals:
    """When rows came."""

    def __init__(self) -> None:
        self._at_s = Steps(np.float64)

    def add(self, first_row: int, now_s: float) -> None:
        """Rows from this one on came now."""
        self._at_s.add(first_row, now_s)

    def first_after(self, at_s: float) -> int | None:
        """The first row that came after this instant; ``None`` if none did."""
        at = int(np.searchsorted(self._at_s.values, at_s, side="right"))
        return int(self._at_s.first_rows[at]) if at < len(self._at_s.values) else None

    def times_s(self, rows: Rows) -> NDArray[np.float64]:
        """When each of these rows came."""
        return self._at_s.of(rows)

    def shift_clock(self, delta_s: float) -> None:
        """Another clock than that of the instants in here counts from now on."""
        self._at_s.shift(delta_s)

    def keep(self, kept: Rows) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``."""
        self._at_s.keep(kept)


class Lifetimes:
    """Which rows of one partition are due."""

    def __init__(self, policy: PartitionPolicy, table: Table, staleness: Staleness) -> None:
        self.policy = policy
        self._table = table
        self._staleness = staleness
        self._looked_at = 0
        """Rows below this one were looked at when their time was up."""
        self.arrivals = Arrivals()
        self.origins = Origins()
        self.num_dropped_stale = 0
        self.num_dropped_old = 0

    def _unclaimed(self, rows: Rows) -> Rows:
        """Those of these rows that are live and that no claim holds."""
        rows = rows[self._table.is_live(rows)]
        return rows[~self._table.is_claimed(rows)]

    def stale(self, rows: Rows) -> Rows:
        """Those to drop because their policy is too old. One that is claimed is let finish."""
        if self.policy.on_stale is not StaleRows.DROP or self._staleness.bound is None:
            return NO_ROWS
        due = self._unclaimed(rows[self._staleness.is_stale(rows)])
        self.num_dropped_stale += len(due)
        return due

    def consumed(self, rows: Rows) -> Rows:
        """Those that every declared task has acked."""
        if self.policy.retention is not Retention.CONSUMED:
            return NO_ROWS
        for task in self.policy.tasks:
            rows = rows[self._table.is_in_state(task, rows, TaskState.ACKED)]
        return rows[self._table.is_live(rows)]

    def after_claim(self, rows: Rows, now_s: float) -> Rows:
        """Those that are due now that a claim has let go of them."""
        consumed = self.consumed(rows)
        rows = rows[~np.isin(rows, consumed)]
        stale = self.stale(rows)
        if self.policy.ttl_s is None:
            return np.concatenate((consumed, stale))
        rows = rows[~np.isin(rows, stale)]
        old = self._unclaimed(rows[self._arrived_by(rows, now_s - self.policy.ttl_s)])
        self.num_dropped_old += len(old)
        return np.concatenate((consumed, stale, old))

    def _arrived_by(self, rows: Rows, at_s: float) -> NDArray[np.bool_]:
        return np.asarray(self.arrivals.times_s(rows) <= at_s)

    def next_expiry_s(self) -> float | None:
        """When rows get too old next."""
        if self.policy.ttl_s is None or self._looked_at >= self._table.num_rows:
            return None
        first = np.array([self._looked_at])
        return float(self.arrivals.times_s(first)[0]) + self.policy.ttl_s

    def expired(self, now_s: float) -> Rows:
        """Those whose time is up; claimed ones go when their claim does (``after_claim``)."""
        if self.policy.ttl_s is None:
            return NO_ROWS
        end = self.arrivals.first_after(now_s - self.policy.ttl_s)
        end = self._table.num_rows if end is None else end
        if end <= self._looked_at:
            return NO_ROWS
        rows = self._unclaimed(np.arange(self._looked_at, end))
        self._looked_at = end
        self.num_dropped_old += len(rows)
        return rows

    def keep(self, kept: Rows) -> None:
        """Rows were renumbered: the row ``kept[i]`` is now ``i``."""
        self.arrivals.keep(kept)
        self.origins.keep(kept)
        self._looked_at = int(np.searchsorted(kept, self._looked_at))

    def ages(self, now_s: float, row_bytes: NDArray[np.float64] | None = None) -> dict[str, Any]:
        """Live rows by age and site; with ``row_bytes``, those of each of them, bytes too."""
        rows = self._table.live_rows()
        ages_s = now_s - self.arrivals.times_s(rows)
        classes = np.searchsorted(AGE_BOUNDS_S, ages_s)
        report = {
            "rows_by_age": _by_age(np.bincount(classes, minlength=_NUM_AGES)),
            "oldest_s": float(ages_s.max(initial=0.0)),
            "rows_by_site": self.origins.report(rows, ages_s),
        }
        if row_bytes is not None:
            num_bytes = np.bincount(classes, weights=row_bytes, minlength=_NUM_AGES)
            report["bytes_by_age"] = _by_age(num_bytes.round().astype(np.int64))
        return report


_NUM_AGES = len(AGE_BOUNDS_S) + 1
_AGE_NAMES = [*(f"up to {bound:g} s" for bound in AGE_BOUNDS_S), "older"]


def _by_age(counts: NDArray[np.int64]) -> dict[str, int]:
    return dict(zip(_AGE_NAMES, counts.tolist(), strict=True))
