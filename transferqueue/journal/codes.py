"""Columns of numbers that mostly follow from the one before, in few bytes. No file, no clock.

Cells that were put together lie one after the other in one slab, so a column of a million cells is
a few runs. Every code is arrays for an `ArrayWriter`; nothing loops over rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Malformed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.wire.arrays import ArrayReader, ArrayWriter

    Ints = NDArray[np.integer[Any]]


def write_runs(values: Ints, growth: Ints | None, arrays: ArrayWriter) -> list[Any]:
    """``values`` by the places where a value is not its predecessor's plus the predecessor's
    ``growth`` (``None``: 0), and the values there."""
    expected = values[:-1] if growth is None else values[:-1] + growth[:-1]
    breaks = np.flatnonzero(values[1:] != expected) + 1
    at = np.concatenate((np.zeros(min(1, len(values)), np.int64), breaks))
    return [arrays.add(at), arrays.add(values[at])]


def read_runs(plain: Any, growth: Ints | None, count: int, arrays: ArrayReader) -> Ints:
    """Inverse of `write_runs`: int64[count]. `Malformed`."""
    at, firsts = arrays.get(plain[0]), arrays.get(plain[1])
    if len(at) != len(firsts) or (count and (not len(at) or at[0] or at[-1] >= count)):
        raise Malformed("runs that do not fit their column")
    lengths = np.diff(at, append=count)
    values: Ints = np.repeat(firsts.astype(np.int64), lengths)
    if growth is not None:
        ends = np.cumsum(growth)
        before = ends - growth
        values = values + before - np.repeat(before[at], lengths)
    return values


def write_sizes(values: Ints, arrays: ArrayWriter) -> Any:
    """``values``, or the one that all of them are."""
    if len(values) and bool((values == values[0]).all()):
        return int(values[0])
    return arrays.add(values)


def read_sizes(plain: Any, count: int, arrays: ArrayReader) -> Ints:
    """Inverse of `write_sizes`: int64[count]."""
    if isinstance(plain, int):
        return np.full(count, plain, dtype=np.int64)
    return arrays.int64s(plain)
