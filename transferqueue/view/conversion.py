"""Columns from dicts and TensorDicts, and back to a TensorDict.

The caller's containers are read, never changed and never kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from transferqueue.errors import BatchInconsistent, InvalidInput
from transferqueue.view.objects import rows_of_objects, unwrapped_if_empty, values_of, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.view.eager import EagerColumns


def split_by_kind(
    data: Mapping[str, Any],
) -> tuple[dict[str, torch.Tensor], dict[str, np.ndarray]]:
    """The tensors and the arrays of one dict. ``ValueError`` for anything else."""
    tensors = {name: column for name, column in data.items() if isinstance(column, torch.Tensor)}
    arrays = {name: column for name, column in data.items() if isinstance(column, np.ndarray)}
    for name, column in data.items():
        if name not in tensors and name not in arrays:
            raise InvalidInput(
                f"column {name!r} must be a tensor or an array, got {type(column).__name__}; "
                f"pass lists as non_tensors of from_dict()"
            )
    return tensors, arrays


def batch_of_tensors(tensors: Mapping[str, Any], num_batch_dims: int) -> TensorDict | None:
    """A TensorDict whose batch size is the tensors' common first dims; ``None`` without tensors."""
    if num_batch_dims < 1:
        raise BatchInconsistent(f"num_batch_dims must be at least 1, got {num_batch_dims}")
    if not tensors:
        return None
    sizes = {name: tuple(column.shape[:num_batch_dims]) for name, column in tensors.items()}
    first, *others = sizes
    for name in others:
        if sizes[name] != sizes[first]:
            raise BatchInconsistent(
                f"the first {num_batch_dims} dims are the batch, but {first!r} has "
                f"{sizes[first]} and {name!r} has {sizes[name]}"
            )
    return TensorDict(dict(tensors), batch_size=sizes[first])


def as_arrays(non_tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays as they are; any other sequence becomes a 1-D object array, one element a row."""
    return {name: _as_array(name, column) for name, column in non_tensors.items()}


def _as_array(name: str, column: Any) -> np.ndarray:
    if isinstance(column, np.ndarray):
        return column
    if isinstance(column, str | bytes | dict) or not hasattr(column, "__len__"):
        raise BatchInconsistent(
            f"column {name!r} must be an array or a list with one element a row, got {column!r:.80}"
        )
    return rows_of_objects(column)


def columns_of_tensordict(
    source: TensorDictBase,
) -> tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Any]]:
    """``(batch columns, arrays, meta_info)``: a ``NonTensorStack`` has a value a row and becomes
    an object array, ``NonTensorData`` has one for all and becomes ``meta_info``."""
    batch: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    meta_info: dict[str, Any] = {}
    for name, column in source.items():
        if isinstance(column, NonTensorStack):
            arrays[name] = rows_of_objects(values_of(column))
        elif (
            isinstance(column, NonTensorData) and (empty := unwrapped_if_empty(column)) is not None
        ):
            arrays[name] = empty
        elif isinstance(column, NonTensorData):
            meta_info[name] = column.data
        else:
            batch[name] = column
    return batch, arrays, meta_info


def to_tensordict(data: EagerColumns) -> TensorDict:
    """Tensors as they are, arrays as ``NonTensorStack``, ``meta_info`` as ``NonTensorData``."""
    batch = {} if data.batch is None else dict(data.batch.items())
    arrays = dict(data.non_tensor_batch)
    _refuse_shared_names(batch, arrays, data.meta_info)
    columns = {name: wrapped(column) for name, column in arrays.items()}
    meta = {name: NonTensorData(value) for name, value in data.meta_info.items()}
    has_rows = data.batch is not None or arrays
    return TensorDict(
        {**batch, **columns, **meta},
        batch_size=[len(data)] if has_rows else [],
        device=None if data.batch is None else data.batch.device,
    )


def _refuse_shared_names(*spaces: Mapping[str, Any]) -> None:
    names = [name for space in spaces for name in space]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BatchInconsistent(
            f"{twice} are names of more than one of tensors, arrays and meta_info; a TensorDict "
            f"has one value a name, rename() them first"
        )
