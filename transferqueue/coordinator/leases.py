"""Claims that are out: who holds which rows until when, and what became of those that are not."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from transferqueue.coordinator.deadlines import Deadlines
from transferqueue.errors import AlreadyAcked, LeaseExpired, UnknownClaim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transferqueue.coordinator.effects import ClientId
    from transferqueue.coordinator.replicas import SharedBatch
    from transferqueue.coordinator.uid_ranges import Uids

REMEMBERED_CLAIMS = 65_536
"""How many closed claims are remembered, to say what became of them."""


class Ending(Enum):
    """How a claim came to its end without an ack."""

    RETURNED = "returned"
    """Its samples were delivered in vain: it was given back, or its lease ran out."""
    UNHEARD = "unheard"
    """Its answer reached nobody: it is as if it had not been made."""
    RESTORED = "restored"
    """The service was saved and restored meanwhile; it was delivered, and did not fail."""


@dataclass(slots=True, kw_only=True)
class Lease:
    """One claim that is out."""

    claim_id: int
    client_id: ClientId
    partition: str
    task: str
    uids: Uids
    """Distinct, in no order that matters."""
    num_rows: int
    """Handed out with it, repeats counted."""
    deadline_s: float
    exclusive: bool
    """Whether the rows are marked as claimed for the task."""
    batch: SharedBatch | None = None
    """With ``replica``: the rows are those of a batch that several replicas get."""
    replica: int = 0

    @property
    def is_last(self) -> bool:
        """Once it is closed: whether nobody else holds, or is still to get, its rows."""
        return self.batch is None or self.batch not in self.batch.line


class Leases:
    """All claims of the service that are out, by id. Ids are never reused."""

    def __init__(self, first_claim_id: int = 1) -> None:
        self._next_id = first_claim_id
        self._open: dict[int, Lease] = {}
        self._of_client: dict[ClientId, set[int]] = {}
        self._expired_s: OrderedDict[int, float | None] = OrderedDict()
        """Closed claims: when the lease ran out, or ``None`` when it was acked or given back."""
        self.deadlines: Deadlines[int] = Deadlines()

    def __len__(self) -> int:
        return len(self._open)

    def next_claim_id(self) -> int:
        claim_id, self._next_id = self._next_id, self._next_id + 1
        return claim_id

    def peek_claim_id(self) -> int:
        """What the next claim will be numbered."""
        return self._next_id

    def closed(self) -> Mapping[int, float | None]:
        """Claims that have ended, as they are remembered."""
        return self._expired_s

    def is_out(self, claim_id: int) -> bool:
        return claim_id in self._open

    def each(self) -> Iterator[Lease]:
        """Every claim that is out."""
        yield from self._open.values()

    def skip_to(self, claim_id: int) -> None:
        """Number claims from here on, if that is higher."""
        self._next_id = max(self._next_id, claim_id)

    def restore(self, next_claim_id: int, closed: Mapping[int, float | None]) -> None:
        """Go on from another coordinator's ``peek_claim_id`` and ``closed``."""
        self._next_id = next_claim_id
        self._expired_s = OrderedDict(closed)

    def reopen(self, lease: Lease) -> None:
        """A claim that another coordinator gave is out."""
        self._next_id = max(self._next_id, lease.claim_id + 1)
        self.open(lease)

    def open(self, lease: Lease) -> None:
        """The claim is out."""
        self._open[lease.claim_id] = lease
        self._of_client.setdefault(lease.client_id, set()).add(lease.claim_id)
        self.deadlines.set(lease.claim_id, lease.deadline_s)

    def get(self, claim_id: int, now_s: float) -> Lease:
        """The claim, if it is out: else LeaseExpired, AlreadyAcked or UnknownClaim."""
        lease = self._open.get(claim_id)
        if lease is None:
            if claim_id not in self._expired_s:
                raise UnknownClaim(claim_id)
            expired_s = self._expired_s[claim_id]
            if expired_s is None:
                raise AlreadyAcked(claim_id)
            raise LeaseExpired(claim_id, now_s - expired_s)
        if now_s >= lease.deadline_s:
            raise LeaseExpired(claim_id, now_s - lease.deadline_s)
        return lease

    def extend(self, claim_id: int, lease_s: float, now_s: float) -> float:
        """Hold the claim for ``lease_s`` from now on; returns until when."""
        lease = self.get(claim_id, now_s)
        lease.deadline_s = now_s + lease_s
        self.deadlines.set(claim_id, lease.deadline_s)
        return lease.deadline_s

    def close(self, claim_id: int) -> Lease:
        """The claim was acked or given back."""
        return self._close(claim_id, None)

    def expire(self, claim_id: int, now_s: float) -> Lease:
        """The claim ends now, as if its lease had run out."""
        return self._close(claim_id, now_s)

    def shift_clock(self, delta_s: float) -> None:
        """Another clock than that of the instants in here counts from now on: none is out."""
        for claim_id, expired_s in self._expired_s.items():
            if expired_s is not None:
                self._expired_s[claim_id] = expired_s + delta_s

    def pop_due(self, now_s: float) -> list[Lease]:
        """Claims whose lease has run out; they are closed."""
        due = (self._open[claim_id] for claim_id in self.deadlines.pop_due(now_s))
        return [self._close(lease.claim_id, lease.deadline_s) for lease in due]

    def _close(self, claim_id: int, expired_s: float | None) -> Lease:
        lease = self._open.pop(claim_id)
        of_client = self._of_client[lease.client_id]
        of_client.discard(claim_id)
        if not of_client:
            del self._of_client[lease.client_id]
        self.deadlines.drop(claim_id)
        self._expired_s[claim_id] = expired_s
        if len(self._expired_s) > REMEMBERED_CLAIMS:
            self._expired_s.popitem(last=False)
        return lease

    def of_client(self, client_id: ClientId) -> list[Lease]:
        """What a client holds."""
        return [self._open[claim_id] for claim_id in sorted(self._of_client.get(client_id, ()))]

    def of_partition(self, partition: str) -> list[Lease]:
        """What is out of one partition. O(leases)."""
        return [lease for lease in self._open.values() if lease.partition == partition]
