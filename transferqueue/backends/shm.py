"""The default backend: an arena of shared-memory files that clients on this host map themselves.

The files lie in a directory of a memory file system, mode 0600, under names that nobody can guess.
They are made segment by segment as the arena fills, and go when the shard closes; what a killed
shard leaves is taken over by its successor (``recover``) or cleared away by the next start of any
service in that directory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

from transferqueue.backends.arena_backend import ArenaBackend
from transferqueue.backends.arena_owner import taken_bytes
from transferqueue.backends.base import BackendConfig, Capabilities
from transferqueue.backends.huge_pages import HugePages
from transferqueue.backends.mapping import Access, ArenaMapping
from transferqueue.backends.owned_arena import OwnedArena
from transferqueue.backends.segments import Prefault, SegmentFiles
from transferqueue.environment import default_arena_dir
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

SEGMENT_BYTES = 256 << 20

_log = logging.getLogger(__name__)


class ShmBackend(ArenaBackend):
    """One arena of shared memory. Options: ``segment_bytes``; ``prefault`` (a bool: take and touch
    all memory of the budget in the background, from the start); ``huge_pages`` (``False``: do not
    ask for any; the directory may give some all the same)."""

    capabilities = Capabilities(mappable=True, outlives_process=True)

    def __init__(
        self, arena: OwnedArena, *, prefault: bool = False, huge_pages: bool = True
    ) -> None:
        """``open`` is the way to get one."""
        address = arena.address
        super().__init__(address.capacity_bytes)
        self.address = address
        self._arena = arena
        self._mapping = ArenaMapping(address, Access.WRITE)
        self._huge_pages = HugePages(self._mapping)
        self._files = SegmentFiles(
            address,
            found_bytes=taken_bytes(address) if arena.recovered else 0,
            huge_pages=self._huge_pages if huge_pages else None,
        )
        self._is_full = False  # the directory was, when last asked for room
        self._prefault: Prefault | None = None
        if prefault:
            self._prefault = Prefault(self._files, self._mapping, address.capacity_bytes)
            self._prefault.start()

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        """`ArenaTooSmall` when the directory cannot hold the budget; `ConfigError` when it cannot
        be written at all."""
        segment_bytes, switches = _options(config.options)
        directory = config.directory or default_arena_dir()
        arena = OwnedArena.open(config, directory, segment_bytes)
        try:
            return cls(arena, **switches)
        except BaseException:
            arena.close(keep=arena.recovered)
            raise

    @property
    def journal_path(self) -> str:
        return self._arena.journal_path

    @property
    def recovered(self) -> bool:
        return self._arena.recovered

    def client_access(self) -> dict[str, Any]:
        return self.address.to_plain()

    def facts(self) -> dict[str, Any]:
        """``directory``; ``backed_bytes`` of its room that the arena has taken so far, and how many
        of them in ``huge_bytes``, since this process began."""
        return {
            "directory": self.address.directory,
            "backed_bytes": self._files.backed_bytes,
            "huge_bytes": self._huge_pages.taken_bytes,
        }

    def close(self, *, keep: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        if self._prefault is not None:
            self._prefault.stop()
        self._mapping.close()
        self._arena.close(keep=keep)

    def _memory(self, address: int, nbytes: int) -> Bytes:
        return self._mapping.array(address, nbytes)

    def _back(self, addresses: Int64s, extents: Int64s) -> bool:
        has_room = self._files.back(self._allocator.frontier)
        if not has_room and not self._is_full:
            _log.warning(
                "%s is full: the arena has %d of its %d bytes, puts wait for more",
                self.address.directory,
                self._files.backed_bytes,
                self.capacity_bytes,
            )
        self._is_full = not has_room
        return has_room


def _options(options: Any) -> tuple[int, dict[str, bool]]:
    unknown = set(options) - {"segment_bytes", "prefault", "huge_pages"}
    if unknown:
        raise ConfigError(f"backend 'shm' has no options {sorted(unknown)}")
    switches = {name: bool(options[name]) for name in ("prefault", "huge_pages") if name in options}
    return int(options.get("segment_bytes", SEGMENT_BYTES)), switches
