"""One row of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict import TensorDict


@dataclass(eq=False)
class DataProtoItem:
    """One row: what ``DataProto[i]`` and iteration give.

    Its tensors are views of the batch's; its dicts are its own. Mutable, as callers written
    against verl expect.
    """

    batch: TensorDict | None = None
    """The row's tensors, without the batch dimension."""
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    """The row's cell of each array."""
    meta_info: dict[str, Any] = field(default_factory=dict)
    """The batch's."""
