"""Union of columns: new ones are added, shared ones must be equal.

Everything is checked before anything is changed, so a conflict leaves both sides as they were.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from transferqueue.errors import BatchInconsistent, RowCountMismatch
from transferqueue.view.conflicts import check_same_column

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
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
