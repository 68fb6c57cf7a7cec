"""The view that a dispatched method gets, and what became of it.

Nothing else of this package knows how a view keeps its columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.dispatch.traffic import FieldCounts
from transferqueue.view.dataproto import DataProto
from transferqueue.view.sizes import columns_nbytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.sync_client import Client
    from transferqueue.handle import BatchHandle


def open_view(
    client: Client, handle: BatchHandle, *, reads: Sequence[str], optional: Sequence[str]
) -> DataProto:
    """A view of ``handle``, its declared columns fetched in one request."""
    columns = client.get_columns(handle, fields=list(reads), optional=list(optional))
    view = DataProto.from_single_dict(columns, meta_info=handle.meta_info)
    view._fetched = {name: columns_nbytes([column]) for name, column in columns.items()}
    return view


def written_columns(batch: Any) -> dict[str, Any]:
    """The columns of a batch that a method returned: of a view those that it set itself."""
    tensors = {} if batch.batch is None else dict(batch.batch.items())
    return {**tensors, **batch.non_tensor_batch}


def read_counts(view: DataProto, *, declared: Sequence[str]) -> Mapping[str, FieldCounts]:
    """What the view fetched, by field."""
    return {name: FieldCounts(read_bytes=nbytes) for name, nbytes in view._fetched.items()}
