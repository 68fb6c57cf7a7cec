"""Has the memory of a result given by the kernel from a thread, beside what fills it.

Memory that is new to a process is cleared page by page as it is first written to, which takes as
long as the copy from a socket: of 84 ms in which a thread receives 320 MB, 25 are gone with this
beside it (two cores; what the thread itself takes is 27 to 38). Asking for pages that are there
already costs next to nothing, so what fills the memory need not be told how far this is.

A process that has one core to run on gains nothing, and none of this happens there.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transferqueue.backends.mapping import HUGE_PAGE_BYTES, MADV_POPULATE_WRITE, advise
from transferqueue.memory.allocator import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

FROM_BYTES = 8 << 20
"""Less has come before a thread has started."""


@contextmanager
def touched_ahead(blocks: Sequence[np.ndarray]) -> Iterator[None]:
    """``blocks``: uint8[...] that are filled in this order meanwhile. They keep their bytes."""
    if sum(map(len, blocks)) < FROM_BYTES or len(os.sched_getaffinity(0)) < 2:
        yield
        return
    is_over = threading.Event()
    thread = threading.Thread(
        target=_touch, args=(blocks, is_over), name="transferqueue-touch-ahead", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _touch(blocks: Sequence[np.ndarray], is_over: threading.Event) -> None:
    for block in blocks:
        for at, nbytes in _stretches(block.ctypes.data, len(block)):
            if is_over.is_set() or not advise(at, nbytes, MADV_POPULATE_WRITE):
                return


def _stretches(start: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """The whole pages of a block, those of one huge page at a time."""
    low, end = -(-start // PAGE_BYTES) * PAGE_BYTES, (start + nbytes) // PAGE_BYTES * PAGE_BYTES
    while low < end:
        high = min(end, (low // HUGE_PAGE_BYTES + 1) * HUGE_PAGE_BYTES)
        yield low, high - low
        low = high
