"""Columns as a TensorDict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import NonTensorStack, TensorDict

if TYPE_CHECKING:
    from collections.abc import Mapping


def to_tensordict(columns: Mapping[str, Any], num_rows: int) -> TensorDict:
    """``batch_size`` is ``[num_rows]``. Tensors are shared, not copied; what is no tensor becomes
    a `NonTensorStack` of its rows, so that indexing the result indexes it too."""
    tensordict = TensorDict({}, batch_size=[num_rows])
    for name, column in columns.items():
        if isinstance(column, torch.Tensor):
            tensordict.set(name, column)
        elif num_rows:
            tensordict.set(name, NonTensorStack(*column))
    return tensordict
