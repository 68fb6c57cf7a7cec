"""Columns that lie in files of this host: read here, and compared with their sums.

A shard would read and check them for us, on its one thread, and send them in chunks: 2 to 3 times
the time for large ones.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transferqueue.backends.checked_file import CheckedFile, is_readable
from transferqueue.backends.disk_file import DiskFile
from transferqueue.backends.piece_sums import SavedSums
from transferqueue.closing import Closing
from transferqueue.errors import BytesDamaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transferqueue.client.counted_copies import Moved
    from transferqueue.client.landings import Target
    from transferqueue.client.session import ShardAddress
    from transferqueue.wire.chunks import Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumn:
    """A column of one file, which a lease holds there."""

    access: Mapping[str, Any]
    """The file, as the shard has it now: its name is never used again for other bytes."""
    runs: Runs
    """Where in the file it is."""
    target: Target


class _OpenFile(Closing):
    def __init__(self, access: Mapping[str, Any]) -> None:
        self._file = DiskFile(str(access["path"]), read_only=True)
        try:
            self._sums = SavedSums.open(str(access["sums"]))
        except BaseException:
            self._file.close()
            raise
        self.checked = CheckedFile(self._file, self._sums, str(access["path"]))

    def close(self) -> None:
        self._file.close()
        self._sums.close()


class FileReads(Closing):
    """Safe to use from several threads."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._opened: dict[str, _OpenFile] = {}
        self._lock = threading.Lock()

    def reach(self, shard: ShardAddress) -> bool:
        """Whether this process can read a file of the shard itself."""
        return self._is_on and any(map(is_readable, shard.files.values()))

    def carry_out(self, columns: Iterable[FileColumn], moved: Moved | None = None) -> bool:
        """Whether all of them are filled; else their bytes are to come in chunks, and the shard
        says what is wrong: a piece that is not what it was may be damaged, or given on since."""
        try:
            for column in columns:
                self._read(column, moved)
        except (OSError, BytesDamaged):
            return False
        return True

    def _read(self, column: FileColumn, moved: Moved | None) -> None:
        checked = self._open(column.access)
        for low, memory in column.target.pieces():
            at = 0
            starts, sizes = column.runs.cut(low, memory.nbytes)
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
                checked.read_into(start, memory[at : at + size])
                at += size
                if moved is not None:
                    moved(size)

    def _open(self, access: Mapping[str, Any]) -> CheckedFile:
        path = str(access["path"])
        with self._lock:
            found = self._opened.get(path)
            if found is None:
                found = self._opened[path] = _OpenFile(access)
            return found.checked

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, {}
        for file in opened.values():
            file.close()
