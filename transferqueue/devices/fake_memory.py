"""Memory that a `FakeGpu` copies from and to: its own, torch's and the host's; what was copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transferqueue.devices.base import DeviceBlock, this_process
from transferqueue.devices.host import BorrowedBlock, KeptMemory
from transferqueue.errors import Closed, DeviceError
from transferqueue.memory.copying import as_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from transferqueue.devices.fake_machine import FakeBlock

    Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class Counters:
    """What was done, for tests to look at."""

    events_live: int = 0
    bytes_pinned: int = 0
    """Copied from or to host memory that is registered;"""
    bytes_pageable: int = 0
    """and that is not."""
    bytes_across: int = 0
    opens: int = 0
    registered: dict[int, int] = field(default_factory=dict)
    """Address and size of what is page-locked."""

    def count_host(self, memory: Bytes) -> None:
        at, nbytes = int(memory.ctypes.data), memory.nbytes
        is_pinned = any(a <= at and at + nbytes <= a + n for a, n in self.registered.items())
        if is_pinned:
            self.bytes_pinned += nbytes
        else:
            self.bytes_pageable += nbytes


class FakeGpuBlock(DeviceBlock):
    """Part of the file that is the GPU's memory."""

    def __init__(
        self, memory: Bytes, uuid: str, found: FakeBlock, nbytes: int, on_close: Callable[[], None]
    ) -> None:
        self.uuid, self.nbytes, self.serial = uuid, nbytes, found.serial
        self.is_own = found.owner == this_process()
        self._bytes: Bytes | None = memory[found.offset : found.offset + nbytes]
        self._on_close = on_close

    @property
    def address(self) -> int:
        if self._bytes is None:
            raise Closed("this block of device memory")
        return int(self._bytes.ctypes.data)

    def part(self, offset: int, nbytes: int) -> Bytes:
        """As a copy that a stream comes to reads or writes it."""
        if self._bytes is None:
            raise DeviceError(f"{self.uuid}: a copy touched memory that was freed")
        return self._bytes[offset : offset + nbytes]

    def close(self) -> None:
        if self._bytes is not None:
            self._bytes = None
            self._on_close()


class TensorMemory:
    """Frees a block when no array looks at it any more."""

    def __init__(self, block: FakeGpuBlock) -> None:
        self._block = block
        self.__array_interface__ = block.part(0, block.nbytes).__array_interface__
        self._mapping = block.part(0, block.nbytes)

    def __del__(self) -> None:
        self._block.close()


class PinnedMemory(KeptMemory):
    def __init__(self, memory: memoryview, counters: Counters) -> None:
        super().__init__(memory)
        self._counters = counters
        self._at = int(as_bytes(memory).ctypes.data)
        counters.registered[self._at] = memory.nbytes

    def close(self) -> None:
        super().close()
        self._counters.registered.pop(self._at, None)


def part_of(block: DeviceBlock, offset: int, nbytes: int) -> Bytes:
    assert isinstance(block, FakeGpuBlock | BorrowedBlock)
    return block.part(offset, nbytes)
