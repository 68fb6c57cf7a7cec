"""The view that a dispatched method gets, and what became of it.

Nothing else of this package knows how a view keeps its columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.dispatch.traffic import FieldCounts
from transferqueue.errors import NotReady, UnknownField, near_names
from transferqueue.reads import FieldOn
from transferqueue.view.lazy_dataproto import LazyDataProto

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from transferqueue.client.sync_client import Client
    from transferqueue.dispatch.shared_reads import SharedReads
    from transferqueue.handle import BatchHandle


def open_view(
    client: Client,
    handle: BatchHandle,
    *,
    reads: Sequence[str],
    optional: Sequence[str],
    kind: type[LazyDataProto] = LazyDataProto,
    shared: SharedReads | None = None,
    beside: Sequence[BatchHandle] = (),
) -> LazyDataProto:
    """A view of ``handle``, its declared columns fetched in one request; with ``shared`` by one
    rank for all that open the same part, unless some are read on to a device: those that share
    send memory of the host. ``beside``: other samples, one a row of ``handle``, whose columns are
    the view's too.

    A read that the handle does not list may have been written since it was made; an optional one
    that it does not list is left out. ``FieldsMissing`` counts the rows that lack a read.
    """
    known = {name for one in (handle, *beside) for name in one.fields} if reads or optional else ()
    declared = [*reads, *(name for name in optional if name in known)]
    if not declared:
        return _opened(client, handle, [], kind, beside)
    if shared is None or any(isinstance(name, FieldOn) for name in declared):
        view = _opened_with_late_fields(client, handle, declared, known, kind, beside)
        view.prefetch(declared)
        return view
    try:
        view = _opened_with_late_fields(client, handle, declared, known, kind, beside)
    except BaseException as error:
        shared.stay_out(error)
        raise
    view.settle(shared.fetch(lambda: view.fetched(declared)))
    return view


def _opened_with_late_fields(
    client: Client,
    handle: BatchHandle,
    declared: Sequence[str],
    known: Container[str],
    kind: type[LazyDataProto],
    beside: Sequence[BatchHandle],
) -> LazyDataProto:
    late = [str(name) for name in declared if name not in known]
    if late:
        handle = _with_late_fields(client, handle, late)
    return _opened(client, handle, declared, kind, beside)


def _opened(
    client: Client,
    handle: BatchHandle,
    declared: Sequence[str],
    kind: type[LazyDataProto],
    beside: Sequence[BatchHandle],
) -> LazyDataProto:
    own = [name for name in declared if name in handle.fields]
    view = client.view(handle, reads=own)
    if kind is not LazyDataProto:
        view = kind.over(handle, view.connection, own)
    for other in beside:
        view.union(client.view(other, reads=[name for name in declared if name in other.fields]))
    return view


def _with_late_fields(client: Client, handle: BatchHandle, names: Sequence[str]) -> BatchHandle:
    """The handle with fields that it does not list, if all of its rows have them by now."""
    if not len(handle):
        raise UnknownField(names[0], near_names(names[0], handle.fields), "an empty handle")
    try:
        return client.wait(handle, fields=names, timeout_s=0.0)
    except NotReady:
        pass  # not the error that says which rows lack what, and not to be shown with that one
    client.get_columns(handle, fields=names)  # raises it
    return client.wait(handle, fields=names)  # they have come in just now


def is_of_other_samples(batch: Any, handle: BatchHandle) -> bool:
    """Whether a batch that a method returned is a view of other rows than it was given, with no
    column of its own."""
    if not isinstance(batch, LazyDataProto) or batch.local_fields or not batch.handles:
        return False
    return not any(
        one.partition == handle.partition and np.array_equal(one.uids, handle.uids)
        for one in batch.handles
    )


def written_columns(batch: Any) -> dict[str, Any]:
    """The columns of a batch that a method returned: of a view those that are its own, whether
    the method made the view or set them in the one that it got."""
    tensors: Any = {} if batch.batch is None else batch.batch  # iterating it gives rows
    if isinstance(batch, LazyDataProto):
        return {
            name: batch.non_tensor_batch[name] if name in batch.non_tensor_batch else tensors[name]
            for name in batch.local_fields
        }
    return {**dict(tensors.items()), **batch.non_tensor_batch}


def read_counts(view: LazyDataProto, client: Client) -> dict[str, FieldCounts]:
    """What the view and all made from it have fetched, by stored field."""
    counts = {}
    for name, fetched in view.fetches.items():
        num_bytes = fetched.num_bytes or _object_bytes(client, name, fetched.rows)
        counts[name] = FieldCounts(
            read_bytes=num_bytes,
            untouched_bytes=0 if fetched.is_touched else num_bytes,
            undeclared_bytes=0 if fetched.is_declared else num_bytes,
            calls=1,
        )
    return counts


def _object_bytes(client: Client, field: str, num_rows: int) -> int:
    """Objects have no size in memory that means anything; on the wire this client's rows of the
    field have taken this much on average."""
    totals = client.stats().get(field)
    if not totals or not totals["got_rows"]:
        return 0
    return round(totals["got_bytes"] * num_rows / totals["got_rows"])
