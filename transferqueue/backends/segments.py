"""The segment files of one arena, made and filled with room as they are needed.

Invariant: every byte below ``backed_bytes`` has its page in the directory's file system, so a
write to it cannot end in SIGBUS when the file system is full. Room is taken in steps: whole
segments would hold up to a segment more than the payload, single ranges a call each.

What a step costs here, for 320 MB of tmpfs: huge pages (see `huge_pages`) 18 ms, cleared. Small
ones by ``posix_fallocate`` 75 ms, and 80 ms more for clearing them at the first touch. Both 750 to
950 ms when the host must find memory for the guest first. Later writes of the same bytes take 24
and 28 ms. Hence the background thread, and hence the allocator's preference for memory that was
used before.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from transferqueue.backends.mapping import MADV_POPULATE_WRITE

if TYPE_CHECKING:
    from transferqueue.backends.arena_address import ArenaAddress
    from transferqueue.backends.huge_pages import HugePages
    from transferqueue.backends.mapping import ArenaMapping

STEP_BYTES = 16 << 20

HUGE_PAGES_FOR_S = 1.0
"""Of processor time in one request, after which what it still needs is taken in small pages: a
shard serves nobody meanwhile. That is 18 GB of memory that is at hand, 0.4 GB of such as the host
must find first."""

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM}

_log = logging.getLogger(__name__)


class SegmentFiles:
    """Grows an arena from its beginning. Two threads may ask at once."""

    def __init__(
        self,
        address: ArenaAddress,
        *,
        found_bytes: int = 0,
        huge_pages: HugePages | None = None,
    ) -> None:
        """``found_bytes``: of room that an earlier process took. ``huge_pages``: by which it grows
        as far as there are any."""
        self._address = address
        self._huge_pages = huge_pages
        self._lock = threading.Lock()
        self.backed_bytes = _whole_steps(address, found_bytes)

    def back(self, end: int) -> bool:
        """Have room for ``[0, end)``. ``False`` when the file system has none left now.

        Other failures of the file system are ``OSError``.
        """
        if end <= self.backed_bytes:
            return True
        with self._lock:
            huge_until_s = time.thread_time() + HUGE_PAGES_FOR_S
            while self.backed_bytes < end:
                try:
                    self._extend(huge_until_s)
                except OSError as error:
                    if error.errno in _NO_ROOM:
                        return False
                    raise
        return True

    def _extend(self, huge_until_s: float) -> None:
        """One step, or up to the end of the segment."""
        address = self._address
        index, offset = divmod(self.backed_bytes, address.segment_bytes)
        size = address.segment_size(index)
        step = min(STEP_BYTES, size - offset)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(address.segment_path(index), flags, 0o600)
        try:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
            if self._huge_pages is not None and time.thread_time() < huge_until_s:
                self._huge_pages.take(fd, self.backed_bytes, step)
            os.posix_fallocate(fd, offset, step)
        finally:
            os.close(fd)
        self.backed_bytes += step


def _whole_steps(address: ArenaAddress, found_bytes: int) -> int:
    """Of room that was found: a process that ended in a step leaves holes in it, which the next
    fills. What lies there is left as it is."""
    index, offset = divmod(found_bytes, address.segment_bytes)
    return index * address.segment_bytes + offset // STEP_BYTES * STEP_BYTES


class Prefault(threading.Thread):
    """Takes room for the whole arena and touches its pages, in the background."""

    def __init__(self, files: SegmentFiles, mapping: ArenaMapping, capacity_bytes: int) -> None:
        super().__init__(name="transferqueue-prefault", daemon=True)
        self._files = files
        self._mapping = mapping
        self._capacity_bytes = capacity_bytes
        self._stopping = threading.Event()

    def run(self) -> None:
        for start in range(0, self._capacity_bytes, STEP_BYTES):
            if self._stopping.is_set():
                return
            end = min(start + STEP_BYTES, self._capacity_bytes)
            try:
                if not self._files.back(end):
                    _log.warning("no room to prefault the arena beyond %d bytes", start)
                    return
                self._mapping.array(start, end - start)
            except OSError as error:
                _log.warning("prefaulting stopped at %d bytes: %s", start, error)
                return
            # Faults pages in for writing without changing them, so a put may be under way there.
            self._mapping.advise(start, end - start, MADV_POPULATE_WRITE)

    def stop(self) -> None:
        """Ask it to end and wait for that: one step at most."""
        self._stopping.set()
        self.join()
