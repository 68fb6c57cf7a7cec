"""The file of a journal: appended to, rewritten when most of it is history, read after a restart.

Nothing is synced: what was written survives the end of its process in the kernel's memory, and
the arena that a journal tells about does not survive more than that either.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, Self

from transferqueue.errors import ServiceFailed
from transferqueue.journal.records import FILE_HEAD, encode_record, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transferqueue.journal.records import Record
    from transferqueue.wire.format import Buffer

_MAX_PIECES = 512
_LOOK_AGAIN_S = 0.02


class JournalFile:
    """One process appends. Invariant: the file holds whole records and nothing else."""

    def __init__(self, path: str, records: Iterable[Record] = ()) -> None:
        """Make the file, holding these records, in place of one that may be there."""
        self.path = path
        self._fd = -1
        self.num_bytes = 0
        self.rewrite(records)

    def append(self, record: Record) -> None:
        """The record is in the file when this returns. ``OSError``, and no change, if it cannot
        be."""
        pieces = encode_record(record)
        size = sum(memoryview(piece).nbytes for piece in pieces)
        try:
            _write_all(self._fd, pieces, size)
        except OSError:
            os.ftruncate(self._fd, self.num_bytes)
            raise
        self.num_bytes += size

    def rewrite(self, records: Iterable[Record]) -> None:
        """Hold these records instead. ``OSError``, and no change, if there is no room for both.

        The new file takes the place of the old one at once: a kill leaves one of them, whole.
        """
        new_path = f"{self.path}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(new_path, flags, 0o600)
        try:
            num_bytes = len(FILE_HEAD)
            _write_all(fd, [FILE_HEAD], num_bytes)
            for record in records:
                pieces = encode_record(record)
                size = sum(memoryview(piece).nbytes for piece in pieces)
                _write_all(fd, pieces, size)
                num_bytes += size
            os.rename(new_path, self.path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(new_path)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.num_bytes = fd, num_bytes

    def remove(self) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def close(self) -> None:
        """Let go of the file; it stays. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def read_journal(path: str) -> list[Record] | None:
    """What an earlier process wrote; ``None`` when there is no such file. `JournalDamaged`."""
    try:
        with open(path, "rb") as file:
            return read_records(file.read(), path)
    except FileNotFoundError:
        return None


class FileLock:
    """Held by one process at a time, and let go of by the kernel when that ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, path: str, *, timeout_s: float) -> Self:
        """Wait for a predecessor to end. `ServiceFailed` when it does not in time."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(fd)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    os.close(fd)
                    raise ServiceFailed(path, "an earlier process still holds it") from None
                time.sleep(_LOOK_AGAIN_S)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _write_all(fd: int, pieces: Sequence[Buffer], size: int) -> None:
    """One call for nearly every record. ``OSError`` when not all of it could be written."""
    if len(pieces) > _MAX_PIECES:
        pieces = [b"".join(pieces)]
    written = os.writev(fd, pieces)
    if written == size:
        return
    rest = memoryview(b"".join(pieces))[written:]  # a signal, or no room
    while len(rest):
        rest = rest[os.write(fd, rest) :]
