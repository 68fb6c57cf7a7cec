"""Bytes in a file on a disk, checked whenever they come back from it.

The ``shm`` backend with ``arena_dir=`` on a disk maps the same files into every client: fast, and
right as long as the disk is. What differs here:

* every byte that is read, by the shard or by a client of its host that opens the file itself, is
  compared with the checksum of its page: a disk that flips, loses or cuts off bytes is a
  `BytesDamaged` for that get, never a wrong value;
* room is taken from the file system when it is reserved, to the page, and given back when the last
  byte of a page is freed. A full disk is an ordinary "no space now": puts wait;
* a failure of the device is an error for one request, where a mapping would end in SIGBUS;
* ``sync`` says when bytes must have reached the device.

All of it survives a kill of the shard. A reboot it does not, whatever ``sync`` is: the service's
own state ends there. That is what checkpoints are for.

Calls wait for the device when the page cache does not have the bytes: a read from a busy disk
keeps the shard's other requests waiting for so long.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.backends.allocating import AllocatingBackend
from transferqueue.backends.base import BackendConfig, Capabilities
from transferqueue.backends.checked_file import CheckedFile, file_access
from transferqueue.backends.copying import as_bytes
from transferqueue.backends.disk_file import NO_ROOM, DiskFile
from transferqueue.backends.gather import merge_runs
from transferqueue.backends.holes import emptied_pages
from transferqueue.backends.owned_arena import OwnedArena
from transferqueue.backends.page_sums import PageSums
from transferqueue.errors import ConfigError, ServiceFailed
from transferqueue.shard.allocator import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

_log = logging.getLogger(__name__)


class Sync(StrEnum):
    """When bytes must be on the device."""

    NEVER = "never"
    """The kernel writes them when it likes. A disk that cannot is noticed at a later read."""
    SEAL = "seal"
    """Before a put is acknowledged: a disk that cannot write fails the put itself."""


class DiskBackend(AllocatingBackend):
    """One file in ``directory``, which has no default. Option: ``sync`` (`Sync`)."""

    capabilities = Capabilities(outlives_process=True)

    def __init__(self, arena: OwnedArena, sync: Sync) -> None:
        """``open`` is the way to get one."""
        super().__init__(arena.address.capacity_bytes, whole_pages=True)
        self._arena = arena
        self._sync = sync
        self._path = arena.address.segment_path(0)
        self._file = DiskFile(self._path)
        self._sums = PageSums(arena.path_of("sums"), self.capacity_bytes // PAGE_BYTES)
        self._checked = CheckedFile(self._file, self._sums, self._path)
        self._staged: dict[int, Bytes] = {}
        self._is_full = False  # the disk was, when last asked for room

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        """`ArenaTooSmall` when the directory cannot hold the budget; `ConfigError` when it cannot
        be written at all, or was not given."""
        sync = _options(config.options)
        if config.directory is None:
            raise ConfigError("backend 'disk' needs arena_dir=, a folder on a disk")
        arena = OwnedArena.open(config, config.directory)
        try:
            return cls(arena, sync)
        except OSError as error:
            arena.close(keep=arena.recovered)
            where = f"{config.directory_setting} {config.directory!r}"
            raise ConfigError(f"{where}: {error}") from error

    # -- room -----------------------------------------------------------------------------------

    def _back(self, addresses: Int64s, extents: Int64s) -> bool:
        taken = []
        try:
            for start, end, first, last in _pages(*merge_runs(addresses, extents)):
                taken.append((start, end))
                self._file.take_room(start, end - start)
                self._sums.take_room(first, last)
                self._sums.forget(first, last)
        except OSError as error:
            self._file.give_back(taken)
            if error.errno not in NO_ROOM:
                raise ServiceFailed(self._path, f"no room to be had: {error}") from error
            if not self._is_full:
                _log.warning("%s: %s; puts wait for room", self._path, error.strerror)
            self._is_full = True
            return False
        self._is_full = False
        return True

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        super().free(addresses, nbytes)
        if self._staged:
            self._unstage(addresses, nbytes)
        starts = np.asarray(addresses, np.int64)
        freed = (starts, starts + np.asarray(nbytes, np.int64))
        self._file.give_back(emptied_pages(freed, self._allocator.free_ranges()))

    def adopt(self, addresses: Int64s, nbytes: Int64s) -> None:
        super().adopt(addresses, nbytes)
        free = self._allocator.free_ranges()
        self._file.cut(-(-self._allocator.frontier // PAGE_BYTES) * PAGE_BYTES)
        self._file.give_back(emptied_pages(free, free))

    # -- writing --------------------------------------------------------------------------------

    def writable(self, address: int, nbytes: int) -> memoryview:
        """A staging buffer: the file is written at ``seal``."""
        self._check(address, nbytes)
        self._unstage(np.array([address]), np.array([nbytes]), write=True)
        staged = np.zeros(nbytes, np.uint8)
        with self._failing("read"):
            self._file.read(address, staged.data)
        self._staged[address] = staged
        return staged.data

    def write(self, address: int, data: memoryview) -> None:
        self._check(address, data.nbytes)
        source = as_bytes(data).data
        with self._failing("written"):
            self._file.write(address, source)
        first, last = -(-address // PAGE_BYTES), (address + source.nbytes) // PAGE_BYTES
        self._sums.forget(address // PAGE_BYTES, -(-(address + source.nbytes) // PAGE_BYTES))
        if first < last:
            skip = first * PAGE_BYTES - address
            self._sums.note(first, source[skip : skip + (last - first) * PAGE_BYTES])

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        """The sums of whole pages that were written at once are known already, from the bytes
        themselves; those of pages that came in pieces are taken from what the page cache has."""
        self._refuse_closed()
        if self._staged:
            self._unstage(addresses, nbytes, write=True)
        with self._failing("written"):
            for _, end, first, last in _pages(addresses, nbytes):
                if end < last * PAGE_BYTES:
                    self._file.write(end, memoryview(bytes(last * PAGE_BYTES - end)))
                    self._sums.forget(last - 1, last)
                for page in self._sums.unknown(first, last):
                    block = np.empty(PAGE_BYTES, np.uint8).data
                    self._checked.fill(page, block)
                    self._sums.note(page, block)
                self._sums.save(first, last)
            if self._sync is Sync.SEAL:
                self._file.sync()
                self._sums.sync()

    def _unstage(self, addresses: Int64s, nbytes: Int64s, *, write: bool = False) -> None:
        """Drop staging buffers of these ranges, written or not."""
        for at in list(self._staged):
            is_in = (addresses < at + len(self._staged[at])) & (at < addresses + nbytes)
            if bool(is_in.any()):
                staged = self._staged.pop(at)
                if write:
                    self.write(at, staged.data)

    # -- reading --------------------------------------------------------------------------------

    def read_into(self, address: int, out: memoryview) -> None:
        self._check(address, out.nbytes)
        self._checked.read_into(address, out)

    def readable(self, address: int, nbytes: int) -> memoryview:
        out = np.empty(nbytes, np.uint8)
        self.read_into(address, out.data)
        return out.data.toreadonly()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ServiceFailed(self._path, f"cannot be {what}: {error}") from error

    # -- the rest -------------------------------------------------------------------------------

    def file_access(self) -> dict[str, Any]:
        return file_access(self._path, self._arena.path_of("sums"))

    @property
    def journal_path(self) -> str:
        return self._arena.journal_path

    @property
    def recovered(self) -> bool:
        return self._arena.recovered

    def facts(self) -> dict[str, Any]:
        """``directory``; ``stored_bytes`` that the file takes of its room now; ``sync``."""
        return {
            "directory": self._arena.address.directory,
            "stored_bytes": 0 if self._closed else self._file.stored_bytes,
            "sync": str(self._sync),
        }

    def close(self, *, keep: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self._staged.clear()
        self._file.close()
        self._sums.close()
        self._arena.close(keep=keep)


def _pages(addresses: Int64s, nbytes: Int64s) -> Iterator[tuple[int, int, int, int]]:
    """Start and end of each range that is not empty, and its pages from ``first`` to ``last``."""
    for start, size in zip(addresses.tolist(), nbytes.tolist(), strict=True):
        if size:
            yield start, start + size, start // PAGE_BYTES, -(-(start + size) // PAGE_BYTES)


def _options(options: Any) -> Sync:
    unknown = set(options) - {"sync"}
    if unknown:
        raise ConfigError(f"backend 'disk' has no options {sorted(unknown)}")
    try:
        return Sync(options.get("sync", Sync.NEVER))
    except ValueError as error:
        choices = " or ".join(repr(str(choice)) for choice in Sync)
        raise ConfigError(f"sync must be {choices}, got {options['sync']!r}") from error
