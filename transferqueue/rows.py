"""Row numbers out of what people write for them: a slice, an int, ints, a mask."""

from __future__ import annotations

import itertools
import operator
from typing import Any, SupportsIndex

import numpy as np

from transferqueue.errors import InvalidInput, RowCountMismatch

RowNumbers = np.ndarray[Any, np.dtype[np.intp]]


def choose_rows(rows: object, num_rows: int) -> slice | RowNumbers:
    """What ``h[rows]`` means, ready to index an array of ``num_rows``.

    One int chooses one row and keeps the dimension. Ints ``[n]`` may repeat or be negative, a mask
    is bool ``[rows]``. Raises ``IndexError`` out of range, ``TypeError`` for anything else.
    """
    if isinstance(rows, slice):
        return rows
    if isinstance(rows, bool | str | tuple) or rows is None:
        raise TypeError(f"rows are a slice, an int, ints or a mask, got {rows!r:.80}")
    if isinstance(rows, SupportsIndex) and not getattr(rows, "shape", ()):
        try:
            row = range(num_rows)[operator.index(rows)]
        except IndexError:
            raise IndexError(f"row {rows} of {num_rows} rows") from None
        return slice(row, row + 1)
    return row_numbers(rows, num_rows)


def row_numbers(rows: object, num_rows: int) -> RowNumbers:
    """Row numbers ``[n]`` from ints or a mask, not negative unless they were given so.

    Raises ``IndexError`` or ``TypeError``.
    """
    index = np.asarray(rows)
    if index.ndim != 1:
        raise TypeError(f"rows must be one-dimensional, got shape {index.shape}")
    if index.dtype == bool:
        if len(index) != num_rows:
            raise IndexError(f"a mask of {len(index)} rows for {num_rows} rows")
        return np.flatnonzero(index)
    if len(index) == 0:
        return np.zeros(0, dtype=np.intp)
    if index.dtype.kind not in "iu":
        raise TypeError(f"rows must be ints or a mask, got {index.dtype}")
    outside = index[(index < -num_rows) | (index >= num_rows)]
    if len(outside):
        raise IndexError(f"row {outside[0]} of {num_rows} rows")
    return index.astype(np.intp)


def permutation(order: object, num_rows: int) -> RowNumbers:
    """Row numbers that take each of the rows once. Raises `InvalidInput` for any others."""
    index = row_numbers(order, num_rows)
    if len(index) != num_rows:
        raise RowCountMismatch("reorder", num_rows, len(index), "use h[idx] to choose rows")
    if num_rows and np.bincount(index % num_rows).max() > 1:
        raise InvalidInput("reorder takes each row once; use h[idx] to repeat or leave out rows")
    return index


def checked_count(value: object, name: str, *, low: int) -> int:
    """An int of at least ``low``. Raises ``TypeError`` or ``ValueError`` naming the argument."""
    if type(value) is int:  # asking a protocol takes longer than what most callers do
        count = value
    elif isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be an int, got {value!r:.80}")
    else:
        count = operator.index(value)
    if count < low:
        raise ValueError(f"{name} must be at least {low}, got {count}")
    return count


def even_chunks(num_rows: int, num_chunks: int) -> list[slice]:
    """Slices of sizes that differ by at most one, larger first: 10 rows by 4 are 3, 3, 2, 2."""
    size, num_larger = divmod(num_rows, num_chunks)
    ends = [i * size + min(i, num_larger) for i in range(num_chunks + 1)]
    return [slice(start, end) for start, end in itertools.pairwise(ends)]
