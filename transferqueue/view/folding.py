"""Changes of shape between the batch dimension and the next one.

A group of ``k`` rows and a row of ``k`` parts are the same cells; nothing here copies a dense
column unless its memory forces it to. The batch given is never changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from transferqueue.errors import BatchInconsistent, NotDivisible, UnsupportedTensor
from transferqueue.rows import checked_count
from transferqueue.view.jagged import is_jagged

if TYPE_CHECKING:
    from collections.abc import Collection

    import torch

    from transferqueue.view.eager import EagerColumns

BatchT = TypeVar("BatchT", bound="EagerColumns")


def fold_batch_dim(data: BatchT, new_batch_size: int) -> BatchT:
    """``[rows, ...]`` becomes ``[new_batch_size, rows // new_batch_size, ...]`` in every column.

    Rows that do not divide are a ``NotDivisible`` (``AssertionError``). Ours: ``data`` stays as
    it was, and a batch of arrays alone works.
    """
    groups = checked_count(new_batch_size, "new_batch_size", low=1)
    if len(data) % groups:
        raise NotDivisible("fold_batch_dim", len(data), groups)
    size = len(data) // groups

    def fold(name: str, column: Any) -> Any:
        return _reshaped(name, column, (groups, size, *column.shape[1:]))

    return data._map_columns(fold, groups)


def unfold_batch_dim(data: BatchT, batch_dims: int = 2) -> BatchT:
    """The first ``batch_dims`` dims of every column become one, the rows.

    Columns that do not share those dims are a ``BatchInconsistent`` (``AssertionError``).
    Ours: ``data`` stays as it was, and a batch of arrays alone works.
    """
    leading = _shared_dims(data, checked_count(batch_dims, "batch_dims", low=1))
    rows = int(np.prod(leading))

    def unfold(name: str, column: Any) -> Any:
        return _reshaped(name, column, (rows, *column.shape[batch_dims:]))

    return data._map_columns(unfold, rows)


def _shared_dims(data: EagerColumns, batch_dims: int) -> tuple[int, ...]:
    shapes = {name: tuple(column.shape[:batch_dims]) for name, column in data._columns()}
    leading = next(iter(shapes.values()), (len(data),))
    for name, shape in shapes.items():
        if shape != leading or len(shape) < batch_dims:
            raise BatchInconsistent(
                f"unfold_batch_dim: column {name!r} has {shape} in its first {batch_dims} dims, "
                f"others {leading}"
            )
    return leading


def _reshaped(name: str, column: Any, shape: tuple[int, ...]) -> Any:
    if is_jagged(column):
        raise UnsupportedTensor(name, "a jagged column here", "its rows have no common length")
    return column.reshape(shape)


def unfold_column_chunks(data: BatchT, n_split: int, split_keys: Collection[str]) -> BatchT:
    """See ``DataProto.unfold_column_chunks``."""
    parts, num_rows = checked_count(n_split, "n_split", low=1), len(data)
    tensors, arrays = data._tensor_names(), data._array_names()
    split = data._pick(
        [name for name in tensors if name in split_keys],
        [name for name in arrays if name in split_keys],
    )._map_columns(lambda name, column: _column_chunks(name, column, parts), num_rows * parts)
    unfolded = data._pick(
        [name for name in tensors if name not in split_keys],
        [name for name in arrays if name not in split_keys],
    )._take(np.repeat(np.arange(num_rows), parts))
    unfolded._adopt(split, split._tensor_names(), split._array_names())
    return unfolded._pick(tensors, arrays)


def _column_chunks(
    name: str, column: torch.Tensor | np.ndarray, parts: int
) -> torch.Tensor | np.ndarray:
    if is_jagged(column):
        raise UnsupportedTensor(name, "a jagged column here", "its rows have no common length")
    if column.ndim < 2:
        raise BatchInconsistent(
            f"unfold_column_chunks: column {name!r} has no second dimension to split"
        )
    rows, width, *rest = column.shape
    if width % parts:
        raise NotDivisible(f"unfold_column_chunks: dim 1 of {name!r}", width, parts)
    return column.reshape((rows * parts, width // parts, *rest))
