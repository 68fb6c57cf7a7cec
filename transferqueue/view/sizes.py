"""How many bytes a batch holds, counting what object columns really refer to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDictBase

from transferqueue.view import jagged

if TYPE_CHECKING:
    from collections.abc import Iterable


def columns_nbytes(columns: Iterable[Any]) -> int:
    """Bytes of several columns. An object that several rows or columns share counts once."""
    seen: set[int] = set()
    return sum(_nbytes(column, seen) for column in columns)


def _nbytes(value: Any, seen: set[int]) -> int:
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        cells = jagged.packed(value).values() if value.layout == torch.jagged else value
        return cells.numel() * cells.element_size()
    own = value.nbytes if isinstance(value, np.ndarray) else sys.getsizeof(value)
    return own + sum(_nbytes(one, seen) for one in _inside(value))


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, np.ndarray):
        return value.flat if value.dtype == object else ()
    if isinstance(value, TensorDictBase):
        return value.values()  # type: ignore[no-any-return]
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return ()
