"""What an arena on a device holds, once more in memory of the host, at the same addresses.

A driver frees device memory with its process. These files outlive it as those of ``shm`` do, so a
successor copies what was sealed back to a device, and nothing that was committed is lost. It costs
as much memory of the host as of the device, and a copy from the device for each put.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from transferqueue.backends.arena_owner import taken_bytes
from transferqueue.backends.huge_pages import HugePages
from transferqueue.backends.mapping import Access, ArenaMapping
from transferqueue.backends.owned_arena import OwnedArena
from transferqueue.backends.segments import SegmentFiles
from transferqueue.backends.shm import SEGMENT_BYTES
from transferqueue.closing import Closing
from transferqueue.environment import default_arena_dir
from transferqueue.memory.gather import merge_runs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transferqueue.backends.base import BackendConfig
    from transferqueue.devices.base import DeviceBlock
    from transferqueue.devices.staging import Staging

    Int64s = NDArray[np.int64]


class HostCopies(Closing):
    """Of one arena. ``open`` is the way to get them."""

    def __init__(self, arena: OwnedArena) -> None:
        address = arena.address
        self.directory = address.directory
        self.recovered = arena.recovered
        self.journal_path = arena.journal_path
        self._arena = arena
        self._mapping = ArenaMapping(address, Access.WRITE)
        self._files = SegmentFiles(
            address,
            found_bytes=taken_bytes(address) if arena.recovered else 0,
            huge_pages=HugePages(self._mapping),
        )

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        """`ArenaTooSmall` when the directory cannot hold the budget; `ConfigError` when it cannot
        be written at all."""
        arena = OwnedArena.open(config, config.directory or default_arena_dir(), SEGMENT_BYTES)
        try:
            return cls(arena)
        except BaseException:
            arena.close(keep=arena.recovered)
            raise

    def back(self, end: int) -> bool:
        """Have room for ``[0, end)``. ``False`` when there is none now."""
        return self._files.back(end)

    def keep(self, staging: Staging, block: DeviceBlock, addresses: Int64s, nbytes: Int64s) -> None:
        """Copy ranges of the device's memory, which are complete."""
        starts, sizes = merge_runs(addresses, nbytes)
        staging.copy_each_out(
            (block, address, self._mapping.array(address, size))
            for address, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        )

    def restore(
        self, staging: Staging, block: DeviceBlock, addresses: Int64s, nbytes: Int64s
    ) -> None:
        """Copy ranges back to the memory of a device."""
        starts, sizes = merge_runs(addresses, nbytes)
        for address, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            staging.copy_in(block, address, self._mapping.array(address, size).data)
        staging.flush()

    def close(self, *, keep: bool = False) -> None:
        """``keep``: leave them for a successor."""
        self._mapping.close()
        self._arena.close(keep=keep)
