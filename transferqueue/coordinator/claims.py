"""Claims of one partition: who gets which rows, in which order, and what an ack or its lack means.

Fairness: claims of one feed (task, fields, condition) are served strictly in the order they came,
so a large one is never starved by small ones behind it; claims of different feeds are tried in
the order they came. A claim waits until all of its ``n`` rows can be handed out together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from transferqueue.coordinator.choice import choose_rows
from transferqueue.coordinator.effects import Effect, Grant, Refuse, Reply
from transferqueue.coordinator.generators import Generators
from transferqueue.coordinator.leases import Ending, Lease, Leases
from transferqueue.coordinator.replicas import Holding, ReplicaLine, SharedBatch
from transferqueue.coordinator.row_set import NO_ROWS, Rows
from transferqueue.coordinator.table import Table, TaskState
from transferqueue.coordinator.waiters import lost_rows
from transferqueue.errors import (
    NotReady,
    RowsConsumed,
    RowsGone,
    TransferQueueError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transferqueue.coordinator.effects import WaiterId
    from transferqueue.coordinator.feeds import Feed, FeedKey, Feeds
    from transferqueue.coordinator.quotas import Quota
    from transferqueue.coordinator.tags import TagTable
    from transferqueue.coordinator.uid_ranges import Uids
    from transferqueue.coordinator.waiters import ClaimWaiter
    from transferqueue.homes import Homes

MAX_AT_ONCE = 64
"""Claims that are answered in one go, at half a millisecond each: of 10,000 that wake at once the
others wait for the next turns of the loop, and everybody else is served in between."""

Queue: TypeAlias = "OrderedDict[WaiterId, ClaimWaiter]"


class Claims:
    """The claims of one partition, those that wait and those that are out."""

    def __init__(
        self,
        *,
        partition: str,
        max_deliveries: int | None,
        table: Table,
        tags: TagTable,
        feeds: Feeds,
        quota: Quota,
        leases: Leases,
    ) -> None:
        self._partition = partition
        self.max_deliveries = max_deliveries
        self._table = table
        self._tags = tags
        self._feeds = feeds
        self._quota = quota
        self._leases = leases
        self._queues: dict[FeedKey, Queue] = {}
        self._cut_short: dict[FeedKey, Feed] = {}
        """Feeds of which more claims may be answered, at the next `serve_rest`."""
        self._num_jumpers: Counter[FeedKey] = Counter()
        """Per queue, the claims that may be served although one before them waits."""
        self._generators = Generators()
        self._lines: dict[tuple[FeedKey, tuple[int, ...]], ReplicaLine] = {}

    # -- waiting --------------------------------------------------------------------------------

    def park(self, waiter: ClaimWaiter) -> None:
        """The claim waits behind those of its feed; ``serve`` answers it, maybe at once."""
        self._queues.setdefault(waiter.feed.key, OrderedDict())[waiter.waiter_id] = waiter
        self._num_jumpers[waiter.feed.key] += _may_jump(waiter)
        self._feeds.pinned.add(waiter.feed.key)

    def leave(self, waiter: ClaimWaiter) -> None:
        """The claim waits no more."""
        queue = self._queues[waiter.feed.key]
        del queue[waiter.waiter_id]
        self._num_jumpers[waiter.feed.key] -= _may_jump(waiter)
        if not queue:
            del self._queues[waiter.feed.key]
            del self._num_jumpers[waiter.feed.key]
            self._feeds.pinned.discard(waiter.feed.key)

    def waiting(self) -> Iterator[ClaimWaiter]:
        """Every claim that waits."""
        for queue in self._queues.values():
            yield from queue.values()

    def heads(self) -> list[ClaimWaiter]:
        """The first claim of each feed, in the order they came."""
        heads = [next(iter(queue.values())) for queue in self._queues.values()]
        return sorted(heads, key=lambda waiter: waiter.order)

    # -- serving --------------------------------------------------------------------------------

    def serve(self, feeds: Iterable[Feed], now_s: float) -> list[Effect]:
        """Answer the waiting claims of these feeds, as far as there are rows for them, or
        `MAX_AT_ONCE` of them. O(what is answered)."""
        keys = {feed.key for feed in feeds} & self._queues.keys()
        effects: list[Effect] = []
        for head in self.heads() if keys else ():
            if head.feed.key in keys:
                effects += self._serve_queue(head.feed, now_s, MAX_AT_ONCE - len(effects))
        return effects

    @property
    def has_rest(self) -> bool:
        """Whether `serve_rest` is due."""
        return bool(self._cut_short)

    def serve_rest(self, now_s: float) -> list[Effect]:
        """Go on where `serve` was cut short."""
        feeds, self._cut_short = list(self._cut_short.values()), {}
        return self.serve(feeds, now_s)

    def _serve_queue(self, feed: Feed, now_s: float, at_most: int) -> list[Effect]:
        key, queue = feed.key, self._queues[feed.key]
        effects: list[Effect] = []
        blocked = False
        # Where nobody may overtake it ends at the first that gets nothing: no look at the others.
        for waiter in list(queue.values()) if self._num_jumpers[key] else _drained(queue):
            if len(effects) >= at_most:
                self._cut_short[key] = feed
                break
            if blocked and not self._num_jumpers[key]:
                break
            if blocked and not self._jumps_queue(waiter):
                continue
            answer = self._try(waiter, waiter.n, now_s)
            if answer is None:
                blocked = blocked or waiter.uids is None
                continue
            self.leave(waiter)
            effects.append(answer)
        return effects

    def _jumps_queue(self, waiter: ClaimWaiter) -> bool:
        """Whether it takes nothing from those before it: named rows, or a batch that is made."""
        return waiter.uids is not None or self._pending(waiter) is not None

    def serve_past_ratio(self, waiter: ClaimWaiter, now_s: float) -> list[Effect]:
        """Answer the first claim of its feed though ``samples_per_insert`` is against it."""
        answer = self._try(waiter, waiter.n, now_s, past_ratio=True)
        if answer is None:
            return []
        self.leave(waiter)
        return [answer, *self.serve([waiter.feed], now_s)]

    def _try(
        self, waiter: ClaimWaiter, n: int, now_s: float, *, past_ratio: bool = False
    ) -> Effect | None:
        """Answer the claim with ``n`` rows now, or not at all."""
        try:
            if waiter.uids is not None:
                return self._try_uids(waiter, waiter.uids, now_s)
            batch = self._pending(waiter)
            if batch is not None:
                return self._grant_again(waiter, batch, now_s)
            if not (past_ratio or self._quota.may_hand_out(n)):
                return None
            generator = self._generators.of(waiter)
            rows = choose_rows(
                waiter.sampler, n, waiter.feed, self._feeds, self._table, self._tags, generator
            )
            return None if rows is None else self._grant(waiter, rows, now_s)
        except TransferQueueError as error:
            return Refuse(waiter_id=waiter.waiter_id, error=error)

    def _try_uids(self, waiter: ClaimWaiter, uids: Uids, now_s: float) -> Effect | None:
        rows = self._table.find(uids)
        if bool((rows < 0).any()):
            return None  # not committed yet; ``free`` refuses it when they are gone
        task = waiter.feed.task
        done = self._table.is_in_state(task, rows, TaskState.ACKED)
        done |= self._table.is_in_state(task, rows, TaskState.DEAD_LETTER)
        if bool(done.any()):
            raise RowsConsumed(task, int(done.sum()), len(uids), uids[done].tolist())
        ready = waiter.feed.ready.contains(rows)
        return self._grant(waiter, rows, now_s) if bool(ready.all()) else None

    # -- granting -------------------------------------------------------------------------------

    def _grant(self, waiter: ClaimWaiter, rows: Rows, now_s: float) -> Reply:
        fields = self._specs(waiter, rows)
        task, sharing = waiter.feed.task, waiter.sampler.sharing
        distinct = rows if waiter.sampler.exclusive else np.unique(rows)
        self._table.deliver(task, distinct)
        self._quota.rows_handed_out += len(rows)
        if waiter.sampler.exclusive:
            self._table.set_state(task, rows, TaskState.CLAIMED)
            self._feeds.withdraw(rows, task)
        batch = None
        if sharing is not None and waiter.uids is None:
            line = self._line(waiter, sharing.key, sharing.num_replicas)
            batch = line.append(self._table.uids(rows))
        return self._open(waiter, rows, distinct, fields, batch, now_s)

    def _specs(self, waiter: ClaimWaiter, rows: Rows) -> dict[str, Any]:
        return {field: self._table.spec(field, rows) for field in waiter.fields}

    def _open(
        self,
        waiter: ClaimWaiter,
        rows: Rows,
        distinct: Rows,
        fields: dict[str, Any],
        batch: SharedBatch | None,
        now_s: float,
    ) -> Reply:
        sharing = waiter.sampler.sharing
        lease = Lease(
            claim_id=self._leases.next_claim_id(),
            client_id=waiter.client_id,
            partition=self._partition,
            task=waiter.feed.task,
            uids=self._table.uids(distinct),
            num_rows=len(rows),
            deadline_s=now_s + waiter.lease_s,
            exclusive=waiter.sampler.exclusive,
            batch=batch,
            replica=0 if sharing is None else sharing.replica,
        )
        if batch is not None:
            batch.holding[lease.replica] = Holding(lease.claim_id, lease.client_id)
        self._leases.open(lease)
        tags = self._tags.get(rows)
        grant = Grant(
            claim_id=lease.claim_id,
            partition=self._partition,
            task=lease.task,
            uids=self._table.uids(rows),
            fields=fields,
            tags={name: values.to_column() for name, values in tags.items()},
            deliveries=self._table.deliveries(lease.task, rows),
            lease_s=waiter.lease_s,
            lease_deadline_s=lease.deadline_s,
        )
        return Reply(waiter_id=waiter.waiter_id, payload=grant)

    # -- over a restart -------------------------------------------------------------------------

    def line_to_plain(self, line: ReplicaLine) -> list[Any] | None:
        """What names a line of this partition, and how many replicas it has; ``None`` when it has
        no batch left, and so is no more. O(lines)."""
        return next((plain for plain, of in self._lines_by_name() if of is line), None)

    def lines_to_plain(self) -> Iterator[tuple[list[Any], list[SharedBatch]]]:
        """Every line, as ``line_to_plain`` names it, and its batches, oldest first."""
        for plain, line in self._lines_by_name():
            yield plain, line.batches()

    def _lines_by_name(self) -> Iterator[tuple[list[Any], ReplicaLine]]:
        for ((task, fields, where), key), line in self._lines.items():
            yield [task, sorted(fields), where, list(key), line.num_replicas], line

    def line_of(self, plain: list[Any]) -> ReplicaLine:
        """Inverse of ``line_to_plain``; made when it is not there."""
        task, fields, where, key, num_replicas = plain
        name = ((str(task), frozenset(fields), str(where)), tuple(key))
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = ReplicaLine(int(num_replicas))
        return line

    # -- replicas -------------------------------------------------------------------------------

    def _line(self, waiter: ClaimWaiter, key: tuple[int, ...], num_replicas: int) -> ReplicaLine:
        line = self._lines.get((waiter.feed.key, key))
        if line is None:
            self._lines = {key: line for key, line in self._lines.items() if len(line)}
            line = self._lines[(waiter.feed.key, key)] = ReplicaLine(num_replicas)
        return line

    def _pending(self, waiter: ClaimWaiter) -> SharedBatch | None:
        sharing = waiter.sampler.sharing
        line = None if sharing is None else self._lines.get((waiter.feed.key, sharing.key))
        if line is None or sharing is None:
            return None
        return line.pending(sharing.replica, waiter.client_id)

    def _grant_again(self, waiter: ClaimWaiter, batch: SharedBatch, now_s: float) -> Effect | None:
        """Give a replica the batch that another one made, or that it had before it died."""
        rows = self._table.find(batch.uids)
        rows = rows[rows >= 0]
        rows = rows[self._table.is_held(rows)]
        if not len(rows):  # all of it was cleared: on to the next one
            batch.line.remove(batch)
            return self._try(waiter, waiter.n, now_s)
        sharing = waiter.sampler.sharing
        assert sharing is not None
        earlier = batch.holding.pop(sharing.replica, None)
        if earlier is not None:
            self._leases.close(earlier.claim_id)
        return self._open(waiter, rows, rows, self._specs(waiter, rows), batch, now_s)

    # -- the end of a claim ---------------------------------------------------------------------

    def ack(self, lease: Lease) -> Rows:
        """The task is done with the rows of a closed lease. Returns those it is done with now."""
        if lease.batch is not None and not lease.batch.line.ack(lease.batch, lease.replica):
            return NO_ROWS
        rows = self._claimed_rows(lease)
        if lease.exclusive:
            self._table.set_state(lease.task, rows, TaskState.ACKED)
        return rows

    def give_back(self, lease: Lease, ending: Ending = Ending.RETURNED) -> Rows:
        """A closed lease was not acked. Returns the rows that are free again, or dead letters."""
        if lease.batch is not None and not lease.batch.line.let_go(lease.batch, lease.replica):
            return NO_ROWS
        rows = self._claimed_rows(lease)
        if ending is Ending.UNHEARD:
            self._table.take_delivery_back(lease.task, rows)
            self._quota.rows_handed_out -= lease.num_rows
        if not lease.exclusive:
            return rows
        self._table.set_state(lease.task, rows, TaskState.FREE)
        if self.max_deliveries is not None and ending is Ending.RETURNED:
            dead = self._table.deliveries(lease.task, rows) >= self.max_deliveries
            self._table.set_state(lease.task, rows[dead], TaskState.DEAD_LETTER)
        return rows

    def _claimed_rows(self, lease: Lease) -> Rows:
        """The rows of a lease that are still there."""
        uids = lease.uids if lease.batch is None else np.unique(lease.batch.uids)
        rows = self._table.find(uids)
        rows = rows[rows >= 0]
        return rows[self._table.is_live(rows)]

    # -- giving up ------------------------------------------------------------------------------

    def give_up(self, waiter: ClaimWaiter, now_s: float, hint: str) -> Effect:
        """The claim's deadline has come: what is there, if it takes that, or NotReady."""
        self.leave(waiter)
        try:
            ready = self.num_ready(waiter)
        except TransferQueueError as failed:  # of its sampler
            return Refuse(waiter_id=waiter.waiter_id, error=failed)
        if waiter.allow_partial and waiter.uids is None and 0 < ready < waiter.n:
            answer = self._try(waiter, ready, now_s)
            if answer is not None:
                return answer
        num_live = self._table.num_live
        missing = {f: num_live - self._table.num_ready.get(f, 0) for f in waiter.fields}
        missing = {field: count for field, count in missing.items() if count}
        error = NotReady(waiter.n, ready, missing, now_s - waiter.parked_s, hint)
        return Refuse(waiter_id=waiter.waiter_id, error=error)

    def num_ready(self, waiter: ClaimWaiter) -> int:
        """How many samples it could be handed now, if it took fewer than it asks for."""
        ready = waiter.feed.ready
        if waiter.uids is not None:
            rows = self._table.find(waiter.uids)
            return int(np.count_nonzero(ready.contains(rows[rows >= 0])))
        grouping = waiter.sampler.grouping
        if grouping is not None:
            return self._feeds.groups(waiter.feed, grouping).num_complete * grouping.size
        return waiter.sampler.largest(len(ready))

    def refuse_gone(self, uids: Uids) -> list[Refuse]:
        """These uids were freed: refuse the claims that named one of them."""
        refusals = []
        for waiter in list(self.waiting()):
            if waiter.uids is None:
                continue
            gone = np.isin(waiter.uids, uids)
            if bool(gone.any()):
                self.leave(waiter)
                lost = waiter.uids[gone].tolist()
                error = RowsGone(len(lost), len(waiter.uids), lost)
                refusals.append(Refuse(waiter_id=waiter.waiter_id, error=error))
        return refusals

    def refuse_lost(self, slot: int, homes: Homes) -> list[Effect]:
        """The shard of this slot is gone for good: refuse the claims that named a row of it."""
        refusals: list[Effect] = []
        for waiter in list(self.waiting()):
            uids = waiter.uids
            refusal = None if uids is None else lost_rows(waiter, uids, slot, homes)
            if refusal is not None:
                self.leave(waiter)
                refusals.append(refusal)
        return refusals

    def refuse(self, waiter: ClaimWaiter, error: TransferQueueError, now_s: float) -> list[Effect]:
        """A waiting claim turned out to be impossible; those behind it are tried."""
        self.leave(waiter)
        refusal = Refuse(waiter_id=waiter.waiter_id, error=error)
        return [refusal, *self.serve([waiter.feed], now_s)]


def _drained(queue: Queue) -> Iterator[ClaimWaiter]:
    """The first of a queue, again and again, until it is empty or the first stays."""
    last = None
    while queue:
        first = next(iter(queue.values()))
        if first is last:
            return
        last = first
        yield first


def _may_jump(waiter: ClaimWaiter) -> bool:
    return waiter.uids is not None or waiter.sampler.sharing is not None
