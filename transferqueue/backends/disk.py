"""Bytes in a file on a disk, checked whenever they come back from it.

The ``shm`` backend with ``arena_dir=`` on a disk maps the same files into every client: fast, and
right as long as the disk is. What differs here:

* every byte that is read, by the shard or by a client of its host that opens the file itself, is
  compared with the checksum of its piece (see `pieces`): a disk that flips, loses or cuts off bytes
  is a `BytesDamaged` for that get, never a wrong value;
* room is taken from the file system when it is reserved, to the page. When the last byte of a piece
  is freed its room is kept for what is reserved next, and given back when nobody took it for
  ``keep_s``, when a quarter of the budget or as much as the disk has left is kept, and when the
  disk is full (see `kept_room`). A full disk is an ordinary "no space now": puts wait;
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
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.backends.allocating import AllocatingBackend
from transferqueue.backends.base import BackendConfig, Capabilities
from transferqueue.backends.checked_file import CheckedFile, file_access
from transferqueue.backends.disk_file import NO_ROOM, DiskFile
from transferqueue.backends.disk_options import DiskOptions, Sync
from transferqueue.backends.holes import emptied_pieces
from transferqueue.backends.kept_room import KeptRoom
from transferqueue.backends.owned_arena import OwnedArena
from transferqueue.backends.parting import Parting
from transferqueue.backends.piece_sums import PieceSums, sum_of
from transferqueue.backends.pieces import Pieces
from transferqueue.errors import BytesDamaged, ConfigError, ServiceFailed
from transferqueue.memory.allocator import PAGE_BYTES
from transferqueue.memory.copying import as_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from transferqueue.backends.parting import Range

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

_ZEROS = memoryview(bytes(PAGE_BYTES))

_log = logging.getLogger(__name__)


GIVEN_BACK_BYTES = 64 << 20
"""At a turn of the shard's loop, where nobody waits for the room: some milliseconds."""


