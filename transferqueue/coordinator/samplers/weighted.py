"""Drawn by weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from transferqueue.coordinator.samplers.base import Candidates, Sampler, tag_name
from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Weighted(Sampler):
    """Drawn at random, each in proportion to its ``tag``.

    Looks at all candidates: a claim of 256 takes 0.6 ms of the coordinator with 10,000 of them, and
    120 ms with 1,000,000, while nobody else is served. A quota (``max_rows``) bounds it.

    Without replacement a sample is drawn once and is then the claim's. With replacement it can be
    drawn again, within a claim and by later ones: the claim's ack consumes nothing, as in a replay
    buffer. Weights are finite and not negative; a weight of 0 is never drawn.
    """

    tag: str
    replacement: bool = False
    seed: int = 0

    name: ClassVar[str] = "weighted"

    def __post_init__(self) -> None:
        tag_name(self.name, self.tag)
        if not isinstance(self.replacement, bool):
            raise InvalidInput(f"weighted: replacement must be a bool, got {self.replacement!r}")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise InvalidInput(f"weighted: seed must be an int of at least 0, got {self.seed!r}")

    @property
    def exclusive(self) -> bool:  # type: ignore[override]
        return not self.replacement

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.tag,)

    def window(self, n: int) -> int | None:
        del n
        return None

    def choose(
        self, candidates: Candidates, n: int, rng: np.random.Generator
    ) -> NDArray[np.int64] | None:
        weights = candidates.numbers(self.tag).astype(np.float64)
        if not bool(np.isfinite(weights).all()) or bool((weights < 0).any()):
            raise ValueError(f"tag {self.tag!r}: weights must be finite and not negative")
        drawable = np.flatnonzero(weights)
        if len(drawable) < (1 if self.replacement else n):
            return None
        weights = weights[drawable]
        if self.replacement:
            edges = np.cumsum(weights)
            at = np.searchsorted(edges, rng.random(n) * edges[-1], side="right")
            return np.asarray(drawable[np.minimum(at, len(drawable) - 1)])
        # Efraimidis and Spirakis (2006): the n smallest of Exp(1) / w are a weighted draw without
        # replacement, in the order of drawing.
        keys = rng.standard_exponential(len(weights)) / weights
        nearest = np.argpartition(keys, n - 1)[:n]
        return drawable[nearest[np.argsort(keys[nearest])]]
