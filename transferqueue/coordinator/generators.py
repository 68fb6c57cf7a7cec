"""The random numbers of samplers: one generator a task and sampler of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transferqueue.coordinator.waiters import ClaimWaiter

MAX_GENERATORS = 1024
"""Of one partition; a client may make up any number of samplers."""


class Generators:
    """Each begins with the seed of its sampler, and goes on from claim to claim."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], np.random.Generator] = {}

    def of(self, waiter: ClaimWaiter) -> np.random.Generator:
        key = (waiter.feed.task, str(waiter.sampler))
        generator = self._known.get(key)
        if generator is None:
            if len(self._known) >= MAX_GENERATORS:
                del self._known[next(iter(self._known))]
            generator = self._known[key] = np.random.default_rng(waiter.sampler.seed)
        return generator
