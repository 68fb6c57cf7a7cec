"""The default backend: an arena of shared-memory files that clients on this host map themselves.

The files lie in a directory of a memory file system, mode 0600, under names that nobody can guess.
They are made segment by segment as the arena fills, and go when the shard closes; what a killed
shard leaves is taken over by its successor (``recover``) or cleared away by the next start of any
service in that directory.
"""

from __future__ import annotations

import logging
import os
import secrets
from typing import TYPE_CHECKING, Any, Self

from transferqueue.backends.arena_address import ArenaAddress, boot_id
from transferqueue.backends.arena_backend import ArenaBackend
from transferqueue.backends.arena_owner import (
    ArenaLock,
    LockRecord,
    ProcessId,
    find_arena,
    promised_bytes,
    remove_leftovers,
    taken_bytes,
)
from transferqueue.backends.base import BackendConfig, Capabilities
from transferqueue.backends.huge_pages import has_huge_pages
from transferqueue.backends.mapping import Access, ArenaMapping
from transferqueue.backends.segments import Prefault, SegmentFiles
from transferqueue.config import default_arena_dir
from transferqueue.errors import ArenaTooSmall, ConfigError
from transferqueue.shard.allocator import PAGE_BYTES, RangeAllocator

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

SEGMENT_BYTES = 256 << 20

PREDECESSOR_END_S = 10.0
"""How long a successor waits for the process before it to let go of the arena."""

_log = logging.getLogger(__name__)


class ShmBackend(ArenaBackend):
    """One arena of shared memory. Options: ``segment_bytes`` and ``prefault`` (a bool: take and
    touch all memory of the budget in the background, from the start)."""

    capabilities = Capabilities(mappable=True, outlives_process=True)

    def __init__(self, lock: ArenaLock, *, recovered: bool, prefault: bool = False) -> None:
        """The arena of a held lock; ``open`` is the way to get one."""
        address = lock.record.address
        super().__init__(address.capacity_bytes)
        self.address = address
        self._lock = lock
        self._recovered = recovered
        self._files = SegmentFiles(address, taken_bytes(address) if recovered else 0)
        self._mapping = ArenaMapping(address, Access.WRITE)
        self._has_huge_pages = has_huge_pages(address.directory)
        self._is_full = False  # the directory was, when last asked for room
        self._prefault: Prefault | None = None
        if prefault:
            self._prefault = Prefault(self._files, self._mapping, address.capacity_bytes)
            self._prefault.start()

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        """`ArenaTooSmall` when the directory cannot hold the budget; `ConfigError` when it cannot
        be written at all."""
        directory = config.directory or default_arena_dir()
        segment_bytes, prefault = _options(config.options)
        try:
            earlier = find_arena(
                directory,
                config.service_id,
                config.slot,
                wait_s=PREDECESSOR_END_S if config.recover else 0.0,
            )
            if earlier is not None:
                if config.recover:
                    return cls._take_over(earlier, config, prefault=prefault)
                earlier.remove_arena()
                earlier.close()
            remove_leftovers(directory)
            lock = ArenaLock.create(_record(config, _new_address(config, directory, segment_bytes)))
        except OSError as error:
            raise ConfigError(f"arena_dir {directory!r} cannot be used: {error}") from error
        try:
            _check_room(lock.record.address)
            return cls(lock, recovered=False, prefault=prefault)
        except BaseException:
            lock.remove_arena()
            lock.close()
            raise

    @classmethod
    def _take_over(cls, earlier: ArenaLock, config: BackendConfig, *, prefault: bool) -> Self:
        address = earlier.record.address
        if address.capacity_bytes < config.budget_bytes:
            _log.warning(
                "the arena taken over holds %d bytes, not the %d of the budget",
                address.capacity_bytes,
                config.budget_bytes,
            )
        earlier.rewrite(_record(config, address))
        return cls(earlier, recovered=True, prefault=prefault)

    @property
    def journal_path(self) -> str:
        return f"{self.address.directory}/{self.address.stem}.journal"

    @property
    def recovered(self) -> bool:
        return self._recovered

    def adopt(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        self._allocator = RangeAllocator.from_used(self.capacity_bytes, addresses, nbytes)

    def client_access(self) -> dict[str, Any]:
        return self.address.to_plain()

    def facts(self) -> dict[str, Any]:
        """``directory``; ``backed_bytes`` of its room that the arena has taken so far; whether its
        files get ``huge_pages``."""
        return {
            "directory": self.address.directory,
            "backed_bytes": self._files.backed_bytes,
            "huge_pages": self._has_huge_pages,
        }

    def close(self, *, keep: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        if self._prefault is not None:
            self._prefault.stop()
        self._mapping.close()
        if not keep:
            self._lock.remove_arena()
        self._lock.close()

    def _memory(self, address: int, nbytes: int) -> Bytes:
        return self._mapping.array(address, nbytes)

    def _back(self, end: int) -> bool:
        has_room = self._files.back(end)
        if not has_room and not self._is_full:
            _log.warning(
                "%s is full: the arena has %d of its %d bytes, puts wait for more",
                self.address.directory,
                self._files.backed_bytes,
                self.capacity_bytes,
            )
        self._is_full = not has_room
        return has_room


def _options(options: Any) -> tuple[int, bool]:
    unknown = set(options) - {"segment_bytes", "prefault"}
    if unknown:
        raise ConfigError(f"backend 'shm' has no options {sorted(unknown)}")
    return int(options.get("segment_bytes", SEGMENT_BYTES)), bool(options.get("prefault", False))


def _new_address(config: BackendConfig, directory: str, segment_bytes: int) -> ArenaAddress:
    capacity = -(-config.budget_bytes // PAGE_BYTES) * PAGE_BYTES
    return ArenaAddress(
        directory=directory,
        service_id=config.service_id,
        slot=config.slot,
        token=secrets.token_hex(8),
        segment_bytes=min(segment_bytes, capacity),
        capacity_bytes=capacity,
        boot_id=boot_id(),
    )


def _record(config: BackendConfig, address: ArenaAddress) -> LockRecord:
    guardian = config.guardian_pid
    return LockRecord(
        address=address,
        owner=ProcessId.of(os.getpid()),
        guardian=None if guardian is None else ProcessId.of(guardian),
    )


def _check_room(address: ArenaAddress) -> None:
    """Whether the directory can hold this arena beside what it promised to the others.

    Our own lock file is there already, so two services that start at once see each other.
    """
    found = os.statvfs(address.directory)
    promised = promised_bytes(address.directory, apart_from=address.stem)
    available = max(0, found.f_bavail * found.f_frsize - promised)
    if address.capacity_bytes > available:
        raise ArenaTooSmall(address.directory, address.capacity_bytes, available)
