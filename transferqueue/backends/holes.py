"""Which pages of a file no longer hold anything, so that the file system can have them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.shard.allocator import PAGE_BYTES
from transferqueue.shard.free_ranges import merge_adjacent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


def emptied_pages(
    freed: tuple[Int64s, Int64s], free: tuple[Int64s, Int64s]
) -> list[tuple[int, int]]:
    """Starts and ends, multiples of a page, of what became empty when ``freed`` was freed.

    ``freed``: starts and ends of ranges, in any order. ``free``: all that is free now, by address,
    the freed ranges among it. A page is empty when all of its bytes are free, whichever calls
    freed them; rows are smaller than pages.
    """
    filled = freed[1] > freed[0]
    starts, ends = freed[0][filled], freed[1][filled]
    if not len(starts):
        return []
    around = np.searchsorted(free[0], starts, side="right") - 1
    first = np.maximum(-(-free[0][around] // PAGE_BYTES), starts // PAGE_BYTES)
    last = np.minimum(free[1][around] // PAGE_BYTES, -(-ends // PAGE_BYTES))
    some = first < last
    first, last = _union(first[some], last[some])
    return [
        (a * PAGE_BYTES, b * PAGE_BYTES) for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]


def _union(starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Sorted and apart. Two rows of one page both name that page."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    if len(ends) > 1:
        reached = np.maximum.accumulate(ends)
        starts = np.concatenate((starts[:1], np.maximum(starts[1:], reached[:-1])))
        some = starts < ends
        starts, ends = starts[some], ends[some]
    return merge_adjacent(starts, ends)
