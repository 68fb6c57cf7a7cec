"""Columns of plain Python objects: as object arrays, and as tensordict wraps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tensordict import NonTensorData, NonTensorStack

from transferqueue.view.equality import same_content

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


def rows_of_objects(values: Collection[object]) -> np.ndarray:
    """A 1-D object array with one value a row, also when they are lists or arrays of one length."""
    return np.fromiter(values, dtype=object, count=len(values))


def wrapped(column: np.ndarray) -> Any:
    """An array as a column of a TensorDict. tensordict 0.10 knows no stack of 0 rows, so an empty
    array stands for itself; ``unwrapped_if_empty`` finds it again."""
    return stack_of(column) if len(column) else NonTensorData(column, batch_size=[0])


def unwrapped_if_empty(column: NonTensorData) -> np.ndarray | None:
    """The empty array of ``wrapped``, or ``None``."""
    array = column.data
    is_one = isinstance(array, np.ndarray) and array.shape[:1] == (0,) == tuple(column.batch_size)
    return array if is_one else None


def stack_of(values: Iterable[object]) -> NonTensorStack:
    """A column of a TensorDict with one value a row."""
    stack: NonTensorStack = NonTensorStack.from_list([NonTensorData(value) for value in values])
    return stack


def values_of(column: Any) -> list[Any]:
    """The value of each row."""
    if isinstance(column, NonTensorData):
        return [column.data] * int(column.batch_size[0])
    return [cell.data if isinstance(cell, NonTensorData) else cell.tolist() for cell in column]


def cat_rows(parts: Sequence[Any]) -> Any:
    """All rows. One value for all stays that; where parts disagree each row keeps its own
    (tensordict 0.10 gives all rows the first part's)."""
    if all(_is_one_value(part, parts[0]) for part in parts):
        rows = sum(part.batch_size[0] for part in parts)
        return NonTensorData(parts[0].data, batch_size=[rows])
    return stack_of(value for part in parts for value in values_of(part))


def _is_one_value(part: Any, first: Any) -> bool:
    both = isinstance(part, NonTensorData) and isinstance(first, NonTensorData)
    return both and same_content(part.data, first.data)
