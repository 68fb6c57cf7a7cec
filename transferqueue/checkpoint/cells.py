"""The file of a shard's cells: written by a thread, read back piece by piece.

The file is the bytes of the cells, column by column, and nothing else; every chunk of
`CHUNK_BYTES` has a checksum, so that whoever reads a part of the file can tell that it is right.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.checkpoint.files import TEMPORARY_FLAGS, write_all
from transferqueue.errors import CheckpointDamaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.checkpoint.manifest import SavedFile
    from transferqueue.wire.format import Buffer

CHUNK_BYTES = 4 << 20

MAX_WAITING = 4
"""Blocks handed over and not written yet."""

SYNC_EVERY_BYTES = 64 << 20
"""The disk is kept busy while checksums are made: waiting for it only at the end costs a third."""


class ChunkSums:
    """CRC-32 of every whole chunk of a stream, and of the rest."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._sum = 0
        self._filled = 0
        self.nbytes = 0

    def add(self, block: memoryview) -> None:
        while block.nbytes:
            piece = block[: CHUNK_BYTES - self._filled]
            block = block[piece.nbytes :]
            self._sum = zlib.crc32(piece, self._sum)
            self._filled += piece.nbytes
            self.nbytes += piece.nbytes
            if self._filled == CHUNK_BYTES:
                self._end()

    def _end(self) -> None:
        self._sums.append(self._sum)
        self._sum, self._filled = 0, 0

    def all(self) -> np.ndarray:
        """uint32[chunks]"""
        rest = [self._sum] if self._filled else []
        return np.array([*self._sums, *rest], dtype=np.uint32)


class CellsWriter:
    """One thread that writes a file. ``wake`` is called, from the thread, when there is room for
    more blocks and when it has ended; then `error`, or `other`, is what became of it.

    ``last`` writes, in the thread too, another file when the cells are on the disk.
    """

    def __init__(
        self, path: str, *, wake: Callable[[], None], last: Callable[[ChunkSums], SavedFile]
    ) -> None:
        self.path = path
        self.sums = ChunkSums()
        self.error: Exception | None = None
        self.other: SavedFile | None = None
        """What ``last`` has written."""
        self._wake = wake
        self._last = last
        self._waiting: deque[tuple[list[Buffer], int] | None] = deque()
        """Blocks, each with the number of its column; ``None``: that was all."""
        self._changed = threading.Condition()
        self._cancelled = False
        self.has_ended = False
        """Nothing of what was handed over is looked at any more."""
        self.num_columns_done = 0
        """All columns before this one are written: nobody looks at their memory any more."""
        self._thread = threading.Thread(target=self._run, name="transferqueue-checkpoint")
        self._thread.start()

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < MAX_WAITING

    def add(self, block: list[Buffer], column: int) -> None:
        """Write these next. Their memory must stay as it is until they are written."""
        self._hand_over((block, column))

    def finish(self) -> None:
        """There is nothing more to come."""
        self._hand_over(None)

    def join(self) -> None:
        """Wait for the end, after `finish` or `cancel`."""
        self._thread.join()

    def cancel(self) -> None:
        """Begin no other write. One that is under way goes on, as long as the disk takes for it;
        until `has_ended` what was handed over is looked at. Idempotent."""
        with self._changed:
            self._cancelled = True
            self._changed.notify()

    def _hand_over(self, what: tuple[list[Buffer], int] | None) -> None:
        with self._changed:
            self._waiting.append(what)
            self._changed.notify()

    def _run(self) -> None:
        try:
            fd = os.open(self.path, TEMPORARY_FLAGS, 0o600)
            try:
                self._write(fd)
            finally:
                os.close(fd)
            if not self._cancelled:
                self.other = self._last(self.sums)
        except Exception as error:  # noqa: BLE001 - whatever it is, there is no file
            self.error = error
        finally:
            self.has_ended = True
            self._wake()

    def _write(self, fd: int) -> None:
        syncer = _Syncer(fd)
        try:
            while (taken := self._take()) is not None:
                block, column = taken
                self.num_columns_done = column
                for piece in block:
                    view = memoryview(piece).cast("B")
                    self.sums.add(view)
                    write_all(fd, view)
                    syncer.written(view.nbytes)
                self._wake()
        finally:
            syncer.close()
        if not self._cancelled:
            syncer.raise_error()
            os.fsync(fd)

    def _take(self) -> tuple[list[Buffer], int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._cancelled)
            return None if self._cancelled else self._waiting.popleft()


class _Syncer:
    """Brings a file to the disk, in a thread, while more is written to it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unsynced = 0
        self._due = threading.Semaphore(0)
        self._closing = False
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None

    def written(self, nbytes: int) -> None:
        self._unsynced += nbytes
        if self._unsynced >= SYNC_EVERY_BYTES:
            self._unsynced = 0
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="transferqueue-sync")
                self._thread.start()
            self._due.release()

    def _run(self) -> None:
        while True:
            self._due.acquire()
            if self._closing:
                return
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._closing = True
        if self._thread is not None:
            self._due.release()
            self._thread.join()


class CellsReader:
    """Reads stretches of the file, whose bytes are checked. `CheckpointDamaged`."""

    def __init__(self, path: str, *, name: str, where: str, sums: np.ndarray, nbytes: int) -> None:
        """``name`` of the file and ``where`` the checkpoint is: for errors."""
        self._name, self._where = name, where
        self._sums = sums.tolist()
        self._nbytes = nbytes
        self._buffer = bytearray(CHUNK_BYTES)
        self._chunk = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise self._damaged(f"cannot be opened: {error}") from error

    def read(self, offset: int, nbytes: int, take: Callable[[memoryview], None]) -> None:
        """Give the bytes to ``take`` in order, in views that hold until it returns."""
        while nbytes:
            chunk, skip = divmod(offset, CHUNK_BYTES)
            view = self._read_chunk(chunk)[skip : skip + nbytes]
            if not view.nbytes:
                raise self._damaged(f"it has no byte {offset:,}")
            take(view)
            offset += view.nbytes
            nbytes -= view.nbytes

    def _read_chunk(self, chunk: int) -> memoryview:
        start = chunk * CHUNK_BYTES
        view = memoryview(self._buffer)[: max(0, min(CHUNK_BYTES, self._nbytes - start))]
        if chunk == self._chunk:
            return view
        if not view.nbytes or chunk >= len(self._sums):
            raise self._damaged(f"it has no byte {start:,}")
        try:
            got = os.preadv(self._fd, [view], start)
        except OSError as error:
            raise self._damaged(f"cannot be read: {error}") from error
        if got != view.nbytes or zlib.crc32(view) != self._sums[chunk]:
            raise self._damaged(f"the bytes from {start:,} on do not match their checksum")
        self._chunk = chunk
        return view

    def _damaged(self, why: str) -> CheckpointDamaged:
        return CheckpointDamaged(self._where, self._name, why)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
