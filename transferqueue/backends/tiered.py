"""Two backends as one: memory, where everything is put, and a disk, where some slabs move to.

An address from `DISK` on is the disk's. Nothing is ever put there but by ``spill``, which copies
and leaves what it copied as it was: whoever calls it decides when the old ranges are freed, and
until then has both. So a kill at any point leaves at least one of them, and a journal that names
one of them is right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.backends.base import Backend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transferqueue.backends.base import BackendConfig, Capabilities
    from transferqueue.devices.slots import SlotTable

    Int64s = NDArray[np.int64]
    Ranges = tuple[Int64s, Int64s]

DISK = 1 << 61
"""The disk's byte ``k`` has the address ``DISK + k``."""

PIECE_BYTES = 1 << 20


class TieredBackend(Backend):
    """Room, capabilities and sums are the memory's: what a put finds."""

    def __init__(self, memory: Backend, disk: Backend) -> None:
        self.memory = memory
        self.disk = disk

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        raise NotImplementedError("made of two that are open")

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return self.memory.capabilities

    # -- moving ---------------------------------------------------------------------------------

    def spill(self, slabs: Sequence[Ranges]) -> Ranges | None:
        """Copy the bytes of each slab, which lie in these ranges of memory, to the disk, as one
        range each. Their addresses and extents; ``None``, and no change, when the disk is full.

        ServiceFailed when the disk cannot write; no change then either.
        """
        sizes = [int(nbytes.sum()) for _, nbytes in slabs]
        found = self.disk.reserve(sizes)
        if found is None:
            return None
        extents = self.disk.extents(sizes)
        try:
            for address, ranges in zip(found.tolist(), slabs, strict=True):
                self._copy(address, *ranges)
            self.disk.seal(found, np.array(sizes, np.int64))
        except BaseException:
            self.disk.free(found, extents)
            raise
        return found + DISK, extents

    def _copy(self, address: int, starts: Int64s, nbytes: Int64s) -> None:
        if len(starts) == 1:
            block = self.memory.readable(int(starts[0]), int(nbytes[0]))
        else:
            block = self.memory.read_ranges(starts, nbytes).data
        for at in range(0, len(block), PIECE_BYTES):
            self.disk.write(address + at, block[at : at + PIECE_BYTES])

    def reserve_for_saved(self, nbytes: Sequence[int]) -> Ranges | None:
        """In memory while there is room, then on the disk: what did not fit into memory alone when
        it was saved comes back all the same."""
        found = self.memory.reserve_for_saved(nbytes)
        if found is not None:
            return found
        on_disk = self.disk.reserve_for_saved(nbytes)
        return None if on_disk is None else (on_disk[0] + DISK, on_disk[1])

    # -- writing --------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        return self.memory.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self.memory.used_bytes

    @property
    def largest_free(self) -> int:
        return self.memory.largest_free

    def reserve(self, nbytes: Sequence[int]) -> Int64s | None:
        return self.memory.reserve(nbytes)

    def extents(self, nbytes: Sequence[int]) -> Int64s:
        return self.memory.extents(nbytes)

    def writable(self, address: int, nbytes: int) -> memoryview:
        return self.memory.writable(address, nbytes)

    def write(self, address: int, data: memoryview) -> None:
        if address >= DISK:
            self.disk.write(address - DISK, data)
        else:
            self.memory.write(address, data)

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        memory, disk = _split(addresses, nbytes)
        self.memory.seal(*memory)
        if len(disk[0]):
            self.disk.seal(*disk)

    # -- reading --------------------------------------------------------------------------------

    def read_into(self, address: int, out: memoryview) -> None:
        if address >= DISK:
            self.disk.read_into(address - DISK, out)
        else:
            self.memory.read_into(address, out)

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> NDArray[np.uint8]:
        on_disk = addresses >= DISK
        if not on_disk.any():
            return self.memory.read_ranges(addresses, nbytes)
        if on_disk.all():
            return self.disk.read_ranges(addresses - DISK, nbytes)
        return super().read_ranges(addresses, nbytes)

    def readable(self, address: int, nbytes: int) -> memoryview:
        if address >= DISK:
            return self.disk.readable(address - DISK, nbytes)
        return self.memory.readable(address, nbytes)

    def lies_in_memory(self, addresses: Int64s) -> bool:
        return not (addresses >= DISK).any() and self.memory.lies_in_memory(addresses)

    # -- freeing --------------------------------------------------------------------------------

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        memory, disk = _split(addresses, nbytes)
        if len(disk[0]):
            self.disk.free(*disk)
        if len(memory[0]):
            self.memory.free(*memory)

    def adopt(self, addresses: Int64s, nbytes: Int64s) -> None:
        memory, disk = _split(addresses, nbytes)
        self.memory.adopt(*memory)
        self.disk.adopt(*disk)

    # -- the rest -------------------------------------------------------------------------------

    def client_access(self) -> dict[str, Any] | None:
        return self.memory.client_access()

    @property
    def slots(self) -> SlotTable | None:
        return self.memory.slots

    def lies_on_device(self, addresses: Int64s) -> bool:
        return not (addresses >= DISK).any() and self.memory.lies_on_device(addresses)

    def device_access(self) -> dict[str, Any] | None:
        return self.memory.device_access()

    def facts(self) -> dict[str, Any]:
        return self.memory.facts()

    @property
    def journal_path(self) -> str | None:
        return self.memory.journal_path

    @property
    def recovered(self) -> bool:
        return self.memory.recovered

    def close(self, *, keep: bool = False) -> None:
        self.memory.close(keep=keep)
        self.disk.close(keep=keep)


def spill_id(service_id: str) -> str:
    """In the names of spilled files: so the arena may lie in the same folder."""
    return f"{service_id}.spill"


def spill_config(config: BackendConfig, *, directory: str, nbytes: int) -> BackendConfig:
    """Of the disk, from that of the memory."""
    return replace(
        config,
        service_id=spill_id(config.service_id),
        directory=directory,
        budget_bytes=nbytes,
        options={},
    )


def _split(addresses: Int64s, nbytes: Int64s) -> tuple[Ranges, Ranges]:
    """Ranges of memory, and of the disk by its own addresses."""
    on_disk = addresses >= DISK
    return (addresses[~on_disk], nbytes[~on_disk]), (addresses[on_disk] - DISK, nbytes[on_disk])
