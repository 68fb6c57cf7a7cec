"""A file and the sums of its pages: what is read from it is what was written, or an error."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from transferqueue.backends.arena_address import boot_id
from transferqueue.backends.copying import as_bytes
from transferqueue.backends.page_sums import SUM_BYTES, first_different
from transferqueue.closing import Closing
from transferqueue.errors import BytesDamaged
from transferqueue.shard.allocator import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from transferqueue.backends.disk_file import DiskFile

BLOCK_BYTES = 256 << 10
"""Read and checked at once: so what is checked is still in the cache of the core that read it."""


class Sums(Protocol):
    """Where the sums of pages are known from."""

    def first_wrong(self, first: int, pages: memoryview) -> int | None:
        """The first of these pages, which begin with page ``first``, that is not what was
        written."""
        ...


class CheckedFile:
    """``path`` is for errors."""

    def __init__(self, file: DiskFile, sums: Sums, path: str) -> None:
        self._file = file
        self._sums = sums
        self._path = path

    def read_into(self, address: int, out: memoryview) -> None:
        """Fill ``out``. `BytesDamaged`."""
        target, done = as_bytes(out), 0
        while done < len(target):
            skip = (address + done) % PAGE_BYTES
            first, left = (address + done) // PAGE_BYTES, len(target) - done
            size = min(BLOCK_BYTES, left) // PAGE_BYTES * PAGE_BYTES
            if skip or not size:  # part of a page
                size = min(PAGE_BYTES - skip, left)
                page = np.empty(PAGE_BYTES, np.uint8)
                self._read_pages(first, page.data)
                target[done : done + size] = page[skip : skip + size]
            else:
                self._read_pages(first, target[done : done + size].data)
            done += size

    def _read_pages(self, first: int, pages: memoryview) -> None:
        """Fill it with whole pages from ``first`` on, checked."""
        self.fill(first, pages)
        wrong = self._sums.first_wrong(first, pages)
        if wrong is not None:
            self._damaged(wrong, "these are not the bytes that were written")

    def fill(self, first: int, pages: memoryview) -> None:
        """As they are in the file."""
        try:
            got = self._file.read(first * PAGE_BYTES, pages)
        except OSError as error:
            self._damaged(first, str(error))
        if got < pages.nbytes:
            self._damaged(first + got // PAGE_BYTES, "the file ends before them")

    def _damaged(self, page: int, why: str) -> NoReturn:
        raise BytesDamaged(self._path, page * PAGE_BYTES, why)


class SumsFile(Closing):
    """The sums that another process has saved, as its file has them now."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def first_wrong(self, first: int, pages: memoryview) -> int | None:
        num_pages = pages.nbytes // PAGE_BYTES
        saved: NDArray[np.uint32] = np.zeros(num_pages, np.uint32)
        os.preadv(self._fd, [saved.data], first * SUM_BYTES)
        return first_different(saved, first, pages)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def file_access(path: str, sums_path: str) -> dict[str, Any]:
    """Plain values by which a process of this host and user reads such a file itself."""
    return {"path": path, "sums": sums_path, "boot_id": boot_id()}


def is_readable(access: Mapping[str, Any]) -> bool:
    """Whether this process can: the same kernel, and the same files by these names."""
    return access.get("boot_id") == boot_id() and all(
        os.access(str(access.get(name, "")), os.R_OK) for name in ("path", "sums")
    )
