"""Bytes of batches that are shipped whole, counted as those that go by handle are.

What a rank gets counts as read, what it gives back as written, by the field: so that the reports of
two groups, one of them ``fat``, can be laid side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from transferqueue.dispatch.traffic import FieldCounts
from transferqueue.view import DataProto
from transferqueue.view.lazy_dataproto import LazyDataProto
from transferqueue.view.sizes import columns_nbytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from transferqueue.dispatch import Declaration


def received_counts(batches: Iterable[Any], declaration: Declaration) -> dict[str, FieldCounts]:
    """Field -> counts of what one rank got for a call; values that are no batches count nothing.
    Fields that a method with ``reads`` does not declare are shipped in vain."""
    counts: dict[str, FieldCounts] = {}
    named = {*declaration.reads, *declaration.optional}
    for batch in batches:
        for name, num_bytes in _bytes_by_field(batch).items():
            idle = num_bytes if named and name not in named else 0
            one = FieldCounts(read_bytes=num_bytes, untouched_bytes=idle, calls=1)
            counts.setdefault(name, FieldCounts()).add(one)
    return counts


def returned_counts(answer: Any) -> dict[str, FieldCounts]:
    """Field -> counts of what one rank gave back."""
    return {
        name: FieldCounts(written_bytes=num_bytes, calls=1)
        for name, num_bytes in _bytes_by_field(answer).items()
    }


def _bytes_by_field(batch: Any) -> dict[str, int]:
    """Nothing for what is no batch."""
    return {str(name): columns_nbytes([column]) for name, column in _columns(batch).items()}


def _columns(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, TensorDictBase):
        return dict(batch.items())
    if not isinstance(batch, DataProto) or isinstance(batch, LazyDataProto):
        return {}  # a view holds no columns, and asking for them would fetch them
    tensors = {} if batch.batch is None else dict(batch.batch.items())
    return {**tensors, **batch.non_tensor_batch}
