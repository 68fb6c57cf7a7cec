"""What a batch holds, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAMPLED = 3
"""How many elements of a list are looked at for its type."""


def describe(
    tensors: Mapping[str, str], arrays: Mapping[str, str], meta_info: Mapping[str, Any]
) -> str:
    """Three indented sections; ``tensors`` and ``arrays`` come described."""
    sections = {
        "batch": tensors,
        "non_tensor_batch": arrays,
        "meta_info": {name: type_name(value) for name, value in meta_info.items()},
    }
    return "\n".join(
        line
        for title, entries in sections.items()
        for line in [title, *(f"  {name}: {text}" for name, text in entries.items())]
    )


def describe_tensor(column: Any) -> str:
    """``(4, 2) (torch.int64) cpu``; the class name for what has neither shape nor dtype."""
    if not (hasattr(column, "shape") and hasattr(column, "dtype")):
        return type(column).__name__
    device = f" {column.device}" if hasattr(column, "device") else ""
    return f"{tuple(column.shape)} ({column.dtype}){device}"


def describe_array(column: np.ndarray) -> str:
    """``ndarray(4,) (object)``."""
    return f"ndarray{column.shape} ({column.dtype})"


def type_name(value: Any) -> str:
    """The type, with the types inside of lists (the first three), tuples and dicts (the first)."""
    if isinstance(value, list):
        names = dict.fromkeys(type_name(one) for one in value[:_SAMPLED])
        return f"list[{'|'.join(names) or '...'}]"
    if isinstance(value, tuple):
        return f"tuple({', '.join(type_name(one) for one in value)})"
    if isinstance(value, dict) and value:
        key, inside = next(iter(value.items()))
        return f"dict[{type_name(key)}: {type_name(inside)}]"
    return describe_array(value) if isinstance(value, np.ndarray) else type(value).__name__
