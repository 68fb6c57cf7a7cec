"""An arena's segments side by side in this process's address space.

The address space for the whole stretch is set aside at once, without memory; each segment is
mapped into its place when it is first asked for. So a range of any length is one array, whichever
segments it lies in, and an address is an index.

Why ctypes and not `mmap.mmap`: that cannot place one mapping after another, keeps a descriptor
open for each (a terabyte is thousands), and offers no ``MAP_NORESERVE``, without which the kernel
counts a private mapping of the whole arena as memory in use.

Arrays keep the address space alive: it is given back when the last of them is gone, so a view that
outlives ``close`` reads old bytes and never crashes.
"""

from __future__ import annotations

import ctypes
import os
import stat
import threading
import weakref
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Closed, ServiceFailed
from transferqueue.memory.allocator import PAGE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.backends.arena_address import ArenaAddress

    Bytes = NDArray[np.uint8]

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value

HUGE_PAGE_BYTES = 2 << 20
"""The kernel maps a huge page as one only where its place in the address space and in the file
agree modulo this. (Other sizes on some ARM kernels: then small pages are mapped, as ever.)"""

MADV_DONTNEED = 4
MADV_POPULATE_READ = 22
MADV_POPULATE_WRITE = 23
MADV_COLLAPSE = 25


class Access(Enum):
    """How a stretch is mapped."""

    READ = "read"
    """What is in the arena, now and later; not writable."""
    WRITE = "write"
    """The arena itself: what is written is what others see."""
    PRIVATE = "private"
    """Copy-on-write: the arena's bytes until this process writes to a page, its own from then on.
    The file is opened read-only."""


_OPEN_FLAGS = {
    Access.READ: os.O_RDONLY,
    Access.WRITE: os.O_RDWR,
    Access.PRIVATE: os.O_RDONLY,
}
_PROTECTION = {
    Access.READ: _PROT_READ,
    Access.WRITE: _PROT_READ | _PROT_WRITE,
    Access.PRIVATE: _PROT_READ | _PROT_WRITE,
}
_SHARING = {
    Access.READ: _MAP_SHARED,
    Access.WRITE: _MAP_SHARED,
    Access.PRIVATE: _MAP_PRIVATE | _MAP_NORESERVE,
}


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    void_p, size = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.restype = void_p
    libc.mmap.argtypes = [void_p, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.munmap.argtypes = [void_p, size]
    libc.madvise.argtypes = [void_p, size, ctypes.c_int]
    return libc


def _map(
    at: int | None, nbytes: int, protection: int, flags: int, fd: int = -1, offset: int = 0
) -> int:
    found = _libc().mmap(at, nbytes, protection, flags, fd, offset)
    if found is None or found == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"mmap of {nbytes:,} bytes: {os.strerror(code)}")
    return int(found)


def advise(at: int, nbytes: int, advice: int) -> bool:
    """Tell the kernel about whole pages of this process's memory. Whether it took the advice."""
    return bool(_libc().madvise(at, nbytes, advice) == 0)


class _AddressSpace:
    """A stretch of this process's address space, given back when nobody refers to it."""

    __slots__ = ("__array_interface__", "__weakref__", "base")

    def __init__(self, nbytes: int, *, read_only: bool, offset: int) -> None:
        """``offset``: of the first byte in its file, which `base` agrees with modulo the size of a
        huge page."""
        whole = nbytes + HUGE_PAGE_BYTES
        start = _map(None, whole, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE)
        self.base = start + (offset - start) % HUGE_PAGE_BYTES
        self.__array_interface__: dict[str, Any] = {
            "data": (self.base, read_only),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
        give_back = weakref.finalize(self, _libc().munmap, start, whole)
        # At exit the kernel does it, and arrays may still be in use then.
        give_back.atexit = False


class ArenaMapping:
    """Part of an arena, ``[low, high)`` by whole pages, mapped in one way.

    Safe to use from several threads.
    """

    def __init__(
        self, arena: ArenaAddress, access: Access, low: int = 0, high: int | None = None
    ) -> None:
        """``OSError`` when the kernel does not give the address space."""
        self.arena = arena
        self.access = access
        self._low = low // PAGE_BYTES * PAGE_BYTES
        end = arena.capacity_bytes if high is None else high
        self._nbytes = -(-(end - self._low) // PAGE_BYTES) * PAGE_BYTES
        # Segments are multiples of a huge page, or the only one: the place in the arena will do.
        space = _AddressSpace(self._nbytes, read_only=access is Access.READ, offset=self._low)
        self._base = space.base
        self._memory: Bytes | None = np.asarray(space)
        self._lock = threading.Lock()
        self._is_mapped = [False] * arena.num_segments

    def array(self, address: int, nbytes: int) -> Bytes:
        """The bytes of a range, uint8[nbytes], a view.

        ``ValueError`` outside the stretch; `ServiceFailed` when the segment's file is gone or is
        not what it should be; ``OSError`` when the kernel does not map it.
        """
        memory = self._memory
        if memory is None:
            raise Closed("the mapping of an arena")
        low = address - self._low
        if low < 0 or nbytes < 0 or low + nbytes > self._nbytes:
            raise ValueError(
                f"[{address}, {address + nbytes}) is outside "
                f"[{self._low}, {self._low + self._nbytes})"
            )
        if nbytes:
            self._map_segments(address, nbytes)
        return memory[low : low + nbytes]

    def advise(self, address: int, nbytes: int, advice: int) -> bool:
        """Tell the kernel about a range that ``array`` gave: whole pages, rounded outwards.

        Whether it took the advice. After ``close`` it is not asked: the place may be another's.
        """
        memory = self._memory  # keeps the place ours until the kernel has answered
        if memory is None:
            return False
        low = (address - self._low) // PAGE_BYTES * PAGE_BYTES
        high = -(-(address + nbytes - self._low) // PAGE_BYTES) * PAGE_BYTES
        return advise(self._base + low, high - low, advice)

    def virtual_address(self, address: int) -> int:
        """Where an address of the arena lies in this process."""
        return self._base + address - self._low

    def close(self) -> None:
        """Nothing new is given out; the memory goes with the last array."""
        self._memory = None

    def _map_segments(self, address: int, nbytes: int) -> None:
        size = self.arena.segment_bytes
        for index in range(address // size, (address + nbytes - 1) // size + 1):
            if not self._is_mapped[index]:
                self._map_segment(index)

    def _map_segment(self, index: int) -> None:
        with self._lock:
            if self._is_mapped[index]:
                return
            start = index * self.arena.segment_bytes
            end = start + self.arena.segment_size(index)
            low, high = max(start, self._low), min(end, self._low + self._nbytes)
            fd = self._open_segment(index)
            try:
                _map(
                    self._base + low - self._low,
                    high - low,
                    _PROTECTION[self.access],
                    _SHARING[self.access] | _MAP_FIXED,
                    fd,
                    low - start,
                )
            finally:
                os.close(fd)
            self._is_mapped[index] = True

    def _open_segment(self, index: int) -> int:
        path = self.arena.segment_path(index)
        try:
            fd = os.open(path, _OPEN_FLAGS[self.access] | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ServiceFailed(f"arena segment {path}", f"{error.strerror}") from error
        found = os.fstat(fd)
        # A shorter file would mean SIGBUS at some later read.
        if not stat.S_ISREG(found.st_mode) or found.st_size < self.arena.segment_size(index):
            os.close(fd)
            raise ServiceFailed(
                f"arena segment {path}",
                f"has {found.st_size:,} bytes, expected {self.arena.segment_size(index):,}",
            )
        return fd
