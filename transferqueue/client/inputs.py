"""What a caller may pass, brought into one form. Values are not copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transferqueue.client.weights import VERSION_FIELD
from transferqueue.errors import InvalidInput


def columns_of(columns: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """``(columns, meta_info)`` of a mapping, a TensorDict or a DataProto (verl's or ours)."""
    if hasattr(columns, "non_tensor_batch") and hasattr(columns, "batch"):
        tensors = {} if columns.batch is None else _leaves(columns.batch)
        return {**tensors, **columns.non_tensor_batch}, dict(columns.meta_info)
    if hasattr(columns, "batch_size") and hasattr(columns, "keys"):
        return _leaves(columns), {}
    if isinstance(columns, Mapping):
        return columns, {}
    raise InvalidInput(
        f"put takes a mapping of fields, a TensorDict or a DataProto, got {type(columns).__name__}"
    )


def _leaves(tensordict: Any) -> dict[str, Any]:
    """The entries of a TensorDict. ``get`` keeps a non-tensor entry whole."""
    names = tensordict.keys()  # iterating the TensorDict itself gives rows
    return {name: tensordict.get(name) for name in names}


def names_of(argument: str, names: Sequence[str]) -> list[str]:
    """Field names without repeats. InvalidInput for a bare str."""
    if isinstance(names, str):
        raise InvalidInput(f"{argument} takes a list of names; did you mean [{names!r}]?")
    return list(dict.fromkeys(names))


def state_columns(state_dict: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A state dict as columns of one row."""
    if VERSION_FIELD in state_dict:
        raise InvalidInput(f"a state dict must not have a tensor named {VERSION_FIELD!r}")
    columns: dict[str, Any] = {}
    for name, tensor in state_dict.items():
        if not hasattr(tensor, "unsqueeze"):
            raise InvalidInput(
                f"publish takes tensors, {name!r} is a {type(tensor).__name__}; "
                f"put other values as fields"
            )
        columns[name] = tensor.detach().unsqueeze(0)
    columns[VERSION_FIELD] = np.array([version], dtype=np.int64)
    return columns
