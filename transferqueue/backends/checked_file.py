"""A file and the sums of its pieces: what is read from it is what was written, or an error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from transferqueue.backends.arena_address import boot_id
from transferqueue.backends.copying import as_bytes
from transferqueue.backends.piece_sums import sums_of
from transferqueue.backends.pieces import PIECE_BYTES
from transferqueue.errors import BytesDamaged
from transferqueue.shard.allocator import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from transferqueue.backends.beside import Beside
    from transferqueue.backends.disk_file import DiskFile
    from transferqueue.backends.pieces import Pieces

    Bytes = NDArray[np.uint8]
    Note = Callable[[int, int, list[int]], None]

BLOCK_BYTES = 512 << 10
"""Read and checked at once: so what is checked is still in the cache of the core that read it."""

BLOCK_PIECES = BLOCK_BYTES // PIECE_BYTES

SHARED_FROM_BLOCKS = 8
"""So many are read, or written, on two threads. Waking the other costs as much as one of them."""


class Sums(Protocol):
    """Where the sums of pieces are known from."""

    def around(self, first: int, last: int) -> Pieces | None:
        """The pieces that these pages are in; ``None`` when that cannot be told."""
        ...


class CheckedFile:
    """``path`` is for errors."""

    def __init__(self, file: DiskFile, sums: Sums, path: str, beside: Beside) -> None:
        self._file = file
        self._sums = sums
        self._path = path
        self._beside = beside

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
        whole = [(at, min(at + BLOCK_PIECES, high)) for at in range(low, high, BLOCK_PIECES)]
        self._share(
            len(whole), lambda number: self._read_block(pieces, *whole[number], address, target)
        )

    def _share(self, num_blocks: int, step: Callable[[int], None]) -> None:
        """``step`` of each block, in any order, on two threads where there are many."""
        if num_blocks >= SHARED_FROM_BLOCKS:
            self._beside.share(num_blocks, step)
            return
        for number in range(num_blocks):
            step(number)

    def _read_part(self, pieces: Pieces, at: int, address: int, target: Bytes) -> None:
        """What ``target`` has of a piece, of which all is read to be checked."""
        first, last = pieces.starts[at], pieces.ends[at]
        block = np.empty((last - first) * PAGE_BYTES, np.uint8)
        self._read(first, block.data, pieces, at, at + 1)
        low = max(address, first * PAGE_BYTES)
        high = min(address + len(target), last * PAGE_BYTES)
        skip = first * PAGE_BYTES
        target[low - address : high - address] = block[low - skip : high - skip]

    def _read_block(self, pieces: Pieces, low: int, high: int, address: int, target: Bytes) -> None:
        first, last = pieces.starts[low], pieces.ends[high - 1]
        block = target[first * PAGE_BYTES - address : last * PAGE_BYTES - address]
        self._read(first, block.data, pieces, low, high)

    def _read(self, first: int, block: memoryview, pieces: Pieces, low: int, high: int) -> None:
        """Fill it with these pieces, checked."""
        self._fill(first, block)
        found = sums_of(block, pieces.starts[low:high], pieces.ends[low:high])
        expected = pieces.sums[low:high]
        if found != expected:
            wrong = next(at for at, total in enumerate(found) if total != expected[at])
            first = pieces.starts[low + wrong]
            self._damaged(first, "these are not the bytes that were written")

    def write(self, address: int, source: memoryview, note: Note) -> None:
        """``note`` hears the sums of the pieces that are written as a whole. ``OSError``."""
        end = address + source.nbytes
        pieces = self.pieces(address // PAGE_BYTES, -(-end // PAGE_BYTES))
        low, high = _whole_pieces(pieces, address, end)
        if low >= high:
            self._file.write(address, source)
            return
        begin, stop = pieces.starts[low] * PAGE_BYTES, pieces.ends[high - 1] * PAGE_BYTES
        self._file.write(address, source[: begin - address])
        sums = self._write_blocks(pieces, low, high, source[begin - address : stop - address])
        self._file.write(stop, source[stop - address :])
        note(pieces.starts[low], pieces.ends[high - 1], sums)

    def _write_blocks(self, pieces: Pieces, low: int, high: int, source: memoryview) -> list[int]:
        """``source``: of these pieces. Returns their sums, made while they are in the cache."""
        origin, sums = pieces.starts[low], [0] * (high - low)

        def step(number: int) -> None:
            begin = low + number * BLOCK_PIECES
            stop = min(begin + BLOCK_PIECES, high)
            starts, ends = pieces.starts[begin:stop], pieces.ends[begin:stop]
            block = source[(starts[0] - origin) * PAGE_BYTES : (ends[-1] - origin) * PAGE_BYTES]
            sums[begin - low : stop - low] = sums_of(block, starts, ends)
            self._file.write(starts[0] * PAGE_BYTES, block)

        self._share(-(-(high - low) // BLOCK_PIECES), step)
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


def file_access(path: str, sums_path: str) -> dict[str, Any]:
    """Plain values by which a process of this host and user reads such a file itself."""
    return {"path": path, "sums": sums_path, "boot_id": boot_id()}


def is_readable(access: Mapping[str, Any]) -> bool:
    """Whether this process can: the same kernel, and the same files by these names."""
    return access.get("boot_id") == boot_id() and all(
        os.access(str(access.get(name, "")), os.R_OK) for name in ("path", "sums")
    )
