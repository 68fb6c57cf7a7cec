"""A guard's memory as a mirror takes it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.several import ADDRESS_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.shard.space import Space


class MirrorSpace:
    """The shard's own space, counted."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._used: Counter[int] = Counter()

    @property
    def used_bytes(self) -> int:
        """Reserved and not freed, padding included."""
        return self._used.total()

    def used_in(self, number: int) -> int:
        """Of that, in the backend of this number."""
        return self._used[number]

    def reserve(self, nbytes: Sequence[int]) -> np.ndarray | None:
        return self._counted(self._space.reserve(nbytes), nbytes)

    def reserve_in(self, nbytes: Sequence[int], numbers: np.ndarray) -> np.ndarray | None:
        return self._counted(self._space.reserve_in(nbytes, numbers), nbytes)

    def _counted(self, found: np.ndarray | None, nbytes: Sequence[int]) -> np.ndarray | None:
        if found is not None:
            self._used.update(_by_number(found, self._space.extents_at(found, nbytes)))
        return found

    def extents_at(self, addresses: np.ndarray, nbytes: Sequence[int]) -> np.ndarray:
        return self._space.extents_at(addresses, nbytes)

    def free(self, addresses: np.ndarray, nbytes: np.ndarray) -> None:
        self._used.subtract(_by_number(addresses, nbytes))
        self._space.free(addresses, nbytes)


def _by_number(addresses: np.ndarray, nbytes: np.ndarray) -> dict[int, int]:
    sums = np.bincount(addresses >> ADDRESS_BITS, weights=nbytes)
    return {number: int(nbytes) for number, nbytes in enumerate(sums.tolist()) if nbytes}
