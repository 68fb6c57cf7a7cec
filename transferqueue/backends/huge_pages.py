"""Huge pages under the files of an arena.

On 4 KiB pages an arena costs its readers a fault for every 16 of them at first touch, and misses in
the TLB ever after; how many depends on how far apart in the machine's memory the pages lie, which
gets worse the longer it runs. Measured for 320 MB (ordinary memory, for which numpy and torch have
huge pages: copy 25 ms, sum 11 ms), processor time:

=====================================  ==============  ==========
step                                   4 KiB pages     huge pages
=====================================  ==============  ==========
taking the room                        75 ms           18 ms
first copy into it                     150 ms          24 ms
later ones                             28 ms           24 ms
first sum of a private mapping         29 to 40 ms     11 ms
later ones                             12 to 18 ms     10 ms
editing one page of 64 there           3.6 ms          4.8 ms
=====================================  ==============  ==========

Linux gives a tmpfs huge pages by itself only where it is mounted with ``huge=``, which needs root.
But a process may ask for a range that it has mapped (``MADV_COLLAPSE``, Linux 6.1), whatever the
mount says, unless ``/sys/kernel/mm/transparent_hugepage/shmem_enabled`` says ``deny``. That is done
before the room is used: an empty huge page costs no more than clearing it, one that holds data is
copied (100 ms for the 320 MB, and whoever has pinned some of it prevents it).
"""

from __future__ import annotations

import contextlib
import os
import secrets

from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.backends.mapping import (
    HUGE_PAGE_BYTES,
    MADV_COLLAPSE,
    MADV_DONTNEED,
    Access,
    ArenaMapping,
)
from transferqueue.memory.allocator import PAGE_BYTES

REST_STEPS = 16
"""After a refusal so many steps do without. Where no 2 MiB are left in one piece the kernel makes
some by moving pages about, and that may take it longer than is gained."""

_IS_SIZE_KNOWN = HUGE_PAGE_BYTES == 512 * PAGE_BYTES
"""Where pages have 64 KiB a huge one has 512 MiB, which is more than a step."""


class HugePages:
    """Of one arena, as it grows. Whoever gets none has small ones, and nothing else changes."""

    def __init__(self, mapping: ArenaMapping) -> None:
        """``mapping``: through which this process writes to the arena."""
        self._mapping = mapping
        self._steps_to_rest = 0
        self.taken_bytes = 0
        """That are in huge pages, at least."""

    def take(self, fd: int, address: int, nbytes: int) -> None:
        """Have huge pages under those of a step's bytes that fill some, if there are any to be had.

        ``fd``: its segment, which has its size. ``OSError`` when there is no room, not even for
        small ones; what was taken until then stays taken, of what the arena was promised.
        """
        segment_bytes = self._mapping.arena.segment_bytes
        segment = address // segment_bytes * segment_bytes
        low = -(-address // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        high = (address + nbytes) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        can_be = low < high and segment % HUGE_PAGE_BYTES == 0 and _IS_SIZE_KNOWN
        if not can_be or self._rests():
            return
        for at in range(low, high, HUGE_PAGE_BYTES):
            # The kernel makes no huge page where there is none at all.
            os.posix_fallocate(fd, at - segment, PAGE_BYTES)
        self._mapping.array(low, high - low)
        if self._mapping.advise(low, high - low, MADV_COLLAPSE):
            self.taken_bytes += high - low
            # They are the file's; that this process has mapped them would count as its memory.
            self._mapping.advise(low, high - low, MADV_DONTNEED)
        else:
            self._steps_to_rest = REST_STEPS

    def _rests(self) -> bool:
        if not self._steps_to_rest:
            return False
        self._steps_to_rest -= 1
        return True


def gives_huge_pages(directory: str) -> bool:
    """Whether an arena in ``directory`` would get huge pages now. Tries it with one."""
    arena = ArenaAddress(
        directory=directory,
        service_id="probe",
        slot=0,
        token=secrets.token_hex(8),
        segment_bytes=HUGE_PAGE_BYTES,
        capacity_bytes=HUGE_PAGE_BYTES,
        boot_id="",
    )
    path, flags = arena.segment_path(0), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    pages = HugePages(ArenaMapping(arena, Access.WRITE))
    with contextlib.suppress(OSError), open(os.open(path, flags, 0o600), "wb") as file:
        try:
            file.truncate(HUGE_PAGE_BYTES)
            pages.take(file.fileno(), 0, HUGE_PAGE_BYTES)
        finally:
            os.unlink(path)
    return pages.taken_bytes > 0
