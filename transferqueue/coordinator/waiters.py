"""Requests that wait: what each needs to be answered, and when it gives up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.coordinator.effects import Refuse
from transferqueue.errors import UID_SAMPLE, NotReady, RowsGone, RowsLost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transferqueue.coordinator.effects import ClientId, WaiterId
    from transferqueue.coordinator.feeds import Feed
    from transferqueue.coordinator.predicate import Predicate
    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.coordinator.table import Table
    from transferqueue.coordinator.uid_ranges import Uids
    from transferqueue.homes import Homes


@dataclass(slots=True, kw_only=True, eq=False)
class Waiter:
    """What every request that can wait has."""

    waiter_id: WaiterId
    client_id: ClientId
    parked_s: float
    """When it came."""
    deadline_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class ClaimWaiter(Waiter):
    """A claim."""

    order: int
    """Claims of one partition are numbered as they come."""
    fields: tuple[str, ...]
    n: int
    feed: Feed
    sampler: Sampler
    lease_s: float
    allow_partial: bool
    uids: Uids | None = None
    """Exactly these rows, rather than a sampler's choice."""


@dataclass(slots=True, kw_only=True, eq=False)
class SelectWaiter(Waiter):
    """A lookup that waits for ``min_rows``."""

    where: Predicate | None
    fields: tuple[str, ...]
    order_by: str | None
    descending: bool
    n: int | None
    min_rows: int


@dataclass(slots=True, kw_only=True, eq=False)
class PutWaiter(Waiter):
    """A put that asks for room."""

    slot: int
    num_rows: int
    num_bytes: int


@dataclass(slots=True, kw_only=True, eq=False)
class CellWaiter(Waiter):
    """A wait for (uid, field) cells."""

    uids: Uids  # ascending, distinct
    fields: tuple[str, ...]
    missing: dict[str, Uids] = field(default_factory=dict)
    """field -> the uids that do not have it, ascending; without the fields that are complete."""

    def look(self, table: Table) -> None:
        """See what is there already."""
        rows = table.find(self.uids)
        known = np.flatnonzero(rows >= 0)
        for name in self.fields:
            there = known[table.is_ready(name, rows[known])]
            if len(there) < len(self.uids):
                self.missing[name] = np.delete(self.uids, there)

    def arrive(self, fields: Iterable[str], uids: Uids) -> bool:
        """These ascending uids have these fields now. True when nothing is missing any more."""
        for name in fields:
            missing = self.missing.get(name)
            if missing is None or missing[0] > uids[-1] or missing[-1] < uids[0]:
                continue
            missing = missing[~np.isin(missing, uids, assume_unique=True)]
            if len(missing):
                self.missing[name] = missing
            else:
                del self.missing[name]
        return not self.missing

    def gone(self, uids: Uids) -> Refuse | None:
        """These ascending uids were freed; what to answer if it waits for one of them."""
        if self.uids[0] > uids[-1] or self.uids[-1] < uids[0]:
            return None
        lost = self.uids[np.isin(self.uids, uids, assume_unique=True)]
        if not len(lost):
            return None
        error = RowsGone(len(lost), len(self.uids), lost[: UID_SAMPLE + 1].tolist())
        return Refuse(waiter_id=self.waiter_id, error=error)

    def give_up(self, now_s: float, hint: str) -> Refuse:
        """Its deadline has come."""
        counts = {name: len(uids) for name, uids in self.missing.items()}
        lacking = np.unique(np.concatenate(list(self.missing.values())))
        ready = len(self.uids) - len(lacking)
        error = NotReady(len(self.uids), ready, counts, now_s - self.parked_s, hint)
        return Refuse(waiter_id=self.waiter_id, error=error)


def lost_rows(waiter: Waiter, uids: Uids, slot: int, homes: Homes) -> Refuse | None:
    """What to answer to whoever waits for these uids when a slot's shard is gone for good."""
    num_lost = int(np.count_nonzero(homes.of(uids) == slot))
    if not num_lost:
        return None
    return Refuse(waiter_id=waiter.waiter_id, error=RowsLost(num_lost, len(uids), [slot]))
