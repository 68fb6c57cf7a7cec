"""Which pieces of a file no longer hold anything, so that their room can be used otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.pieces import begins, ends
from transferqueue.memory.allocator import PAGE_BYTES
from transferqueue.memory.free_ranges import merge_adjacent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.backends.pieces import Entries

    Int64s = NDArray[np.int64]


def emptied_pieces(
    freed: tuple[Int64s, Int64s], free: tuple[Int64s, Int64s], entries: Entries
) -> list[tuple[int, int]]:
    """Starts and ends, multiples of a page, of what became empty when ``freed`` was freed.

    ``freed``: starts and ends of ranges, in any order. ``free``: all that is free now, by address,
    the freed ranges among it. ``entries``: of all pages. A piece is empty when all of its bytes are
    free, whichever calls freed them; rows are smaller than pieces. Until then all of it has to stay
    as it is, for its sum is of all of it.
    """
    filled = freed[1] > freed[0]
    starts, stops = freed[0][filled], freed[1][filled]
    if not len(starts):
        return []
    around = np.searchsorted(free[0], starts, side="right") - 1
    lowest, highest = -(-free[0][around] // PAGE_BYTES), free[1][around] // PAGE_BYTES
    first = np.maximum(lowest, starts // PAGE_BYTES)
    last = np.minimum(highest, -(-stops // PAGE_BYTES))
    some = first < last
    first, last = _whole(first[some], last[some], lowest[some], highest[some], entries)
    first, last = _union(first, last)
    return [
        (a * PAGE_BYTES, b * PAGE_BYTES) for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]


def _whole(
    first: Int64s, last: Int64s, lowest: Int64s, highest: Int64s, entries: Entries
) -> tuple[Int64s, Int64s]:
    """The pieces that these pages are in, as far as all of their pages, from ``lowest`` to
    ``highest``, are empty."""
    low, high = begins(entries, first), ends(entries, last - 1)
    low = np.where(low < lowest, ends(entries, first), low)
    high = np.where(high > highest, begins(entries, last - 1), high)
    some = low < high
    return low[some], high[some]


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
