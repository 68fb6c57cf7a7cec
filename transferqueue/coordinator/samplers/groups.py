"""Whole groups or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from transferqueue.coordinator.samplers.base import (
    Candidates,
    Grouping,
    Sampler,
    positive,
    tag_name,
)
from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Groups(Sampler):
    """Complete groups only: ``size`` samples with the same ``tag``, next to each other.

    With groups of 4 of which 4, 3 and 4 samples are ready, two groups can be claimed and the third
    waits. Groups go in order of their first sample. A group of twice the size counts as two.
    """

    size: int
    tag: str = "group"

    name: ClassVar[str] = "groups"

    def __post_init__(self) -> None:
        positive(self.name, "size", self.size)
        tag_name(self.name, self.tag)

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.tag,)

    @property
    def grouping(self) -> Grouping:
        return Grouping(tag=self.tag, size=self.size)

    def check(self, n: int) -> None:
        if n % self.size:
            below, above = n - n % self.size, n - n % self.size + self.size
            near = f"{below} or {above}" if below else f"{above}"
            raise InvalidInput(f"n={n} is no multiple of group size {self.size}; ask for {near}")

    def largest(self, available: int) -> int:
        return available // self.size * self.size

    def choose(
        self, candidates: Candidates, n: int, rng: np.random.Generator
    ) -> NDArray[np.int64] | None:
        del rng
        groups = candidates.groups(self.tag)
        order = np.argsort(groups, kind="stable")
        order = order[groups[order] >= 0]
        if not len(order):
            return None
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))  # [groups]
        sizes = np.diff(np.append(starts, len(order)))
        rank = np.arange(len(order)) - np.repeat(starts, sizes)
        whole = rank < np.repeat(sizes // self.size * self.size, sizes)
        # [units, size]: rows of one group are adjacent and whole, so each unit is of one group.
        units = order[whole].reshape(-1, self.size)
        if len(units) * self.size < n:
            return None
        units = units[np.argsort(units[:, 0], kind="stable")]
        return units[: n // self.size].ravel()
