"""Newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from transferqueue.coordinator.samplers.base import Candidates, Sampler, tag_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FreshestFirst(Sampler):
    """The samples with the highest ``tag``; among equals the oldest.

    Looks at all candidates: a claim of 256 takes 0.3 ms of the coordinator with 10,000 of them, and
    75 ms with 1,000,000, while nobody else is served. A quota (``max_rows``) bounds it.
    """

    tag: str = "policy_version"

    name: ClassVar[str] = "freshest_first"

    def __post_init__(self) -> None:
        tag_name(self.name, self.tag)

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.tag,)

    def window(self, n: int) -> int | None:
        del n
        return None

    def choose(
        self, candidates: Candidates, n: int, rng: np.random.Generator
    ) -> NDArray[np.int64] | None:
        del rng
        if len(candidates) < n:
            return None
        versions = candidates.numbers(self.tag)
        # Sort only what can be chosen: sorting all of 1,000,000 candidates takes 4 times as long.
        bar = np.partition(versions, len(versions) - n)[len(versions) - n]
        above = np.flatnonzero(versions > bar)
        level = np.flatnonzero(versions == bar)[: n - len(above)]
        chosen = np.sort(np.concatenate((above, level)))
        return chosen[np.argsort(-versions[chosen].astype(np.float64), kind="stable")]
