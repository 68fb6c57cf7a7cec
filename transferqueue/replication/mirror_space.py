"""A guard's memory as a mirror takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from transferqueue.shard.space import Space


class MirrorSpace:
    """The shard's own space, counted."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.used_bytes = 0
        """Reserved and not freed, padding included."""

    def reserve(self, nbytes: Sequence[int]) -> np.ndarray | None:
        return self._counted(self._space.reserve(nbytes), nbytes)

    def reserve_in(self, nbytes: Sequence[int], numbers: np.ndarray) -> np.ndarray | None:
        return self._counted(self._space.reserve_in(nbytes, numbers), nbytes)

    def _counted(self, found: np.ndarray | None, nbytes: Sequence[int]) -> np.ndarray | None:
        if found is not None:
            self.used_bytes += int(self.extents_at(found, nbytes).sum())
        return found

    def extents_at(self, addresses: np.ndarray, nbytes: Sequence[int]) -> np.ndarray:
        return self._space.extents_at(addresses, nbytes)

    def free(self, addresses: np.ndarray, nbytes: np.ndarray) -> None:
        self.used_bytes -= int(nbytes.sum())
        self._space.free(addresses, nbytes)
