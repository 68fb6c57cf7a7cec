"""One row of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from transferqueue.view import serialization

if TYPE_CHECKING:
    from tensordict import TensorDict


@dataclass(eq=False)
class DataProtoItem:
    """One row: what ``DataProto[i]`` and iteration give.

    Its tensors are views of the batch's; its dicts are its own. Mutable, as callers written
    against verl expect. A pickle has this row alone, never the batch that it was taken from.
    """

    batch: TensorDict | None = None
    """The row's tensors, without the batch dimension."""
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    """The row's cell of each array."""
    meta_info: dict[str, Any] = field(default_factory=dict)
    """The batch's."""

    def __copy__(self) -> Self:
        """The same columns, not a copy of them."""
        return replace(self)

    def __getstate__(self) -> dict[str, Any]:
        batch = self.batch
        return {
            "batch": None if batch is None else serialization.serialize_tensordict(batch),
            "non_tensor_batch": serialization.without_parents(dict(self.non_tensor_batch)),
            "meta_info": serialization.without_parents(self.meta_info),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        encoded = state["batch"]
        self.batch = None if encoded is None else serialization.adopt_tensordict(encoded)
        self.non_tensor_batch = state["non_tensor_batch"]
        self.meta_info = state["meta_info"]
