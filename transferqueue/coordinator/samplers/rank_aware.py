"""One batch for all replicas of a data-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from transferqueue.coordinator.samplers.base import Candidates, Sampler, Sharing, positive
from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RankAware(Sampler):
    """Every rank claims for itself; the ``replicas`` of one data-parallel rank get the same rows.

    Ranks that hold parts of one model (tensor, pipeline or context parallel) must see the same
    samples, in the same order, claim by claim: the k-th claim of each is the same batch, whichever
    comes first. Global rank ``r`` is replica ``r % replicas`` of data-parallel rank ``r //
    replicas``. A batch is done when all its replicas have acked it. A client that claims again
    before its ack works ahead and gets the next batch; a new client for the same rank, as one that
    was restarted is, gets the batches again that its rank had not acked. So one client a rank.
    """

    dp_size: int
    replicas: int
    rank: int | None = None

    name: ClassVar[str] = "rank_aware"

    def __post_init__(self) -> None:
        positive(self.name, "dp_size", self.dp_size)
        positive(self.name, "replicas", self.replicas)
        world_size = self.dp_size * self.replicas
        if self.rank is not None and not 0 <= self.rank < world_size:
            raise InvalidInput(
                f"rank_aware: rank {self.rank} is not one of {self.dp_size} x {self.replicas} = "
                f"{world_size} ranks"
            )

    def for_rank(self, rank: int) -> RankAware:
        """The same, for the claims of one global rank."""
        return replace(self, rank=rank)

    @property
    def sharing(self) -> Sharing:
        dp_rank, replica = divmod(self.rank or 0, self.replicas)
        key = (self.dp_size, self.replicas, dp_rank)
        return Sharing(key=key, replica=replica, num_replicas=self.replicas)

    def check(self, n: int) -> None:
        del n
        if self.rank is None:
            raise InvalidInput(
                "rank_aware: which rank claims? RankAware(dp_size, replicas).for_rank(rank)"
            )

    def choose(
        self, candidates: Candidates, n: int, rng: np.random.Generator
    ) -> NDArray[np.int64] | None:
        del rng
        return np.arange(n) if len(candidates) >= n else None
