"""One file on a disk, that takes room when it is asked to and gives it back."""

from __future__ import annotations

import ctypes
import errno
import os
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEEP_SIZE, _PUNCH_HOLE = 1, 2

_NO_HOLES = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV})
"""This file system never makes any. Others may work the next time."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFile:
    """Reads and writes at offsets. Every failure is an ``OSError``."""

    def __init__(self, path: str, *, read_only: bool = False) -> None:
        """``read_only``: it is another process's, and there."""
        access = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._punches = True

    @property
    def stored_bytes(self) -> int:
        """What it takes of the file system."""
        return os.fstat(self._fd).st_blocks * 512

    @property
    def room_beside(self) -> int:
        """Bytes that the file system has for anybody; 0 where it does not say."""
        try:
            found = os.fstatvfs(self._fd)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def take_room(self, offset: int, nbytes: int) -> None:
        """So that a later write there finds room. Without `NO_ROOM`, and nothing is written."""
        os.posix_fallocate(self._fd, offset, nbytes)

    def give_back(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Starts and ends that need no room any more. Where the file system cannot make holes the
        file keeps it, for what is written there next."""
        for start, end in ranges:
            if not self._punches:
                return
            self._punches = self._punch(start, end - start) not in _NO_HOLES

    def _punch(self, start: int, nbytes: int) -> int:
        """0, or why not."""
        while _libc().fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, start, nbytes):
            if (failure := ctypes.get_errno()) != errno.EINTR:
                return failure
        return 0

    def cut(self, nbytes: int) -> None:
        """No longer than this."""
        os.ftruncate(self._fd, min(nbytes, os.fstat(self._fd).st_size))

    def read(self, offset: int, out: memoryview) -> int:
        """How many bytes there were: fewer than asked for at the end of the file."""
        done = 0
        while done < out.nbytes:
            got = os.preadv(self._fd, [out[done:]], offset + done)
            if got == 0:
                break
            done += got
        return done

    def write(self, offset: int, data: memoryview) -> None:
        done = 0
        while done < data.nbytes:
            done += os.pwrite(self._fd, data[done:], offset + done)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return libc
