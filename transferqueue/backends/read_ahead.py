"""Maps the pages of views from a thread, beside the first read of them.

A page of 4 KiB costs its first reader a fault, which maps 16 of them; asking the kernel for a
stretch (``MADV_POPULATE_READ``) costs two thirds of that, on a core that would wait otherwise.
Reading 320 MB the first time, on two cores, medians: 33 ms by faults alone, 23 ms with this beside
it, 17 ms when the reader begins 5 ms later, 14 ms when everything is mapped. In one call for all of
it nothing was gained (33 ms): the reader's faults wait for the thread's.

On huge pages there are 160 faults to save in place of 5,120, and this costs as little (0.2 ms).

A process that has one core to run on gains nothing, and none of this happens there.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.mapping import MADV_POPULATE_READ

if TYPE_CHECKING:
    from transferqueue.backends.mapping import ArenaMapping

CHUNK_BYTES = 2 << 20
"""Asked for in one call, 0.13 ms: as long as a change to the process's memory map may wait."""

FROM_BYTES = 8 << 20
"""Less is read before a thread has started."""


class ReadAhead:
    """The pages of one mapping of an arena. Safe to use from several threads.

    Every chunk is asked for once, until `forget` says that its pages were dropped. A range that is
    no longer a view's may still be asked for: that maps clean pages, which the next view finds.
    """

    def __init__(self, mapping: ArenaMapping) -> None:
        self._mapping = mapping
        self._asked = np.zeros(-(-mapping.arena.capacity_bytes // CHUNK_BYTES), np.bool_)
        self._chunks: deque[int] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_useful = len(os.sched_getaffinity(0)) > 1

    def ask(self, address: int, nbytes: int) -> None:
        """Begin to map a range, whose segments the mapping has. Returns at once."""
        if not self._is_useful or nbytes < FROM_BYTES:
            return
        # What is left at either end, less than a chunk, may reach into another's segment.
        first, last = -(-address // CHUNK_BYTES), (address + nbytes) // CHUNK_BYTES
        with self._lock:
            new = np.flatnonzero(~self._asked[first:last]) + first
            self._asked[new] = True
            self._chunks.extend(new.tolist())
            if self._chunks and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(
                    target=self._run, name="transferqueue-read-ahead", daemon=True
                )
                self._thread.start()

    def forget(self, low: int, high: int) -> None:
        """The pages of a range were dropped: its next view costs faults again."""
        with self._lock:
            self._asked[low // CHUNK_BYTES : -(-high // CHUNK_BYTES)] = False

    def close(self) -> None:
        """Ask for nothing more, and wait for the call under way."""
        with self._lock:
            self._is_useful = False
            self._chunks.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._chunks:
                    self._thread = None
                    return
                chunk = self._chunks.popleft()
            self._mapping.advise(chunk * CHUNK_BYTES, CHUNK_BYTES, MADV_POPULATE_READ)
