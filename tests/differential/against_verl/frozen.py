"""Results in a form that compares: bytes, shapes and names. Written apart from the code under
test, so that an error in its notion of equality does not hide itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase


def frozen(value: Any) -> Any:
    """Any result of an operation, as nested tuples and dicts of plain values."""
    if hasattr(value, "non_tensor_batch"):
        return _batch(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, NonTensorStack):
        return ("stack", [frozen(cell.data) for cell in value])
    if isinstance(value, NonTensorData):
        return ("one for all", frozen(value.data))
    if isinstance(value, TensorDictBase):
        return _tensordict(value)
    if isinstance(value, dict):
        return {key: frozen(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (type(value).__name__, [frozen(one) for one in value])
    if dataclasses.is_dataclass(value):
        return (type(value).__name__, frozen(vars(value)))
    return (type(value).__name__, repr(value))


def _batch(value: Any) -> Any:
    return {
        "type": type(value).__name__,
        "batch": None if value.batch is None else _tensordict(value.batch),
        "arrays": frozen(value.non_tensor_batch),
        "meta_info": frozen(value.meta_info),
    }


def _tensordict(value: TensorDictBase) -> Any:
    return {
        "batch_size": tuple(value.batch_size),
        "device": str(value.device),
        "columns": {name: frozen(column) for name, column in value.items()},
    }


def _tensor(value: torch.Tensor) -> Any:
    if value.is_nested:
        rows = [_tensor(row) for row in value.unbind()]
        return ("jagged", str(value.dtype), value.dim(), value._ragged_idx, rows)
    cells = value.detach().flatten().clone(memory_format=torch.contiguous_format)
    return (str(value.dtype), tuple(value.shape), cells.view(torch.uint8).numpy().tobytes())


def _array(value: np.ndarray) -> Any:
    cells = [frozen(cell) for cell in value.flat] if value.dtype == object else value.tobytes()
    return (str(value.dtype), value.shape, cells)


def without_devices(value: Any) -> Any:
    """The same without the batches' devices."""
    if isinstance(value, dict):
        return {key: without_devices(one) for key, one in value.items() if key != "device"}
    if isinstance(value, list):
        return [without_devices(one) for one in value]
    if isinstance(value, tuple):
        return tuple(without_devices(one) for one in value)
    return value
