"""What all backends share whose bytes lie in one arena of ordinary memory of this process."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.allocating import AllocatingBackend
from transferqueue.memory.copying import as_bytes, copy_into
from transferqueue.memory.gather import gather, merge_runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]


class ArenaBackend(AllocatingBackend):
    """An allocator and memory to match."""

    @abstractmethod
    def _memory(self, address: int, nbytes: int) -> Bytes:
        """The bytes of a range that was checked and lies below what ``_back`` was asked for."""

    def writable(self, address: int, nbytes: int) -> memoryview:
        return self._checked(address, nbytes).data

    def write(self, address: int, data: memoryview) -> None:
        copy_into(self._checked(address, data.nbytes), data)

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()

    def read_into(self, address: int, out: memoryview) -> None:
        copy_into(out, self._checked(address, out.nbytes))

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> Bytes:
        self._refuse_closed()
        starts, sizes = merge_runs(addresses, nbytes)
        if not len(starts):
            return np.empty(0, np.uint8)
        low, high = int(starts.min()), int((starts + sizes).max())
        gathered = gather(self._memory(low, high - low), starts - low, sizes)
        return gathered if gathered.base is None else gathered.copy()

    def readable(self, address: int, nbytes: int) -> memoryview:
        return self._checked(address, nbytes).data.toreadonly()

    def lies_in_memory(self, addresses: Int64s) -> bool:
        return True

    def array(self, address: int, nbytes: int) -> Bytes:
        """The bytes as an array, for index work over many ranges: uint8[nbytes], writable."""
        return self._checked(address, nbytes)

    def _checked(self, address: int, nbytes: int) -> Bytes:
        self._check(address, nbytes)
        return as_bytes(self._memory(address, nbytes))
