"""Bringing columns here: which requests it takes, and what becomes of the answers.

``Fetch`` decides and waits for nothing; ``fetch_now`` and ``fetch_soon`` do the waiting.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from transferqueue.errors import DeviceMissing
from transferqueue.fields import FieldKind
from transferqueue.view import jagged
from transferqueue.view.jagged import is_jagged
from transferqueue.view.lazy_sources import Stored
from transferqueue.view.lazy_values import cat_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transferqueue.fields import FieldSpec
    from transferqueue.handle import BatchHandle
    from transferqueue.view.devices import Place
    from transferqueue.view.lazy_column import LazyColumn
    from transferqueue.view.lazy_ledger import FetchLedger
    from transferqueue.view.lazy_samples import Samples


@dataclass(slots=True)
class Request:
    """Fields of the same samples, on one device: one get, which asks all their shards at once."""

    samples: Samples
    place: Place | None = None
    """Where tensors are to land; ``None``: where those of the client do."""
    has_tensors: bool = False
    specs: dict[str, FieldSpec] = field(default_factory=dict)
    columns: dict[str, list[LazyColumn]] = field(default_factory=dict)
    """By stored field; a field that two columns show is asked for once."""

    def takes(self, column: LazyColumn, source: Stored) -> bool:
        """Whether the column can come with it. Arrays come with tensors of any device."""
        is_tensor = source.spec.kind is FieldKind.TENSOR
        is_alike = self.place == column.device or not (is_tensor and self.has_tensors)
        return is_alike and self.samples.same_as(source.samples)

    def add(self, column: LazyColumn, source: Stored) -> None:
        if source.spec.kind is FieldKind.TENSOR:
            self.place, self.has_tensors = column.device, True
        self.specs[source.field] = source.spec
        self.columns.setdefault(source.field, []).append(column)

    @property
    def handle(self) -> BatchHandle:
        return self.samples.handle(self.specs)

    @property
    def fields(self) -> list[str]:
        return list(self.specs)

    @property
    def where(self) -> dict[str, Any]:
        """The device, as an argument of `Client.get_columns`."""
        return {} if self.place is None else {"device": str(self.place)}

    @property
    def by_way_of_host(self) -> dict[str, Any]:
        """For a device that only torch knows: torch moves the tensors there when they are here."""
        return {"device": "cpu"}


class Fetch:
    """Columns on their way here, with all that were declared together with one of them."""

    def __init__(self, columns: Iterable[LazyColumn]) -> None:
        self._columns: dict[int, LazyColumn] = {}
        self._declared: set[int] = set()
        self._groups: set[int] = set()
        self.requests: list[Request] = []
        for column in columns:
            self._include(column, is_declared=False)

    def _include(self, column: LazyColumn, *, is_declared: bool) -> None:
        """A column, what it is put together from, and what comes with it."""
        source = column.source
        if column.value is not None or source is None or id(column) in self._columns:
            return
        is_declared = is_declared or column.group is not None
        self._columns[id(column)] = column
        if is_declared:
            self._declared.add(id(column))
        if isinstance(source, Stored):
            self._request_for(column, source).add(column, source)
        for part in source.needs():
            self._include(part, is_declared=is_declared)
        group = column.group
        if group is not None and id(group) not in self._groups:
            self._groups.add(id(group))
            for other in group.columns:
                self._include(other, is_declared=True)

    def _request_for(self, column: LazyColumn, source: Stored) -> Request:
        for request in self.requests:
            if request.takes(column, source):
                return request
        self.requests.append(Request(source.samples))
        return self.requests[-1]

    def accept(
        self, answers: Sequence[Mapping[str, Any]], ledger: FetchLedger, *, is_declared: bool
    ) -> None:
        """Settle every column. ``answers``: one a request, field -> column."""
        ledger.num_requests += len(self.requests)
        for request, answer in zip(self.requests, answers, strict=True):
            for name, columns in request.columns.items():
                value = _sharing_offsets(answer[name], request.samples.offsets)
                source = columns[0].source
                assert isinstance(source, Stored)
                declared = is_declared or any(id(c) in self._declared for c in columns)
                ledger.count(source, value, is_declared=declared)
                columns[0].settle(value)
                for column in columns[1:]:
                    column.settle(cat_values([value]))  # an edit of one must not show in another
        for column in self._columns.values():
            _build(column)
        for column in self._columns.values():
            if column.source is not None:
                column.source.release()


def _build(column: LazyColumn) -> None:
    parts = () if column.is_here or column.source is None else column.source.needs()
    if parts and column.source is not None:
        for part in parts:
            _build(part)
        column.settle(column.source.build())


def _sharing_offsets(value: Any, known: list[torch.Tensor]) -> Any:
    """A jagged column over offsets that an earlier one of the same rows has, where they agree."""
    if not (isinstance(value, torch.Tensor) and is_jagged(value)):
        return value
    column: jagged.Jagged = value
    for offsets in known:
        if torch.equal(offsets, column.offsets()):
            return jagged.build(column.values(), offsets, jagged.ragged_dim(column))
    known.append(column.offsets())
    return column


def fetch_now(
    columns: Iterable[LazyColumn], ledger: FetchLedger, *, is_declared: bool = False
) -> None:
    """Fetch what is not here, one request for each set of samples, and wait for it.

    ``is_declared``: somebody asked for just these, they were not merely touched. Raises what
    `Client.get_columns` does; then no column has changed.
    """
    fetch = Fetch(columns)
    answers = [_got_now(request) for request in fetch.requests]
    fetch.accept(answers, ledger, is_declared=is_declared)


async def fetch_soon(columns: Iterable[LazyColumn], ledger: FetchLedger) -> None:
    """As ``fetch_now`` of declared columns, awaited, all requests at once."""
    fetch = Fetch(columns)
    answers = await asyncio.gather(*map(_got_soon, fetch.requests))
    fetch.accept(answers, ledger, is_declared=True)


def _got_now(request: Request) -> Mapping[str, Any]:
    get = request.samples.connection.client().get_columns
    try:
        return get(request.handle, fields=request.fields, **request.where)
    except DeviceMissing:
        if not isinstance(request.place, torch.device):
            raise
        return get(request.handle, fields=request.fields, **request.by_way_of_host)


async def _got_soon(request: Request) -> Mapping[str, Any]:
    get = request.samples.connection.get_columns
    try:
        return await get(request.handle, request.fields, **request.where)
    except DeviceMissing:
        if not isinstance(request.place, torch.device):
            raise
        return await get(request.handle, request.fields, **request.by_way_of_host)
