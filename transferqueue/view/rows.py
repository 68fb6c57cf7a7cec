"""Which rows: every way of naming rows becomes a slice or one int64 index, checked here.

Decisions only; nothing here sees a column.
"""

from __future__ import annotations

from operator import index as as_int
from typing import TypeAlias

import numpy as np
import torch

from transferqueue.errors import BadRowIndex, InvalidInput, RowCountMismatch

RowIndex: TypeAlias = np.ndarray
"""int64 [rows picked], each in ``[0, num_rows)``, in order, repeats allowed."""

RowSlice: TypeAlias = slice
"""``slice(start, stop, step)``: plain ints, ``0 <= start <= stop <= num_rows``, ``step > 0``."""


def as_row_index(rows: object, num_rows: int) -> RowIndex:
    """``rows`` (a list, array or tensor of ints or a bool mask) as an index into ``num_rows`` rows.

    Raises ``BadRowIndex`` (an ``IndexError``) for a mask of another length, for floats, ``uint8``
    (old masks look like that, so it is ambiguous), two dimensions and rows out of range;
    ``TypeError`` for anything else than those three containers.
    """
    index = _as_array(rows)
    if index.ndim != 1:
        raise BadRowIndex(f"rows must be given in one dimension, got shape {index.shape}")
    if index.dtype == np.bool_:
        return _rows_of_mask(index, num_rows)
    if index.dtype.kind not in "iu" or index.dtype == np.uint8:
        raise BadRowIndex(
            f"rows must be ints or a bool mask, got {index.dtype}; convert them with "
            f".astype(np.int64) or .astype(bool)"
        )
    return _in_range(index.astype(np.int64), num_rows)


def _as_array(rows: object) -> np.ndarray:
    if isinstance(rows, torch.Tensor):
        return rows.detach().cpu().numpy()
    if isinstance(rows, np.ndarray):
        return rows
    if not isinstance(rows, list):
        raise TypeError(f"rows must be a list, array or tensor, got {type(rows).__name__}: {rows}")
    if not rows:
        return np.zeros(0, np.int64)
    try:
        return np.asarray(rows)
    except ValueError as error:  # numpy's word for lists within the list that differ in length
        raise BadRowIndex(f"rows must be given in one dimension, got {rows!r:.80}") from error


def _rows_of_mask(mask: np.ndarray, num_rows: int) -> RowIndex:
    if len(mask) != num_rows:
        raise BadRowIndex(f"a mask of {len(mask)} rows cannot pick from {num_rows} rows")
    return np.flatnonzero(mask)


def _in_range(index: np.ndarray, num_rows: int) -> RowIndex:
    if not index.size:
        return index
    lowest, highest = int(index.min()), int(index.max())
    if lowest < -num_rows or highest >= num_rows:
        outside = highest if highest >= num_rows else lowest
        raise BadRowIndex(f"row {outside} is out of range for {num_rows} rows")
    if lowest < 0:
        index[index < 0] += num_rows
    return index


def as_row_number(row: int | np.integer, num_rows: int) -> int:
    """One row, counted from the end when negative; ``BadRowIndex`` past either end."""
    number = as_int(row)
    if not -num_rows <= number < num_rows:
        raise BadRowIndex(f"row {number} is out of range for {num_rows} rows")
    return number % num_rows


def as_row_slice(start: object, stop: object, step: object, num_rows: int) -> RowSlice:
    """``[start:stop:step]`` with Python's clamping. A step below 1 is a ``ValueError``."""
    first, last, stride = slice(start, stop, step).indices(num_rows)
    if stride < 0:
        raise InvalidInput(f"step must be positive, got {stride}; reverse with select_idxs()")
    return slice(first, max(first, last), stride)


def repeated_by_row(
    num_rows: int, counts: list[int] | tuple[int, ...] | np.ndarray | torch.Tensor
) -> RowIndex:
    """Row ``i`` ``counts[i]`` times, in place of row ``i``."""
    if not isinstance(counts, list | tuple | np.ndarray | torch.Tensor):
        raise RowCountMismatch(
            "repeat_times", num_rows, 0, f"pass one int a row, not a {type(counts).__name__}"
        )
    times = _as_array(list(counts) if isinstance(counts, tuple) else counts)
    if times.ndim != 1 or len(times) != num_rows:
        raise RowCountMismatch("repeat_times", num_rows, times.size, f"its shape is {times.shape}")
    if times.dtype.kind not in "iu":
        raise InvalidInput(f"repeat_times must be ints, got {times.dtype}")
    if times.size and times.min() < 0:
        raise InvalidInput(f"repeat_times must be >= 0, got {times.min()}")
    return np.repeat(np.arange(num_rows), times)


def even_bounds(num_rows: int, parts: int) -> list[int]:
    """``parts + 1`` bounds of parts that differ by one row at most, the longer first."""
    longer = num_rows % parts
    return [part * (num_rows // parts) + min(part, longer) for part in range(parts + 1)]


def ceil_bounds(num_rows: int, parts: int) -> list[int] | None:
    """Bounds as ``torch.chunk`` sets them (3, 3, 3, 1), or ``None`` where it makes fewer parts."""
    size = -(-num_rows // parts)
    if num_rows <= size * (parts - 1):
        return None
    return [min(part * size, num_rows) for part in range(parts + 1)]
