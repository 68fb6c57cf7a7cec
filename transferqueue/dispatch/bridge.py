"""A declared method on the worker's side: fetch what it reads, run it, put what it writes.

Knows no framework: whoever runs workers calls `Bridge.open`, then the method, then `Bridge.store`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transferqueue.dispatch.join import StageReply
from transferqueue.dispatch.opening import open_view, read_counts
from transferqueue.dispatch.outputs import PADDING_KEY, check, first_rows, take_apart
from transferqueue.dispatch.telling import tell
from transferqueue.dispatch.traffic import FieldCounts, Traffic
from transferqueue.meta import encode_meta
from transferqueue.view.lazy_dataproto import LazyDataProto
from transferqueue.view.sizes import columns_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.client.sync_client import Client
    from transferqueue.dispatch.declaration import Declaration
    from transferqueue.dispatch.outputs import Returned
    from transferqueue.dispatch.shared_reads import SharedReads
    from transferqueue.dispatch.split import HandlePart
    from transferqueue.handle import BatchHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """One declared method of one rank."""

    client: Client
    declaration: Declaration
    role: str
    method: str
    rank: int
    traffic: Traffic
    view_kind: type[LazyDataProto] = LazyDataProto
    shared: SharedReads | None = None
    """The ranks that fetch declared reads together, if any."""

    def open(self, part: HandlePart) -> LazyDataProto:
        """The view that the method gets.

        ``FieldsMissing`` when a declared read is not there for all rows. With padding its
        ``meta_info`` says how many of the last rows are not to be counted.
        """
        view = open_view(
            self.client,
            part.handle,
            reads=self.declaration.reads,
            optional=self.declaration.optional,
            kind=self.view_kind,
            shared=self.shared,
            beside=part.beside,
        )
        if part.num_padding:
            view.meta_info[PADDING_KEY] = part.num_padding
        return view

    def store(self, part: HandlePart, view: LazyDataProto, output: Any) -> StageReply:
        """Check what the method returned, and put its columns if this is the rank that stores.

        ``UndeclaredWrite``, ``WriteMissing``, ``WrongRowCount``, or what a put raises: then
        nothing of this rank is stored. What ranks return that do not store is not looked at, but
        for its values.
        """
        returned = take_apart(output, self.declaration, part)
        if returned.meta:
            encode_meta(returned.meta)  # refuses what no handle carries, while nothing is stored
        counts = read_counts(view, self.client)
        stored = self._put(part, returned, counts) if part.stores else None
        if counts:
            self.traffic.add(self.role, self.method, counts)
        tell(self.client, self.traffic)
        reply = StageReply(
            num_rows=len(part.own),
            meta=returned.meta,
            value=returned.value,
            is_batch=returned.is_batch,
        )
        if stored is None:
            return reply
        if part.as_new:
            return replace(reply, made=stored)
        return replace(reply, fields={name: stored.fields[name] for name in returned.columns})

    def run(self, part: HandlePart, method: Callable[[LazyDataProto], Any]) -> StageReply:
        """`open`, the method, `store`."""
        view = self.open(part)
        return self.store(part, view, method(view))

    def _put(
        self, part: HandlePart, returned: Returned, counts: dict[str, FieldCounts]
    ) -> BatchHandle | None:
        """The samples with what was stored; ``None`` where that is nothing."""
        if not returned.columns and not self.declaration.writes:
            return None
        check(
            returned,
            self.declaration,
            method=f"{self.role}.{self.method}",
            rank=self.rank,
            num_rows=len(part.handle),
        )
        own = part.own
        if not returned.columns or (part.as_new and not len(own)):
            return None
        columns = dict(returned.columns)
        if part.num_padding:
            columns = {name: first_rows(column, len(own)) for name, column in columns.items()}
        if part.as_new:
            stored = self.client.put(columns, partition=own.partition)
        else:
            target = own.select([]).without_meta()
            stored = self.client.put(columns, handle=target, overwrite=self.declaration.overwrite)
        for name, column in columns.items():
            counts.setdefault(name, FieldCounts()).add(
                FieldCounts(written_bytes=columns_nbytes([column]), calls=1)
            )
        return stored
