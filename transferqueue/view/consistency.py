"""What makes columns a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tensordict import TensorDictBase

from transferqueue.errors import BatchInconsistent

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_consistent(batch: Any, arrays: Mapping[str, Any]) -> None:
    """One batch dimension, as long in every column; see ``DataProto.check_consistency``."""
    check_arrays(arrays, None if batch is None else _num_rows(batch))


def check_arrays(arrays: Mapping[str, Any], num_rows: int | None) -> None:
    """Arrays alone, of ``num_rows``; ``None``: of as many as the first has."""
    for name, column in arrays.items():
        if not isinstance(column, np.ndarray) or column.ndim == 0:
            raise BatchInconsistent(
                f"non_tensor_batch[{name!r}] must be an array with one cell a row, got "
                f"{type(column).__name__} {column!r:.80}"
            )
        num_rows = len(column) if num_rows is None else num_rows
        if len(column) != num_rows:
            raise BatchInconsistent(
                f"non_tensor_batch[{name!r}] has {len(column)} rows, the others have {num_rows}"
            )


def _num_rows(batch: Any) -> int:
    if not isinstance(batch, TensorDictBase):
        raise TypeError(f"batch must be a TensorDict, got {type(batch).__name__}")
    if len(batch.batch_size) != 1:
        raise BatchInconsistent(
            f"batch must have one batch dim, got batch_size={tuple(batch.batch_size)}"
        )
    return int(batch.batch_size[0])
