"""What a caller may pass, brought into one form. Values are not copied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from transferqueue.client.weights import VERSION_FIELD
from transferqueue.coordinator.predicate import Predicate
from transferqueue.coordinator.samplers import Sampler
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
    """Field names without repeats. InvalidInput for a bare str, or what is no name."""
    if isinstance(names, str):
        raise InvalidInput(f"{argument} takes a list of names; did you mean [{names!r}]?")
    known = list(_of_kind(argument, names, Iterable, "a list of names"))
    for name in known:
        _of_kind(argument, name, str, "a list of names, one of them")
    return list(dict.fromkeys(known))


def mapping_of(argument: str, value: Any) -> Mapping[str, Any]:
    """``{}`` for ``None``. InvalidInput for what is no mapping."""
    return {} if value is None else _of_kind(argument, value, Mapping, "a dict")


def plain_sampler(sampler: Any) -> dict[str, Any] | None:
    """A sampler as it goes over the wire. InvalidInput for a class, a name, or anything else."""
    if sampler is None:
        return None
    known: Sampler = _of_kind("sampler", sampler, Sampler, "a sampler such as tq.samplers.Fifo()")
    return known.to_plain()


def plain_predicate(where: Any) -> list[Any] | None:
    """A predicate as it goes over the wire. InvalidInput for a str, or anything else."""
    if where is None:
        return None
    known: Predicate = _of_kind("where", where, Predicate, "a condition such as tq.tag('v') >= 3")
    return known.to_plain()


def seconds_of(timeout_s: Any, default_s: float) -> float:
    """A deadline, ``default_s`` for ``None``. InvalidInput for what is no number of seconds."""
    if timeout_s is None:
        return default_s
    is_number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
    if not is_number or math.isnan(timeout_s) or timeout_s < 0:
        raise InvalidInput(f"timeout_s must be seconds from 0 on, or None, got {timeout_s!r:.80}")
    return float(timeout_s)


def _of_kind(argument: str, value: Any, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        what = repr(value) if isinstance(value, str | type) else f"a {type(value).__name__}"
        raise InvalidInput(f"{argument} takes {expected}, got {what:.80}")
    return value


def state_columns(state_dict: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A state dict as columns of one row."""
    if type(version) is not int:
        raise InvalidInput(f"version must be an int, got {version!r:.80}")
    _of_kind("publish", state_dict, Mapping, "a state dict")
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
