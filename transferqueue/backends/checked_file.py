"""A file and the sums of its pieces: what is read from it is what was written, or an error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from transferqueue.backends.piece_sums import sum_of, sums_of
from transferqueue.backends.pieces import PIECE_BYTES
from transferqueue.errors import BytesDamaged
from transferqueue.memory.allocator import PAGE_BYTES
from transferqueue.memory.copying import as_bytes
from transferqueue.process_id import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from transferqueue.backends.disk_file import DiskFile
    from transferqueue.backends.pieces import Pieces

    Bytes = NDArray[np.uint8]
    Note = Callable[[Pieces], None]

CHANGED = "these are not the bytes that were written"

BLOCK_BYTES = 1 << 20
"""Read and checked at once: so what is checked is still in a cache of the core that read it. Of
smaller ones the steps of Python cost more than nearness gains."""

BLOCK_PIECES = BLOCK_BYTES // PIECE_BYTES


class Sums(Protocol):
    """Where the sums of pieces are known from."""

    def around(self, first: int, last: int) -> Pieces | None:
        """The pieces that these pages are in; ``None`` when that cannot be told."""
        ...


class CheckedFile:
    """``path`` is for errors."""

    def __init__(self, file: DiskFile, sums: Sums, path: str) -> None:
        self._file = file
        self._sums = sums
        self._path = path

    def read_into(self, address: int, out: memoryview) -> None:
        """Fill ``out``. `BytesDamaged`."""
        target = as_bytes(out)
        if not len(target):
            return
        end = address + len(target)
        pieces = self.pieces(address // PAGE_BYTES, -(-end // PAGE_BYTES))
        low, high = _whole_pieces(pieces, address, end)
        for at in {0, len(pieces) - 1} - set(range(low, high)):
            self._read_part(pieces, at, address, target)
        if low < high:
            self._read_whole(pieces.part(low, high), address, target)

    def _read_part(self, pieces: Pieces, at: int, address: int, target: Bytes) -> None:
        """What ``target`` has of a piece, of which all is read to be checked."""
        first, last = pieces.starts[at], pieces.ends[at]
        block = np.empty((last - first) * PAGE_BYTES, np.uint8)
        self._fill(first, block.data)
        if sum_of(block.data) != pieces.sums[at]:
            self._damaged(first, CHANGED)
        skip = address - first * PAGE_BYTES  # of the target's beginning, in the piece
        low, high = max(0, -skip), min(len(target), len(block) - skip)
        target[low:high] = block[low + skip : high + skip]

    def _read_whole(self, pieces: Pieces, address: int, target: Bytes) -> None:
        """All of these pieces, which lie in ``target`` as a whole."""
        low = pieces.first * PAGE_BYTES - address
        out = target[low : low + pieces.num_pages * PAGE_BYTES].data
        if len(pieces) <= BLOCK_PIECES:
            self._fill(pieces.first, out)
            self._compare(pieces, sums_of(out, pieces.starts, pieces.ends))
            return
        for address, block, some in _blocks(pieces, out):
            self._fill(address // PAGE_BYTES, block)
            self._compare(some, sums_of(block, some.starts, some.ends))

    def _compare(self, pieces: Pieces, found: list[int]) -> None:
        if found != pieces.sums:
            wrong = next(at for at, total in enumerate(found) if total != pieces.sums[at])
            self._damaged(pieces.starts[wrong], CHANGED)

    def write(self, address: int, source: memoryview, note: Note) -> None:
        """``note`` hears the sums of the pieces that are written as a whole. ``OSError``."""
        end = address + source.nbytes
        pieces = self.pieces(address // PAGE_BYTES, -(-end // PAGE_BYTES))
        low, high = _whole_pieces(pieces, address, end)
        if low >= high:
            self._file.write(address, source)
            return
        whole = pieces.part(low, high)
        begin, stop = whole.first * PAGE_BYTES - address, whole.last * PAGE_BYTES - address
        if len(whole) <= BLOCK_PIECES:
            sums = sums_of(source[begin:stop], whole.starts, whole.ends)
            self._file.write(address, source)
        else:
            self._file.write(address, source[:begin])
            sums = self._write_blocks(whole, source[begin:stop])
            self._file.write(address + stop, source[stop:])
        note(whole.with_sums(sums))

    def _write_blocks(self, pieces: Pieces, source: memoryview) -> list[int]:
        sums: list[int] = []
        for address, block, some in _blocks(pieces, source):
            sums += sums_of(block, some.starts, some.ends)
            self._file.write(address, block)
        return sums

    def whole(self, first: int, last: int) -> memoryview:
        """These pages as they are in the file. `BytesDamaged` where it has none."""
        block = np.empty((last - first) * PAGE_BYTES, np.uint8).data
        self._fill(first, block)
        return block

    def pieces(self, first: int, last: int) -> Pieces:
        """Those that these pages are in. `BytesDamaged` when that cannot be told."""
        found = self._sums.around(first, last)
        if found is None:
            self._damaged(first, "their sums do not go together")
        return found

    def _fill(self, first: int, pages: memoryview) -> None:
        """As they are in the file."""
        try:
            got = self._file.read(first * PAGE_BYTES, pages)
        except OSError as error:
            self._damaged(first, str(error))
        if got < pages.nbytes:
            self._damaged(first + got // PAGE_BYTES, "the file ends before them")

    def _damaged(self, page: int, why: str) -> NoReturn:
        raise BytesDamaged(self._path, page * PAGE_BYTES, why)


def _whole_pieces(pieces: Pieces, address: int, end: int) -> tuple[int, int]:
    """Which of them lie in these bytes as a whole: from the first of these numbers to the second,
    of a single one that does not to none."""
    low = int(pieces.starts[0] * PAGE_BYTES < address)
    return low, len(pieces) - int(pieces.ends[-1] * PAGE_BYTES > end)


def _blocks(pieces: Pieces, memory: memoryview) -> Iterator[tuple[int, memoryview, Pieces]]:
    """Some pieces at a time: their address, what ``memory``, which is of all, has of them, and
    they."""
    origin = pieces.first
    for low in range(0, len(pieces), BLOCK_PIECES):
        some = pieces.part(low, low + BLOCK_PIECES)
        start, end = (some.first - origin) * PAGE_BYTES, (some.last - origin) * PAGE_BYTES
        yield some.first * PAGE_BYTES, memory[start:end], some


def file_access(path: str, sums_path: str) -> dict[str, Any]:
    """Plain values by which a process of this host and user reads such a file itself."""
    return {"path": path, "sums": sums_path, "boot_id": boot_id()}


def is_readable(access: Mapping[str, Any]) -> bool:
    """Whether this process can: the same kernel, and the same files by these names."""
    return access.get("boot_id") == boot_id() and all(
        os.access(str(access.get(name, "")), os.R_OK) for name in ("path", "sums")
    )
