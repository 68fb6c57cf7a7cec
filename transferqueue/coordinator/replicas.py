"""Batches that every replica of a data-parallel rank gets, in the same order.

Symbols: batches b0, b1, ... of one line, and for each replica the next batch it has not acked.
Whichever replica comes first makes a batch; the others find it. A batch is done when all have
acked it. A replica that dies leaves its place: started again, as another client, it gets the batch
it had not acked, and the others, which may be a batch ahead, are not disturbed. The client that
holds a batch and claims again works ahead: it gets the batch after it. A batch that some replica
has acked is never given to anybody else, even if the lease of the last one runs out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transferqueue.coordinator.effects import ClientId
    from transferqueue.coordinator.uid_ranges import Uids


class Holding(NamedTuple):
    """A claim, and whose it is."""

    claim_id: int
    client_id: ClientId


@dataclass(slots=True, kw_only=True, eq=False)
class SharedBatch:
    """One batch of a line."""

    line: ReplicaLine
    uids: Uids
    """In the sampler's order."""
    acked: set[int] = field(default_factory=set)
    holding: dict[int, Holding] = field(default_factory=dict)
    """replica -> under which claim it has the batch now."""


class ReplicaLine:
    """The batches of one data-parallel rank of one task, oldest first."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self._batches: list[SharedBatch] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, batch: SharedBatch) -> bool:
        return batch in self._batches

    def batches(self) -> list[SharedBatch]:
        """Oldest first."""
        return list(self._batches)

    def pending(self, replica: int, client_id: ClientId) -> SharedBatch | None:
        """The batch that this client of a replica gets next: one that the replica has not acked
        and the client does not hold; ``None`` when there is none."""
        for batch in self._batches:
            holding = batch.holding.get(replica)
            is_its_own = holding is not None and holding.client_id == client_id
            if replica not in batch.acked and not is_its_own:
                return batch
        return None

    def append(self, uids: Uids) -> SharedBatch:
        """A new batch, which no replica has yet."""
        batch = SharedBatch(line=self, uids=uids)
        self._batches.append(batch)
        return batch

    def ack(self, batch: SharedBatch, replica: int) -> bool:
        """This replica is done with it. True when all are: the batch leaves the line."""
        batch.acked.add(replica)
        batch.holding.pop(replica, None)
        if len(batch.acked) < self.num_replicas:
            return False
        self.remove(batch)
        return True

    def let_go(self, batch: SharedBatch, replica: int) -> bool:
        """This replica gave it back or lost its lease. True when its rows are for anybody again:
        nobody has acked it and nobody holds it; the batch leaves the line."""
        batch.holding.pop(replica, None)
        if batch.acked or batch.holding:
            return False
        self.remove(batch)
        return True

    def remove(self, batch: SharedBatch) -> None:
        """The batch is nobody's next one any more; those that hold it may still ack it."""
        if batch in self._batches:
            self._batches.remove(batch)
