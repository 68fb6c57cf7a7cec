"""Copies within this host's memory that tell how far they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transferqueue.memory.gather import gather_into
from transferqueue.wire.chunks import Runs

Moved = Callable[[int], None]
"""Hears of bytes that have been moved since it was called last."""

STEP_BYTES = 64 << 20
"""Copied between two calls: 10 ms of a memory's time."""


def copied_counting(
    memory: np.ndarray, starts: np.ndarray, sizes: np.ndarray, moved: Moved
) -> np.ndarray:
    """Ranges of ``memory``, one after the other, uint8[sum(sizes)], copied in steps."""
    runs = Runs.of(starts, sizes)
    out = np.empty(runs.total_bytes, dtype=np.uint8)
    for low in range(0, len(out), STEP_BYTES):
        step = out[low : low + STEP_BYTES]
        gather_into(step, memory, *runs.cut(low, len(step)))
        moved(len(step))
    return out