class DiskBackend(AllocatingBackend):
    """One file in ``directory``, which has no default. Options: `DiskOptions`."""

    capabilities = Capabilities(outlives_process=True)

    def __init__(self, arena: OwnedArena, options: DiskOptions) -> None:
        """``open`` is the way to get one."""
        super().__init__(arena.address.capacity_bytes, whole_pages=True)
        self._arena = arena
        self._sync = options.sync
        self._path = arena.address.segment_path(0)
        num_pages = self.capacity_bytes // PAGE_BYTES
        self._file = DiskFile(self._path)
        try:
            self._sums = PieceSums(arena.path_of("sums"), num_pages)
        except BaseException:
            self._file.close()
            raise
        self._checked = CheckedFile(self._file, self._sums, self._path)
        self._kept = KeptRoom(options.keep_s)
        self._is_blank = np.zeros(num_pages, np.bool_)
        """Pages that were given out and not written to since: whatever the file has there, it is
        of another life, and they are zeros."""
        self._staged: dict[int, Bytes] = {}
        self._now_s = 0.0  # of the last tick
        self._is_full = False  # the disk was, when last asked for room

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        """`ArenaTooSmall` when the directory cannot hold the budget; `ConfigError` when it cannot
        be written at all, or was not given; `ServiceFailed` when what an earlier process left is of
        another version."""
        options = DiskOptions.of(config.options)
        if config.directory is None:
            raise ConfigError("backend 'disk' needs arena_dir=, a folder on a disk")
        arena = OwnedArena.open(config, config.directory)
        try:
            return cls(arena, options)
        except OSError as error:
            arena.close(keep=arena.recovered)
            where = f"{config.directory_setting} {config.directory!r}"
            raise ConfigError(f"{where}: {error}") from error
        except BaseException:
            arena.close(keep=arena.recovered)
            raise

    # -- room -----------------------------------------------------------------------------------

    def _back(self, addresses: Int64s, extents: Int64s) -> bool:
        slabs = [(first, last) for _, _, first, last in _pages(addresses, extents)]
        given = _merged(slabs)
        self._kept.keep(_bytes_of(self._part(given)), self._now_s)
        lacking = [gap for start, end in _bytes_of(given) for gap in self._kept.take(start, end)]
        try:
            self._take_room(lacking)
            for first, last in slabs:
                self._sums.take_room(last)
                self._sums.lay_out(first, last)
                self._is_blank[first:last] = True
        except OSError as error:
            self._file.give_back(_bytes_of(given))
            if error.errno not in NO_ROOM:
                raise ServiceFailed(self._path, f"no room to be had: {error}") from error
            if not self._is_full:
                _log.warning("%s: %s; puts wait for room", self._path, error.strerror)
            self._is_full = True
            return False
        self._is_full = False
        return True

    def _take_room(self, ranges: Iterable[Range]) -> None:
        """For all of these. A full disk gets what is kept, and is asked once more."""
        for start, end in ranges:
            try:
                self._file.take_room(start, end - start)
            except OSError as error:
                if error.errno not in NO_ROOM or not self._kept.nbytes:
                    raise
                self._file.give_back(self._kept.take_surplus(0))
                self._file.take_room(start, end - start)

    def _part(self, given: list[Range]) -> list[Range]:
        """Pages that were given out are in no piece with others any more. Returns others that
        nobody needs any more, because of that."""
        dead: list[Range] = []
        edges = sorted({edge for pages in given for edge in pages})
        for piece in {self._sums.straddling(edge) for edge in edges} - {None}:
            assert piece is not None
            parting = Parting.of(piece, given, self._is_free)
            self._sums.part(piece[0], piece[1], self._parts(parting))
            dead += parting.dead if parting.living else []
        return dead

    def _parts(self, parting: Parting) -> list[tuple[int, int, int]]:
        """The living ones, with sums. Of a piece that is not what was written none is right."""
        if not parting.living:
            return []
        first = parting.first
        try:
            (expected,) = self._checked.pieces(first, first + 1).sums
            block = self._checked.whole(first, parting.last)
        except BytesDamaged:
            return [(low, high, 0) for low, high in parting.living]
        flipped = int(sum_of(block) != expected)
        return [
            (low, high, flipped ^ sum_of(_slice(block, low - first, high - first)))
            for low, high in parting.living
        ]

    def _is_free(self, first: int, last: int) -> bool:
        return self._allocator.is_free(first * PAGE_BYTES, last * PAGE_BYTES)

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        super().free(addresses, nbytes)
        if self._staged:
            self._unstage(addresses, nbytes)
        starts = np.asarray(addresses, np.int64)
        freed = (starts, starts + np.asarray(nbytes, np.int64))
        self._kept.keep(self._emptied(freed), self._now_s)
        self._file.give_back(self._kept.take_surplus(self._most_kept_bytes))

    def _emptied(self, freed: tuple[Int64s, Int64s]) -> list[Range]:
        starts, ends = self._allocator.free_ranges()
        if len(ends) and ends[-1] == self._allocator.frontier:
            # What was adopted last may end within a page, of which nobody has the rest.
            ends[-1] = -(-ends[-1] // PAGE_BYTES) * PAGE_BYTES
        return emptied_pieces(freed, (starts, ends), self._sums.entries)

    @property
    def _most_kept_bytes(self) -> int:
        """So that others find at least as much room there as lies idle here."""
        if not self._kept.keep_s:
            return 0
        most = min(self.capacity_bytes // 4, self._file.room_beside)
        return most // PAGE_BYTES * PAGE_BYTES

    def tick(self, now_s: float) -> float | None:
        self._now_s = now_s
        self._file.give_back(self._kept.take_old(now_s, GIVEN_BACK_BYTES))
        return self._kept.next_s()

    def adopt(self, addresses: Int64s, nbytes: Int64s) -> None:
        super().adopt(addresses, nbytes)
        last = -(-self._allocator.frontier // PAGE_BYTES)
        self._part([(last, self.capacity_bytes // PAGE_BYTES)])
        self._file.cut(last * PAGE_BYTES)
        self._file.give_back(self._emptied(self._allocator.free_ranges()))

    # -- writing --------------------------------------------------------------------------------

    def writable(self, address: int, nbytes: int) -> memoryview:
        """A staging buffer: the file is written at ``seal``."""
        self._check(address, nbytes)
        self._unstage(np.array([address]), np.array([nbytes]), write=True)
        staged = np.zeros(nbytes, np.uint8)
        with self._failing("read"):
            self._fill_blanks(address // PAGE_BYTES, -(-(address + nbytes) // PAGE_BYTES))
            self._file.read(address, staged.data)
        self._staged[address] = staged
        return staged.data

    def write(self, address: int, data: memoryview) -> None:
        self._check(address, data.nbytes)
        source = as_bytes(data).data
        if not source.nbytes:
            return
        end = address + source.nbytes
        first, last = address // PAGE_BYTES, -(-end // PAGE_BYTES)
        with self._failing("written"):
            if address % PAGE_BYTES:
                self._fill_blanks(first, first + 1)
            if end % PAGE_BYTES:
                self._fill_blanks(last - 1, last)
            self._is_blank[first:last] = False
            self._sums.forget(first, last)
            self._checked.write(address, source, self._sums.note)

    def _fill_blanks(self, first: int, last: int) -> None:
        """Pages there that were not written to are zeros, also in the file."""
        if not self._is_blank[first:last].any():
            return
        blank = first + np.flatnonzero(self._is_blank[first:last])
        for page in blank.tolist():
            self._file.write(page * PAGE_BYTES, _ZEROS)
        self._is_blank[first:last] = False

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        """The sums of whole pieces that were written at once are known already, from the bytes
        themselves; those of pieces that came in parts are taken from what the page cache has."""
        self._refuse_closed()
        if self._staged:
            self._unstage(addresses, nbytes, write=True)
        with self._failing("written"):
            for _, _, first, last in _pages(addresses, nbytes):
                self._fill_blanks(first, last)
                for low, high in self._sums.unknown(first, last):
                    total = sum_of(self._checked.whole(low, high))
                    self._sums.note(Pieces(starts=[low], ends=[high], sums=[total]))
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
        """``directory``; ``stored_bytes`` that the file takes of its room now; ``kept_bytes`` of
        these that nobody uses, and that go back in ``keep_s``; ``sync``."""
        return {
            "directory": self._arena.address.directory,
            "stored_bytes": 0 if self._closed else self._file.stored_bytes,
            "kept_bytes": self._kept.nbytes,
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


def _merged(pages: list[Range]) -> list[Range]:
    """Sorted, those that touch as one."""
    found: list[Range] = []
    for first, last in sorted(pages):
        if found and found[-1][1] == first:
            first = found.pop()[0]
        found.append((first, last))
    return found


def _bytes_of(pages: Iterable[Range]) -> list[Range]:
    return [(first * PAGE_BYTES, last * PAGE_BYTES) for first, last in pages]


def _slice(block: memoryview, first: int, last: int) -> memoryview:
    return block[first * PAGE_BYTES : last * PAGE_BYTES]
