"""What a store asks of the backends behind it: ranges of their addresses, and no bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


class Space(Protocol):
    """Gives out address ranges."""

    def reserve(self, nbytes: Sequence[int]) -> np.ndarray | None:
        """An address for each size, or ``None`` and no change when they do not all fit."""
        ...

    def reserve_in(self, nbytes: Sequence[int], numbers: np.ndarray) -> np.ndarray | None:
        """As `reserve`, each size in the backend of its number."""
        ...

    def extents_at(self, addresses: np.ndarray, nbytes: Sequence[int]) -> np.ndarray:
        """How many bytes were reserved for each size, padding included."""
        ...

    def free(self, addresses: np.ndarray, nbytes: np.ndarray) -> None: ...
