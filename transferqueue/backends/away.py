"""In place of a backend whose store was not there when its shard was started again.

The rows that had bytes there ended with the process before, as they would have anyway. All that
lies elsewhere is served: without this a store that takes the shards with it, as Ray does, would
keep the rest from coming back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from transferqueue.backends.base import Backend, Capabilities
from transferqueue.errors import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transferqueue.backends.base import BackendConfig

    Int64s = NDArray[np.int64]


class AwayBackend(Backend):
    """Holds nothing and takes nothing: `ServiceFailed` says why."""

    capabilities = Capabilities()

    def __init__(self, name: str, budget_bytes: int, why: str) -> None:
        self._name = name
        self._budget_bytes = budget_bytes
        self._why = why

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        raise NotImplementedError("made where another could not be opened")

    def _refuse(self) -> NoReturn:
        raise ServiceFailed(
            f"backend {self._name!r}",
            f"was not there when this shard was started again, and is looked for when it is "
            f"started the next time: {self._why}",
        )

    @property
    def capacity_bytes(self) -> int:
        return self._budget_bytes

    @property
    def used_bytes(self) -> int:
        return 0

    @property
    def largest_free(self) -> int:
        return self._budget_bytes

    def reserve(self, nbytes: Sequence[int]) -> Int64s | None:
        self._refuse()

    def extents(self, nbytes: Sequence[int]) -> Int64s:
        return np.asarray(nbytes, np.int64)

    def writable(self, address: int, nbytes: int) -> memoryview:
        self._refuse()

    def write(self, address: int, data: memoryview) -> None:
        self._refuse()

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse()

    def read_into(self, address: int, out: memoryview) -> None:
        self._refuse()

    def readable(self, address: int, nbytes: int) -> memoryview:
        self._refuse()

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        if np.any(nbytes):
            raise ValueError(f"backend {self._name!r} is away: none of these bytes are in use")

    def facts(self) -> dict[str, Any]:
        """``away``: why."""
        return {"away": self._why}

    def close(self, *, keep: bool = False) -> None:
        """There is nothing to let go of."""
