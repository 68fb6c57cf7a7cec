"""Bytes in private memory of the shard's process: no files, nothing to leave behind.

For services that run inside a program, and for tests. Nobody else can map it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from transferqueue.backends.arena_backend import ArenaBackend
from transferqueue.backends.base import BackendConfig, Capabilities

if TYPE_CHECKING:
    from numpy.typing import NDArray


class HeapBackend(ArenaBackend):
    """One block of the budget's size; pages that were never written take no memory."""

    capabilities = Capabilities()

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes)
        self._block: NDArray[np.uint8] | None = np.empty(capacity_bytes, np.uint8)

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        return cls(config.budget_bytes)

    def _memory(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        assert self._block is not None
        return self._block[address : address + nbytes]

    def close(self, *, keep: bool = False) -> None:
        self._closed = True
        self._block = None
