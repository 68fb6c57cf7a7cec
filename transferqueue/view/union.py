"""Union of columns: new ones are added, shared ones must be equal.

Everything is checked before anything is changed, so a conflict leaves both sides as they were.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from transferqueue.errors import (
    BatchInconsistent,
    ColumnConflict,
    FieldSpecMismatch,
    RowCountMismatch,
)
from transferqueue.view.equality import same_array, same_content, same_tensor
from transferqueue.view.jagged import is_jagged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import TensorDict

    from transferqueue.view.eager import EagerColumns


def union_tensor_dict(tensor_dict1: TensorDict, tensor_dict2: TensorDict) -> TensorDict:
    """Add the columns of the second to the first, in place, and return the first.

    Ours: NaN equals NaN, a dtype difference is refused, and a conflict changes nothing.
    """
    check_same_rows(tuple(tensor_dict1.batch_size), tuple(tensor_dict2.batch_size))
    names = list(tensor_dict2.keys())
    for name in names:
        if name in tensor_dict1.keys():  # noqa: SIM118
            check_same_column(name, tensor_dict1.get(name), tensor_dict2.get(name))
    for name in names:
        if name not in tensor_dict1.keys():  # noqa: SIM118
            tensor_dict1.set(name, tensor_dict2.get(name))
    return tensor_dict1


def union_numpy_dict(
    tensor_dict1: dict[str, np.ndarray], tensor_dict2: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Add the columns of the second to the first, in place, and return the first.

    Ours: tensors inside compare by content, and a conflict changes nothing.
    """
    for name in tensor_dict2.keys() & tensor_dict1.keys():
        check_same_column(name, tensor_dict1[name], tensor_dict2[name])
    tensor_dict1.update(
        {name: column for name, column in tensor_dict2.items() if name not in tensor_dict1}
    )
    return tensor_dict1


def new_columns(mine: EagerColumns, other: EagerColumns) -> tuple[list[str], list[str]]:
    """Names of the tensors and of the arrays that only ``other`` has. Those of both are equal, or
    this raises."""
    my_tensors, my_arrays = mine._tensor_names(), mine._array_names()
    tensors = _only_new(other._tensor_names(), my_tensors, partial(mine._check_same_tensor, other))
    arrays = _only_new(other._array_names(), my_arrays, partial(mine._check_same_array, other))
    for name in {*tensors} & {*my_arrays} | {*arrays} & {*my_tensors}:
        raise BatchInconsistent(
            f"union: {name!r} is a tensor on one side and an array on the other; rename() one"
        )
    return tensors, arrays


def _only_new(
    names: Sequence[str], mine: Sequence[str], check_same: Callable[[str], None]
) -> list[str]:
    for name in names:
        if name in mine:
            check_same(name)
    return [name for name in names if name not in mine]


def check_same_rows(mine: tuple[int, ...], theirs: tuple[int, ...]) -> None:
    """``RowCountMismatch`` with both sizes, and the ``repeat`` that was forgotten if it is one."""
    if mine == theirs:
        return
    few, many = sorted([mine[0] if mine else 0, theirs[0] if theirs else 0])
    side = "first" if mine and mine[0] == few else "second"
    hint = f"repeat({many // few}) the {side} one before" if few and many % few == 0 else ""
    raise RowCountMismatch("union", mine[0] if mine else 0, theirs[0] if theirs else 0, hint)


def check_same_column(name: str, mine: object, theirs: object) -> None:
    """Raise what tells best why the two columns are not the same."""
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        if not same_tensor(mine, theirs):
            raise _tensors_differ(name, mine, theirs)
    elif isinstance(mine, np.ndarray) and isinstance(theirs, np.ndarray):
        if not same_array(mine, theirs):
            raise _arrays_differ(name, mine, theirs)
    elif type(mine) is not type(theirs):
        raise BatchInconsistent(
            f"column {name!r} is a {type(mine).__name__} on one side and a "
            f"{type(theirs).__name__} on the other"
        )
    elif not same_content(mine, theirs):
        raise ColumnConflict(name, _short(mine), _short(theirs))


def _tensors_differ(name: str, mine: torch.Tensor, theirs: torch.Tensor) -> Exception:
    specs = [f"{column.dtype} {tuple(column.shape)}" for column in (mine, theirs)]
    if mine.dtype != theirs.dtype or is_jagged(mine) != is_jagged(theirs):
        return FieldSpecMismatch(name, specs[0], specs[1], "union takes no cast, convert one side")
    if is_jagged(mine) or mine.shape != theirs.shape:
        return ColumnConflict(name, *specs)
    rows = [i for i in range(len(mine)) if not same_tensor(mine[i], theirs[i])]
    return _rows_differ(name, rows, len(mine), mine[rows[0]], theirs[rows[0]])


def _arrays_differ(name: str, mine: np.ndarray, theirs: np.ndarray) -> Exception:
    specs = [f"{column.dtype} {column.shape}" for column in (mine, theirs)]
    if mine.dtype != theirs.dtype:
        return FieldSpecMismatch(name, specs[0], specs[1], "union takes no cast, convert one side")
    if mine.shape != theirs.shape:
        return ColumnConflict(name, *specs)
    pairs = zip(mine, theirs, strict=True)
    rows = [i for i, (a, b) in enumerate(pairs) if not same_array(_boxed(a), _boxed(b))]
    return _rows_differ(name, rows, len(mine), mine[rows[0]], theirs[rows[0]])


def _boxed(value: object) -> np.ndarray:
    """A row of an array as an array; ``same_array`` then judges it as it judged the column."""
    if isinstance(value, np.ndarray):
        return value
    return np.fromiter([value], dtype=object, count=1)


def _rows_differ(
    name: str, rows: list[int], num_rows: int, mine: object, theirs: object
) -> ColumnConflict:
    where = f"{len(rows)} of {num_rows} rows differ, the first is row {rows[0]}"
    return ColumnConflict(name, _short(mine), _short(theirs), where)


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:120]
