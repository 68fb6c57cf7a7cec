"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from transferqueue.coordinator.samplers.base import Candidates, Sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Fifo(Sampler):
    """The oldest samples, in order of arrival."""

    name: ClassVar[str] = "fifo"

    def choose(
        self, candidates: Candidates, n: int, rng: np.random.Generator
    ) -> NDArray[np.int64] | None:
        del rng
        return np.arange(n) if len(candidates) >= n else None
