"""The files of one arena, opened for the shard that owns them: a new arena, or its predecessor's.

A killed shard leaves its files behind. Its successor takes them over (``recover``); else the next
start of any service in that directory clears them away.
"""

from __future__ import annotations

import logging
import os
import secrets
from typing import TYPE_CHECKING, Self

from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.backends.arena_owner import (
    ArenaLock,
    LockRecord,
    find_arena,
    promised_bytes,
    remove_leftovers,
)
from transferqueue.errors import ArenaTooSmall, ConfigError
from transferqueue.memory.allocator import PAGE_BYTES
from transferqueue.process_id import ProcessId, boot_id, this_process

if TYPE_CHECKING:
    from transferqueue.backends.base import BackendConfig

PREDECESSOR_END_S = 10.0
"""How long a successor waits for the process before it to let go of the arena."""

_log = logging.getLogger(__name__)


class OwnedArena:
    """The name of an arena and the lock that makes it this process's."""

    def __init__(self, lock: ArenaLock, *, recovered: bool) -> None:
        self.address = lock.record.address
        self.recovered = recovered
        """Whether it is what an earlier process left."""
        self._lock = lock

    @classmethod
    def open(cls, config: BackendConfig, directory: str, segment_bytes: int | None = None) -> Self:
        """`ArenaTooSmall` when the directory cannot hold the budget; `ConfigError` when it cannot
        be written at all. ``segment_bytes`` ``None``: all of it in one file."""
        try:
            earlier = find_arena(
                directory,
                config.service_id,
                config.slot,
                wait_s=PREDECESSOR_END_S if config.recover else 0.0,
            )
            if earlier is not None and config.recover:
                return cls._take_over(earlier, config)
            if earlier is not None:
                earlier.remove_arena()
                earlier.close()
            remove_leftovers(directory)
            lock = ArenaLock.create(_record(config, _new_address(config, directory, segment_bytes)))
        except OSError as error:
            raise ConfigError(
                f"{config.directory_setting} {directory!r} cannot be used: {error}"
            ) from error
        try:
            _check_room(lock.record.address)
        except BaseException:
            lock.remove_arena()
            lock.close()
            raise
        return cls(lock, recovered=False)

    @classmethod
    def _take_over(cls, earlier: ArenaLock, config: BackendConfig) -> Self:
        address = earlier.record.address
        if address.capacity_bytes < config.budget_bytes:
            _log.warning(
                "the arena taken over holds %d bytes, not the %d of the budget",
                address.capacity_bytes,
                config.budget_bytes,
            )
        earlier.rewrite(_record(config, address))
        return cls(earlier, recovered=True)

    @property
    def journal_path(self) -> str:
        return self.path_of("journal")

    def path_of(self, suffix: str) -> str:
        """A file beside the segments, which goes when they go."""
        return f"{self.address.directory}/{self.address.stem}.{suffix}"

    def close(self, *, keep: bool) -> None:
        """Let go of it; without ``keep`` its files go too."""
        if not keep:
            self._lock.remove_arena()
        self._lock.close()


def _new_address(config: BackendConfig, directory: str, segment_bytes: int | None) -> ArenaAddress:
    capacity = -(-config.budget_bytes // PAGE_BYTES) * PAGE_BYTES
    return ArenaAddress(
        directory=directory,
        service_id=config.service_id,
        slot=config.slot,
        token=secrets.token_hex(8),
        segment_bytes=min(segment_bytes or capacity, capacity),
        capacity_bytes=capacity,
        boot_id=boot_id(),
    )


def _record(config: BackendConfig, address: ArenaAddress) -> LockRecord:
    guardian = config.guardian_pid
    return LockRecord(
        address=address,
        owner=this_process(),
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
        raise ArenaTooSmall(
            address.directory, address.capacity_bytes, available, found.f_blocks * found.f_frsize
        )
