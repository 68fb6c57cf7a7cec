"""One partition: its table, tags, claims, quota and lifetimes, and what a change of one does to
the others.

The order within every change: state first, then the rows that became due are freed, then what
waits is answered. So a reply never promises a row that the same change took away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.cells import CellWaits
from transferqueue.coordinator.claims import Claims
from transferqueue.coordinator.effects import Effect, Refuse
from transferqueue.coordinator.feeds import Feeds
from transferqueue.coordinator.frees import frees
from transferqueue.coordinator.holders import holders
from transferqueue.coordinator.leaving import let_go
from transferqueue.coordinator.lifetimes import Lifetimes
from transferqueue.coordinator.quotas import Quota
from transferqueue.coordinator.row_set import NO_ROWS, Rows
from transferqueue.coordinator.selects import Selects
from transferqueue.coordinator.shortages import shortage_hint
from transferqueue.coordinator.staleness import Staleness
from transferqueue.coordinator.table import RowState, Table
from transferqueue.coordinator.tags import TagTable
from transferqueue.coordinator.ties import settle
from transferqueue.coordinator.waiters import (
    CellWaiter,
    ClaimWaiter,
    PutWaiter,
    SelectWaiter,
    Waiter,
)
from transferqueue.errors import RowsGone, RowsLost, TagTypeMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from transferqueue.coordinator.feeds import Feed
    from transferqueue.coordinator.leases import Ending, Lease, Leases
    from transferqueue.coordinator.policy import PartitionPolicy
    from transferqueue.coordinator.specs import Spec
    from transferqueue.coordinator.tag_values import TagValues
    from transferqueue.coordinator.uid_ranges import GoneUids, Uids


class Partition:
    """One named table of samples and everything that waits on it."""

    def __init__(self, name: str, policy: PartitionPolicy, leases: Leases, gone: GoneUids) -> None:
        self.name = name
        self.homes = gone.homes
        self.policy = policy
        self._gone = gone
        self.table = Table()
        self.tags = TagTable(f"partition {name!r}")
        self.staleness = Staleness(policy, self.tags)
        self.feeds = Feeds(self.table, self.tags, self.staleness)
        self.quota = Quota(name, policy)
        self.lifetimes = Lifetimes(policy, self.table, self.staleness)
        self.cells = CellWaits()
        self.selects = Selects(self.table, self.tags)
        self.claims = Claims(
            partition=name,
            max_deliveries=policy.max_deliveries,
            table=self.table,
            tags=self.tags,
            feeds=self.feeds,
            quota=self.quota,
            leases=leases,
        )
        self._leave: dict[type[Waiter], Callable[[Any], None]] = {
            ClaimWaiter: self.claims.leave,
            CellWaiter: self.cells.leave,
            SelectWaiter: self.selects.leave,
            PutWaiter: self.quota.leave,
        }
        self.num_refused_tags: dict[str, int] = {}
        """tag -> rows whose value was of another type than the tag, and so was left out."""

    def adopt(self, policy: PartitionPolicy, now_s: float) -> list[Effect]:
        """A partition that was made by its first use is declared now."""
        self.policy = policy
        self.staleness.policy = self.lifetimes.policy = self.quota.policy = policy
        self.claims.max_deliveries = policy.max_deliveries
        rows = self.table.live_rows()
        self.staleness.see(rows)
        self.feeds.refresh(rows)
        due = np.union1d(self.lifetimes.consumed(rows), self.lifetimes.stale(rows))
        return self.free(due) + self.settle(now_s)

    # -- what shards report ---------------------------------------------------------------------

    def commit(
        self,
        slot: int,
        uids: Uids,
        fields: Mapping[str, Spec],
        tags: Mapping[str, TagValues],
        nbytes: Mapping[str, int],
        now_s: float,
        site: str = "",
    ) -> list[Effect]:
        """Cells are stored; see ``ControlPlane.commit``. ``uids`` are distinct and ascending."""
        rows, at, num_new = self.rows_of(uids, now_s, site)
        if not len(rows):
            return []
        changed = self._store(slot, rows, num_new, fields, nbytes, len(uids))
        rows, at = rows[changed], at[changed]
        # A stream that is sent again must not undo later updates of tags, so only what is new.
        tagged = self._set_tags(rows, at, num_new, tags)
        return self.free_stale(rows) + self._announce(rows, fields, tagged, now_s)

    def rows_of(self, uids: Uids, now_s: float, site: str = "") -> tuple[Rows, Rows, int]:
        """The live rows of uids, new ones last, where they are in ``uids``, how many are new."""
        found = self.table.find(uids)
        known = np.flatnonzero(found >= 0)
        known = known[self.table.is_live(found[known])]
        new = np.flatnonzero(found < 0)
        new = new[~self._gone.contains(uids[new])]
        if not len(new):
            return found[known], known, 0
        added = self.table.add(uids[new])
        self.tags.reserve(self.table.capacity)
        self.feeds.reserve()
        self.lifetimes.arrivals.add(int(added[0]), now_s)
        self.lifetimes.origins.add(int(added[0]), site)
        return np.concatenate((found[known], added)), np.concatenate((known, new)), len(new)

    def _store(
        self,
        slot: int,
        rows: Rows,
        num_new: int,
        fields: Mapping[str, Spec],
        nbytes: Mapping[str, int],
        num_put: int,
    ) -> NDArray[np.bool_]:
        """Mark cells ready and count their bytes. Returns which rows that changes."""
        changed = np.zeros(len(rows), dtype=np.bool_)
        changed[len(rows) - num_new :] = True
        put_bytes = 0
        for field, spec in fields.items():
            new = self.table.mark_ready(field, rows, spec)
            changed |= new
            num_cells = int(np.count_nonzero(new))
            num_bytes = nbytes.get(field, 0) * num_cells // num_put
            self.quota.field_bytes.add(field, num_cells, num_bytes)
            self.lifetimes.origins.store(field, rows[new], num_bytes)
            put_bytes += num_bytes
        self.quota.use(slot, num_new, put_bytes)
        return changed

    def _set_tags(
        self, rows: Rows, at: Rows, num_new: int, tags: Mapping[str, TagValues]
    ) -> list[str]:
        """Set tags of rows, the last ``num_new`` of them new. Returns the tags that were set."""
        tagged = []
        for name, values in tags.items():
            try:
                self.tags.check_values({name: values})
            except TagTypeMismatch:
                # The put is stored and was answered: a tag of the wrong type must not stop it.
                self.count_refused_tag(name, len(rows))
                continue
            self.tags.set(name, rows, values.take(at))
            tagged.append(name)
        old = len(rows) - num_new
        self.feeds.tag_rows(rows[old:])
        if old and tagged:
            self.feeds.retag(np.sort(rows[:old]), tagged)
        return tagged

    def count_refused_tag(self, name: str, num_rows: int) -> None:
        """A commit's tag was left out."""
        self.num_refused_tags[name] = self.num_refused_tags.get(name, 0) + num_rows

    def cleared(self, uids: Uids, nbytes: Mapping[str, int], now_s: float) -> list[Effect]:
        """Rows are gone from their shard; see ``ControlPlane.cleared``."""
        self._gone.add(uids)
        rows = self.table.find(uids)
        rows = rows[rows >= 0]
        live = rows[self.table.is_live(rows)]
        effects = self.withdraw(live)
        having = {field: rows[self.table.is_ready(field, rows)] for field in self.table.fields}
        cells = {field: len(had) for field, had in having.items()}
        shares = {field: self.lifetimes.origins.remove(field, had) for field, had in having.items()}
        self.quota.free(cells, len(rows), {**shares, **nbytes})
        self.table.bury(rows)
        if self.table.needs_compaction():
            self._compact()
        return effects + self.settle(now_s)

    def _compact(self) -> None:
        kept = self.table.compact()
        self.tags.keep(kept, self.table.capacity)
        self.lifetimes.keep(kept)
        self.feeds.keep(kept)

    def lose_slot(self, slot: int, now_s: float) -> list[Effect]:
        """All rows of a slot are gone, and what waits for one of them waits in vain."""
        effects = self.cells.refuse_lost(slot, self.homes)
        effects += self.claims.refuse_lost(slot, self.homes)
        for put in self.quota.of_slot(slot):
            self.quota.leave(put)
            effects.append(Refuse(waiter_id=put.waiter_id, error=RowsLost(0, 0, [slot])))
        uids = self.table.uids(self.table.present_rows())
        at = self.homes.split(uids).get(slot)
        return effects + (self.settle(now_s) if at is None else self.cleared(uids[at], {}, now_s))

    def frees_of(self, slot: int) -> list[Effect]:
        """The frees that this slot has not reported as done."""
        uids = self.table.uids(self.table.freeing_rows())
        at = self.homes.split(uids).get(slot)
        return [] if at is None else self.order_frees(uids[at])

    # -- freeing --------------------------------------------------------------------------------

    def free(self, rows: Rows) -> list[Effect]:
        """Have their shards free live rows."""
        if not len(rows):
            return []
        return self.withdraw(rows) + self.order_frees(self.table.uids(rows))

    def order_frees(self, uids: Uids) -> list[Effect]:
        """Have their shards free rows that are nobody's."""
        return frees(self.name, self.homes, uids) if len(uids) else []

    def withdraw(self, rows: Rows, state: RowState = RowState.FREEING) -> list[Effect]:
        """Live rows are nobody's from now on; who waits for one of them is told."""
        if not len(rows):
            return []
        self.table.start_freeing(rows, state)
        self.feeds.withdraw(rows)
        uids = np.sort(self.table.uids(rows))
        return [*self.cells.refuse_gone(uids), *self.claims.refuse_gone(uids)]

    def free_stale(self, rows: Rows) -> list[Effect]:
        """Rows were tagged, and may be too stale now, or make others so."""
        return self.free(self._too_stale(rows, bound_rose=self.staleness.see(rows)))

    def _too_stale(self, rows: Rows, *, bound_rose: bool) -> Rows:
        """The rows to drop: of these, or of all when the bound has risen."""
        if not bound_rose:
            return self.lifetimes.stale(rows)
        every = self.table.live_rows()
        self.feeds.refresh(every[self.staleness.is_stale(every)])
        return self.lifetimes.stale(every)

    def num_stale(self) -> int:
        """Live rows that are too stale to be handed out. O(rows)."""
        return int(np.count_nonzero(self.staleness.is_stale(self.table.live_rows())))

    def free_all(self) -> list[Effect]:
        """Free every row: the partition is being dropped."""
        effects = self.withdraw(self.table.live_rows())
        uids = self.table.uids(self.table.present_rows())
        self._gone.add(uids)
        return effects + self.order_frees(uids)

    def expire(self, now_s: float) -> list[Effect]:
        """Free the rows whose time is up."""
        return self.free(self.lifetimes.expired(now_s))

    def advance_policy(self, version: int) -> list[Effect]:
        """There is a policy of this version."""
        return self.free(self._too_stale(NO_ROWS, bound_rose=self.staleness.advance(version)))

    # -- answering what waits -------------------------------------------------------------------

    def _announce(
        self, rows: Rows, fields: Iterable[str], tags: Iterable[str], now_s: float
    ) -> list[Effect]:
        """These rows have got these fields and tags."""
        rows = rows[self.table.is_live(rows)]
        fed = self.feeds.refresh(rows, self.feeds.touched_by(fields, tags))
        effects: list[Effect] = []
        if len(rows):
            effects += self.cells.arrive(fields, np.sort(self.table.uids(rows)), self.table)
            effects += self.selects.arrive(rows)
        return effects + self.serve(fed, now_s)

    def serve(self, fed: list[Feed], now_s: float) -> list[Effect]:
        """Answer claims of feeds that got rows, and of those that waited for more than rows."""
        if self.policy.samples_per_insert is not None:
            fed = list(self.feeds)
        # A tag that was set can complete a group without bringing its feed a row.
        fed += [feed for feed in self.feeds if feed.groups and feed not in fed]
        return self.claims.serve(fed, now_s) + self.settle(now_s)

    def settle(self, now_s: float) -> list[Effect]:
        """Let puts in, also those that a claim waits for while they wait for it."""
        return settle(self.name, self.quota, self.claims, self.table, now_s)

    # -- requests -------------------------------------------------------------------------------

    def claim(self, waiter: ClaimWaiter, now_s: float) -> list[Effect]:
        """Serve or park a claim; RowsGone if it names a row that was freed."""
        if waiter.uids is not None:
            self._check_there(waiter.uids)
        self.claims.park(waiter)
        effects = self.claims.serve([waiter.feed], now_s)
        return effects + self.settle(now_s)

    def wait(self, waiter: CellWaiter) -> list[Effect]:
        """Serve or park a wait; RowsGone if one of its rows was freed."""
        self._check_there(waiter.uids)
        return self.cells.park(waiter, self.table)

    def _check_there(self, uids: Uids) -> None:
        """RowsGone or RowsLost if one of these was freed, or went with its shard. One that is not
        known is expected to come."""
        self._gone.check_not_lost(uids)
        gone = self._gone.contains(uids)
        rows = self.table.find(uids)
        gone[rows >= 0] |= ~self.table.is_live(rows[rows >= 0])
        if bool(gone.any()):
            raise RowsGone(int(gone.sum()), len(uids), uids[gone].tolist())

    def not_gone(self, uids: Uids) -> Uids:
        """Those of these that were not freed."""
        return uids[~self._gone.contains(uids)]

    def select(self, waiter: SelectWaiter) -> list[Effect]:
        """Answer or park a select."""
        return self.selects.park(waiter)

    def admit(self, put: PutWaiter, now_s: float) -> list[Effect]:
        """Let in or park a put; InvalidInput if it could never be let in."""
        self.quota.check_put(put.num_rows, put.num_bytes)
        self.quota.park(put)
        return self.settle(now_s)

    # -- the end of a claim ---------------------------------------------------------------------

    def ack(self, lease: Lease, now_s: float) -> list[Effect]:
        """The task is done with the rows of a closed lease."""
        rows = self.claims.ack(lease)
        effects = self._release_fields(lease.task, rows)
        effects += self.order_frees(let_go(self.table, lease))
        effects += self.free(self.lifetimes.after_claim(rows, now_s))
        # No claim gains rows by an ack, but one that named these rows has to hear of it.
        effects += self.claims.serve(self.feeds.of_task(lease.task), now_s)
        return effects + self.settle(now_s)

    def give_back(self, lease: Lease, now_s: float, ending: Ending) -> list[Effect]:
        """The rows of a closed lease are free again, or dead letters."""
        rows = self.claims.give_back(lease, ending)
        effects = self.order_frees(let_go(self.table, lease))
        effects += self.free(self.lifetimes.after_claim(rows, now_s))
        rows = rows[self.table.is_live(rows)]
        self.feeds.refresh(rows, self.feeds.of_task(lease.task))
        return effects + self.serve(self.feeds.of_task(lease.task), now_s)

    def _release_fields(self, task: str, rows: Rows) -> list[Effect]:
        """Free the cells that were kept for this task alone."""
        effects: list[Effect] = []
        kept = [field for field, last in self.policy.release_after.items() if last == task]
        for field in kept:
            released = self.table.release(field, rows)
            num_bytes = self.lifetimes.origins.remove(field, released)
            self.quota.field_bytes.remove(field, len(released), num_bytes)
            self.feeds.refresh(released, self.feeds.touched_by((field,)))
            effects += frees(self.name, self.homes, self.table.uids(released), (field,))
        return effects

    def lacking(self, tag: str, uids: Uids) -> Rows:
        """Which of these uids are live rows without the tag, by their place."""
        rows = self.table.find(uids)
        at = np.flatnonzero(rows >= 0)
        at = at[self.table.is_live(rows[at])]
        column = self.tags.columns.get(tag)
        return at if column is None else at[~column.present(rows[at])]

    # -- tags -----------------------------------------------------------------------------------

    def update_tags(self, uids: Uids, tags: Mapping[str, TagValues], now_s: float) -> list[Effect]:
        """Set tags of rows; see ``ControlPlane.update_tags``."""
        rows = self.table.find(uids)
        lost = rows < 0
        lost[~lost] = ~self.table.is_live(rows[~lost])
        if bool(lost.any()):
            raise RowsGone(int(lost.sum()), len(uids), uids[lost].tolist())
        self.tags.check_values(tags)
        for name, values in tags.items():
            self.tags.set(name, rows, values)
        rows = np.unique(rows)
        self.feeds.retag(rows, tags)
        effects = self.free_stale(rows)
        rows = rows[self.table.is_live(rows)]
        fed = self.feeds.refresh(rows)
        effects += self.selects.arrive(rows)
        return effects + self.serve(fed, now_s)

    # -- the end of a wait ----------------------------------------------------------------------

    def cancel(self, waiter: Waiter, now_s: float) -> list[Effect]:
        """It waits no more and is not answered; those that waited behind it may go on."""
        self._leave[type(waiter)](waiter)
        feeds = [waiter.feed] if isinstance(waiter, ClaimWaiter) else []
        return self.claims.serve(feeds, now_s) + self.settle(now_s)

    def give_up(self, waiter: Waiter, now_s: float, hint: str) -> list[Effect]:
        """The deadline of something that waits has come; ``hint``: what may be wrong with it."""
        if isinstance(waiter, PutWaiter):
            refusal = self.quota.give_up(waiter, holders(self.policy, self.table))
            return [refusal, *self.settle(now_s)]
        assert isinstance(waiter, (ClaimWaiter, CellWaiter, SelectWaiter))
        hint = hint or shortage_hint(self.name, self.table, waiter)
        if isinstance(waiter, CellWaiter):
            return [self.cells.give_up(waiter, now_s, hint)]
        if isinstance(waiter, SelectWaiter):
            return [self.selects.give_up(waiter, now_s, hint)]
        answer = self.claims.give_up(waiter, now_s, hint)
        return [answer, *self.claims.serve([waiter.feed], now_s), *self.settle(now_s)]
