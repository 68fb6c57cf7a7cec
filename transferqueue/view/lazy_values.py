"""Values that are here: row operations on tensors and arrays alike, as an eager batch does them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from tensordict import TensorDict

from transferqueue.view import columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.view.rows import RowIndex

    Values = Mapping[str, Any]
    """Column name -> tensor, array, or what else a TensorDict holds."""

_ONLY = "column"


def take_values(values: Values, rows: slice | RowIndex, num_rows: int) -> dict[str, Any]:
    """Rows by slice as views, by index as copies. Jagged columns that shared offsets still do."""
    arrays, tensors = _split(values)
    taken = {name: array[rows] for name, array in arrays.items()}
    if tensors:
        take: Any = columns.slice_rows if isinstance(rows, slice) else columns.take_rows
        taken |= _items(take(_batch(tensors, num_rows), rows))
    return taken


def take_value(value: Any, rows: slice | RowIndex) -> Any:
    """As ``take_values``, of one column."""
    return take_values({_ONLY: value}, rows, value.shape[0])[_ONLY]


def cut_values(values: Values, bounds: Sequence[int]) -> list[dict[str, Any]]:
    """Consecutive runs of rows between ``bounds``, as views."""
    arrays, tensors = _split(values)
    cut: list[dict[str, Any]] = [
        {name: array[start:stop] for name, array in arrays.items()}
        for start, stop in itertools.pairwise(bounds)
    ]
    if tensors:
        batches = columns.cut_rows(_batch(tensors, bounds[-1]), bounds)
        for run, batch in zip(cut, batches, strict=True):
            run.update(_items(batch))
    return cut


def cat_columns(parts: Sequence[Values], sizes: Sequence[int]) -> dict[str, Any]:
    """All rows of parts that have the same columns, copied. Errors are those of a concat."""
    arrays, tensors = _split(parts[0])
    joined = {name: columns.cat_arrays(name, [part[name] for part in parts]) for name in arrays}
    if tensors:
        batches = [
            _batch({name: part[name] for name in tensors}, size)
            for part, size in zip(parts, sizes, strict=True)
        ]
        joined |= _items(columns.cat_rows(batches))
    return joined


def cat_values(parts: Sequence[Any]) -> Any:
    """As ``cat_columns``, of one column."""
    return cat_columns([{_ONLY: part} for part in parts], [p.shape[0] for p in parts])[_ONLY]


def row_of_value(value: Any, number: int) -> Any:
    """One row: a view of a tensor, the cell of an array."""
    if isinstance(value, np.ndarray):
        return value[number]
    return columns.row(_batch({_ONLY: value}, value.shape[0]), number).get(_ONLY)


def _split(values: Values) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return arrays, {name: value for name, value in values.items() if name not in arrays}


def _batch(tensors: Mapping[str, Any], num_rows: int) -> TensorDict:
    batch = TensorDict({}, batch_size=[num_rows])
    for name, value in tensors.items():
        batch.set(name, value)
    return batch


def _items(batch: Any) -> dict[str, Any]:
    return dict(batch.items())
