"""Which samples hold which fields, and which task has taken them: the one object a server drives.

Nothing here reads a clock or a socket. Times: ``now_s`` and ``deadline_s`` are instants on one
monotonic clock of the server; ``lease_s`` and ``ttl_s`` are durations.

Methods that change something return the effects to carry out, in order. An error that is known at
once is raised, and then nothing was changed; a request that waits is answered later by a ``Reply``
or a ``Refuse`` that carries its ``waiter_id``, out of whichever call satisfied it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator import reports
from transferqueue.coordinator.discards import discard
from transferqueue.coordinator.effects import ClientId, Effect, Refuse, WaiterId
from transferqueue.coordinator.leases import Ending
from transferqueue.coordinator.operator_side import OperatorSide
from transferqueue.coordinator.predicate import Predicate
from transferqueue.coordinator.requests import (
    check_among,
    check_count,
    check_duration,
    check_fields,
    check_names,
    check_tags,
    check_task,
    checked_uids,
    distinct_uids,
)
from transferqueue.coordinator.samplers import Fifo, SamplerRegistry
from transferqueue.coordinator.tag_values import tag_values
from transferqueue.coordinator.waiters import (
    CellWaiter,
    ClaimWaiter,
    SelectWaiter,
)
from transferqueue.coordinator.waiting_report import longest_waits
from transferqueue.errors import ClaimTooLarge, Closed, InvalidInput, UnknownPartition
from transferqueue.homes import NAMED, Homes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from transferqueue.coordinator.leases import Lease
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.policy import PartitionPolicy


class ControlPlane(OperatorSide):
    """All partitions of one service, and what consumers ask of them."""

    def __init__(
        self,
        *,
        samplers: SamplerRegistry | None = None,
        first_claim_id: int = 1,
        homes: Homes = NAMED,
    ) -> None:
        super().__init__(first_claim_id=first_claim_id, homes=homes)
        self._samplers = samplers or SamplerRegistry()
        self._num_claims = 0
        self.num_expired = 0
        """Claims whose lease ran out."""

    # -- partitions -----------------------------------------------------------------------------

    def create_partition(
        self,
        name: str,
        policy: PartitionPolicy,
        *,
        now_s: float,
    ) -> list[Effect]:
        """Declare a partition. The same declaration again is a no-op, another one is InvalidInput.

        With ``policy.tasks`` any other task name is ``UnknownTask``; with ``policy.fields`` any
        other field name in a claim or wait is ``UnknownField``. A partition that was never declared
        is made by its first commit or claim, open to every name, with explicit retention.
        """
        return self._finish(self._partitions.declare(name, policy, now_s))

    def policy(self, name: str) -> PartitionPolicy:
        """What was declared of a partition; UnknownPartition names near ones."""
        return self._partitions.known(name).policy

    def drop_partition(self, name: str, *, now_s: float) -> list[Effect]:
        """Forget it and free all its rows; what waits on it is refused with UnknownPartition."""
        del now_s
        effects = self._partitions.drop(name)
        for lease in self._leases.of_partition(name):
            self._leases.close(lease.claim_id)
        answered = {effect.waiter_id for effect in effects if isinstance(effect, Refuse)}
        for waiter_id in self._room.of_partition(name):
            if waiter_id not in answered:
                effects.append(Refuse(waiter_id=waiter_id, error=UnknownPartition(name)))
        return self._finish(effects)

    # -- consumers ------------------------------------------------------------------------------

    def claim(
        self,
        *,
        now_s: float,
        waiter_id: WaiterId,
        client_id: ClientId,
        partition: str,
        task: str,
        fields: Sequence[str],
        n: int = 0,
        uids: NDArray[np.int64] | None = None,
        sampler: Mapping[str, Any] | None = None,
        where: list[Any] | None = None,
        deadline_s: float,
        lease_s: float,
        allow_partial: bool = False,
    ) -> list[Effect]:
        """Take ``n`` rows whose ``fields`` are ready for ``task``, or exactly ``uids``.

        Answered with a ``Grant``, else at ``deadline_s`` with ``NotReady`` (``allow_partial``:
        with what is ready, if that is anything). ``sampler`` and ``where`` in their wire form;
        ``None`` is first in, first out, over all rows.
        """
        check_duration("lease_s", lease_s)
        check_names("field", fields)
        check_names("task", (task,))
        chooser = Fifo() if uids is not None else self._samplers.read(sampler)
        condition = None if where is None else Predicate.from_plain(where)
        if uids is not None:
            uids = distinct_uids(uids)
            n = len(uids)
        check_count(n, chooser)
        made = self._partitions.made(partition)
        check_task(made, task)
        check_fields(made, fields)
        check_tags(made, chooser, condition)
        reason = made.quota.check_claim(n, repeats=not chooser.exclusive)
        if reason:
            raise ClaimTooLarge(partition, reason)
        self._num_claims += 1
        waiter = ClaimWaiter(
            waiter_id=waiter_id,
            client_id=client_id,
            parked_s=now_s,
            deadline_s=deadline_s,
            order=self._num_claims,
            fields=tuple(dict.fromkeys(fields)),
            n=n,
            feed=made.feeds.get(task, fields, condition),
            sampler=chooser,
            lease_s=lease_s,
            allow_partial=allow_partial,
            uids=uids,
        )
        return self._enter(made, waiter, made.claim(waiter, now_s))

    def ack(
        self, claim_id: int, *, now_s: float, drop: NDArray[np.int64] | None = None
    ) -> list[Effect]:
        """Done with these rows for this task, for good; with those in ``drop`` for every task."""
        lease = self._leases.get(claim_id, now_s)
        if drop is not None:
            check_among(drop, lease.uids)
        self._leases.close(claim_id)
        partition = self._partitions.get(lease.partition)
        if partition is None:
            return []
        effects = partition.ack(lease, now_s)
        if drop is not None:
            effects += discard(partition, drop, now_s)[1]
        return self._finish(effects)

    def give_back(
        self, claim_id: int, *, now_s: float, ending: Ending = Ending.RETURNED
    ) -> list[Effect]:
        """Let the task's next claim have them."""
        self._leases.get(claim_id, now_s)
        return self._give_back(self._leases.close(claim_id), now_s, ending)

    def _give_back(
        self, lease: Lease, now_s: float, ending: Ending = Ending.RETURNED
    ) -> list[Effect]:
        partition = self._partitions.get(lease.partition)
        return [] if partition is None else self._finish(partition.give_back(lease, now_s, ending))

    def unclaim_all(self, now_s: float) -> None:
        """No claim is out any more, and its rows are free again: the service was restored, and
        nobody is there to ack. Deliveries stay counted, but none of them is held to have failed.
        Frees that this makes due are ordered when their shards come."""
        for lease in list(self._leases.each()):
            self._leases.expire(lease.claim_id, now_s)
            partition = self._partitions.get(lease.partition)
            if partition is not None:
                self._finish(partition.give_back(lease, now_s, Ending.RESTORED))

    def shift_clock(self, delta_s: float) -> None:
        """Another clock than that of the instants in here counts from now on. Nothing waits, and
        no claim is out."""
        self._leases.shift_clock(delta_s)
        for partition in self._partitions:
            partition.lifetimes.arrivals.shift_clock(delta_s)

    def extend(self, claim_id: int, lease_s: float, *, now_s: float) -> float:
        """Hold the claim for ``lease_s`` from now on; returns the new deadline."""
        check_duration("lease_s", lease_s)
        return self._leases.extend(claim_id, lease_s, now_s)

    def wait(
        self,
        *,
        now_s: float,
        waiter_id: WaiterId,
        client_id: ClientId,
        partition: str,
        uids: NDArray[np.int64],
        fields: Sequence[str],
        deadline_s: float,
    ) -> list[Effect]:
        """Answer with ``CellsReady`` once every (uid, field) is there."""
        check_names("field", fields)
        if not fields:
            raise InvalidInput("wait: name at least one field")
        made = self._partitions.made(partition)
        check_fields(made, fields)
        waiter = CellWaiter(
            waiter_id=waiter_id,
            client_id=client_id,
            parked_s=now_s,
            deadline_s=deadline_s,
            uids=np.unique(checked_uids(uids)),
            fields=tuple(dict.fromkeys(fields)),
        )
        return self._enter(made, waiter, made.wait(waiter))

    def select(
        self,
        *,
        now_s: float,
        waiter_id: WaiterId,
        client_id: ClientId,
        partition: str,
        where: list[Any] | None = None,
        fields: Sequence[str] = (),
        order_by: str | None = None,
        descending: bool = True,
        n: int | None = None,
        min_rows: int = 0,
        deadline_s: float | None = None,
    ) -> list[Effect]:
        """Look rows up without taking them; answered with a ``Selection``.

        Rows that have all of ``fields``, match ``where``, and, with ``order_by``, carry that tag;
        by the tag (newest first by default) or in order of arrival; the first ``n``. With
        ``deadline_s`` it waits until at least ``min_rows`` match.
        """
        check_names("field", fields)
        if n is not None and n < 1:
            raise InvalidInput(f"n must be at least 1, got {n}")
        if n is not None and min_rows > n:
            raise InvalidInput(f"min_rows={min_rows} rows of at most n={n} can never match")
        waits = deadline_s is not None
        made = (self._partitions.made if waits else self._partitions.looked_at)(partition)
        check_fields(made, fields)
        condition = None if where is None else Predicate.from_plain(where)
        if made.table.num_rows:
            if condition is not None:
                condition.check(made.tags)
            if order_by is not None:
                made.tags.column(order_by)
        waiter = SelectWaiter(
            waiter_id=waiter_id,
            client_id=client_id,
            parked_s=now_s,
            deadline_s=now_s if deadline_s is None else deadline_s,
            where=condition,
            fields=tuple(dict.fromkeys(fields)),
            order_by=order_by,
            descending=descending,
            n=n,
            min_rows=0 if deadline_s is None else min_rows,
        )
        return self._enter(made, waiter, made.select(waiter))

    def cancel(self, waiter_id: WaiterId, *, now_s: float) -> list[Effect]:
        """Forget a waiting request; it is not answered. Unknown or answered ones are no-ops."""
        entry = self._room.leave(waiter_id)
        if entry is None:
            return []
        name, waiter = entry
        return self._finish(self._partitions.known(name).cancel(waiter, now_s))

    def client_gone(
        self, client_id: ClientId, *, now_s: float, give_back: bool = False
    ) -> list[Effect]:
        """Refuse what it waits for. Its claims run out with their leases, or at once."""
        effects: list[Effect] = []
        for waiter_id in self._room.of_client(client_id):
            effects += self.cancel(waiter_id, now_s=now_s)
            effects.append(Refuse(waiter_id=waiter_id, error=Closed("the client")))
        for lease in self._leases.of_client(client_id) if give_back else ():
            effects += self._give_back(self._leases.close(lease.claim_id), now_s)
        return effects

    # -- tags and versions ----------------------------------------------------------------------

    def update_tags(
        self,
        *,
        now_s: float,
        partition: str,
        uids: NDArray[np.int64],
        tags: Mapping[str, Any],
    ) -> list[Effect]:
        """Set tags of rows, scalar or per row; ``RowsGone`` if any of them is not there."""
        uids = checked_uids(uids)
        check_names("tag", tags)
        parsed = {name: tag_values(name, value, len(uids)) for name, value in tags.items()}
        values = {name: value for name, value in parsed.items() if value is not None}
        return self._finish(self._partitions.known(partition).update_tags(uids, values, now_s))

    def advance_policy(
        self, version: int, *, now_s: float, partition: str | None = None
    ) -> list[Effect]:
        """A newer policy version exists; rows that are too stale now are dropped or held."""
        del now_s
        effects: list[Effect] = []
        for chosen in self._chosen(partition):
            effects += chosen.advance_policy(version)
        return self._finish(effects)

    def _chosen(self, name: str | None) -> list[Partition]:
        return list(self._partitions) if name is None else [self._partitions.known(name)]

    # -- time and reports -----------------------------------------------------------------------

    def next_deadline_s(self) -> float | None:
        """When ``tick`` has something to do next; ``None`` when only a call can change anything."""
        if any(partition.claims.has_rest for partition in self._partitions):
            return 0.0
        candidates = [self._room.deadlines.next_s(), self._leases.deadlines.next_s()]
        candidates += [p.lifetimes.next_expiry_s() for p in self._partitions]
        return min((due_s for due_s in candidates if due_s is not None), default=None)

    def tick(self, now_s: float) -> list[Effect]:
        """Expire leases, waits and rows whose time is up."""
        effects: list[Effect] = []
        # Leases first: rows that come back may still satisfy a claim whose time is up.
        for lease in self._leases.pop_due(now_s):
            self.num_expired += 1
            effects += self._give_back(lease, now_s)
        for partition in self._partitions:
            effects += self._finish(partition.expire(now_s))
            if partition.claims.has_rest:
                effects += self._finish(partition.claims.serve_rest(now_s))
                effects += self._finish(partition.settle(now_s))
        for waiter_id in self._room.deadlines.pop_due(now_s):
            effects += self._give_up(waiter_id, now_s)
        self._partitions.forget_unused(lambda name: bool(self._room.of_partition(name)))
        return effects

    def _give_up(self, waiter_id: WaiterId, now_s: float) -> list[Effect]:
        entry = self._room.leave(waiter_id)
        if entry is None:  # answered because another one gave up
            return []
        name, waiter = entry
        return self._finish(
            self._partitions.known(name).give_up(waiter, now_s, self._partitions.hint(name))
        )

    def status(self, *, now_s: float) -> dict[str, Any]:
        """Counts by partition and task, plain values."""
        return {
            p.name: {
                **reports.status(p),
                **p.lifetimes.ages(now_s),
                "longest_wait_s": longest_waits(p, now_s),
            }
            for p in self._partitions
        }

    def held(self, *, now_s: float, partition: str | None = None) -> dict[str, Any]:
        """What is held and by whom: rows and bytes by field, task and age, plain values."""
        return {p.name: reports.held(p, now_s) for p in self._chosen(partition)}
