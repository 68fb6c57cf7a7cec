"""Two columns of one name that should hold the same, and in what they differ."""

from __future__ import annotations

import numpy as np
import torch

from transferqueue.errors import BatchInconsistent, ColumnConflict, FieldSpecMismatch
from transferqueue.view.equality import same_array, same_content, same_tensor
from transferqueue.view.jagged import is_jagged


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
