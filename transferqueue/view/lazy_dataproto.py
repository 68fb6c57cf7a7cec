"""``LazyDataProto``: a batch whose columns come at first touch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from tensordict import TensorDict

from transferqueue.errors import DuplicateRows, InvalidInput
from transferqueue.view.dataproto import DataProto
from transferqueue.view.derived import check_derivable
from transferqueue.view.equality import same_content
from transferqueue.view.lazy_column import LazyColumn
from transferqueue.view.lazy_columns import LazyColumns
from transferqueue.view.lazy_fetch import fetch_now, fetch_soon
from transferqueue.view.lazy_ledger import FetchLedger, FieldFetches
from transferqueue.view.lazy_origin import Origin
from transferqueue.view.lazy_sources import Computed, Stored
from transferqueue.view.lazy_values import take_value
from transferqueue.view.names import known_names
from transferqueue.view.padded import Side, padded_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    import torch

    from transferqueue.handle import BatchHandle
    from transferqueue.view.dataproto import Keys
    from transferqueue.view.derived import Derivations
    from transferqueue.view.lazy_connection import Connection
    from transferqueue.view.lazy_samples import Samples


class LazyDataProto(LazyColumns, DataProto):
    """A ``DataProto`` over a handle and a client. Made by ``client.view(handle)``.

    Every operation of ``DataProto`` works and keeps the type; those on rows and names (``chunk
    split slice select_idxs [] reorder repeat sample_level_repeat concat union select pop rename
    padding``) move no bytes. ``batch`` is a TensorDict and ``non_tensor_batch`` a dict; both fetch
    a column when it is read, together with those that were declared with it, and keep it.

    What is assigned is local until ``push()``. An edit in place of a column that was fetched shows
    in every later read here and in what is made of this view, and to no other reader of the
    samples. A pickle carries it for tensors; an array that was edited must be assigned to travel.
    A ``batch`` that is assigned as a whole must have its rows in the view's order.
    """

    def __init__(
        self,
        batch: TensorDict | None = None,
        non_tensor_batch: dict[str, np.ndarray] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        """A view of no handle, all of its columns local. See `over` for the other ones."""
        self._samples, self._ledger = (), FetchLedger()
        super().__init__(batch, non_tensor_batch, meta_info)

    @classmethod
    def over(cls, handle: BatchHandle, connection: Connection, reads: Sequence[str] = ()) -> Self:
        """The view of a handle. ``reads``: columns that come together at the first touch of one,
        those made by ``tq.on`` on to their device.

        Raises ``UnknownColumn`` for a read that the handle does not have.
        """
        names = known_names(reads, handle.fields, "the handle", once=False) if reads else ()
        view = object.__new__(cls)
        view._origin = Origin(handle, connection, names)
        view._ledger = FetchLedger()
        return view

    # ---- the handle, and what is not in it

    @property
    def handle(self) -> BatchHandle:
        """The samples that the rows are, their stored columns (those that derived ones follow from
        too), and ``meta_info``.

        After a union with other samples (responses united with repeated prompts) it is of the
        first ones of which none stands for two rows; ``handles`` has them all. ``InvalidInput``
        where rows are no samples of one partition, or ``meta_info`` cannot go with a handle.
        """
        return self._handle_of(self._home(), self.meta_info)

    @property
    def handles(self) -> list[BatchHandle]:
        """One for each set of samples that columns come from, without ``meta_info``."""
        return [self._handle_of(samples) for samples in self._samples]

    @property
    def beside(self) -> list[BatchHandle]:
        """The handles of the other samples that columns come from, those of ``handle`` aside."""
        home = self._home()
        others = [self._handle_of(one) for one in self._samples if not one.same_as(home)]
        return [handle for handle in others if handle.fields]

    def _handle_of(
        self, samples: Samples, meta_info: Mapping[str, Any] | None = None
    ) -> BatchHandle:
        stored = {
            name: source
            for name, source in _stored_fields(self._all_columns()).items()
            if source.samples.same_as(samples)
        }
        return samples.handle(
            {name: source.spec for name, source in stored.items()},
            {name: source.field for name, source in stored.items()},
            meta_info,
        )

    def _home(self) -> Samples:
        """The samples that ``push`` writes to."""
        if not self._samples:
            raise InvalidInput(
                "this view has no handle: its rows are not samples of one partition; "
                "client.put(view, partition=…) stores them as new samples"
            )
        first = self._samples[0]
        if len(first) != len(self):
            raise InvalidInput(
                f"this view has no handle: a batch of {len(self)} rows was assigned to a view of "
                f"{len(first)} samples; choose rows with select_idxs() or reorder() instead"
            )
        return next((one for one in self._samples if one.are_distinct), first)

    @property
    def connection(self) -> Connection:
        """The way to the service that its handle is of. ``InvalidInput`` where it has no handle."""
        return self._home().connection

    @property
    def local_fields(self) -> list[str]:
        """Columns that are here and nowhere else: what ``push()`` writes."""
        return [name for name, column in self._all_columns().items() if column.is_local]

    # ---- bringing columns here

    def prefetch(self, fields: Keys = None) -> Self:
        """Fetch these columns (all by default) in one request; returns self."""
        fetch_now(self._chosen(fields).values(), self._ledger, is_declared=True)
        return self

    def fetched(self, fields: Keys = None) -> dict[str, Any]:
        """The values of these columns (all by default) by name, fetched in one request."""
        self.prefetch(fields)
        return {name: column.value for name, column in self._chosen(fields).items()}

    def settle(self, values: Mapping[str, Any]) -> None:
        """Take values of stored columns that somebody has fetched for the very rows of this view.
        A column that is here already stays as it is. ``UnknownColumn``."""
        for name, column in self._chosen(list(values)).items():
            column.settle(values[name])

    async def fetch(self, fields: Keys = None) -> Self:
        """``prefetch`` to be awaited, for code on an event loop."""
        await fetch_soon(self._chosen(fields).values(), self._ledger)
        return self

    def materialize(self, fields: Keys = None) -> DataProto:
        """An eager ``DataProto`` of these columns (all by default), fetched in one request. It
        shares their memory with this view and needs no service."""
        chosen = self._chosen(fields)
        fetch_now(chosen.values(), self._ledger, is_declared=True)
        picked = self._pick(
            [name for name in self._tensor_names() if name in chosen],
            [name for name in self._array_names() if name in chosen],
        )
        batch = None
        if picked.batch is not None:
            batch = TensorDict({}, batch_size=picked.batch.batch_size, device=picked.batch.device)
            for name, column in picked.batch.items():
                batch.set(name, column)
        return DataProto(batch, dict(picked.non_tensor_batch), picked.meta_info)

    def padded(
        self, name: str, *, value: float = 0, side: str = Side.RIGHT, length: int | None = None
    ) -> torch.Tensor:
        """A ragged column as a rectangle ``[rows, ..., length, ...]``, new at every call.

        ``value`` fills the rest, on the ``side`` ``"left"`` or ``"right"``; ``length`` is the
        longest row's by default. ``InvalidInput`` when a row is longer.
        """
        return padded_column(self, name, value=value, side=side, length=length)

    def derive(self, columns: Derivations) -> Self:
        """Add columns that others determine (see ``derived``), in place; returns self.

        They are computed when they are read, for the rows that the view has then, from what those
        columns hold then. A column may replace the one of its name that it follows from.
        ``InvalidInput`` for another name that is taken, ``UnknownColumn`` for a missing need.
        """
        for name, derivation in columns.items():
            known = self._all_columns()
            check_derivable(name, derivation, known)
            parts = [known[need] for need in derivation.needs]
            column = LazyColumn(Computed(derivation, parts), device=self._device)
            self._open()[0].put_column(name, column)
        return self

    def drop(self, fields: Keys = None) -> Self:
        """Let go of what was fetched (all of it by default), edits included; returns self. It
        comes again at the next touch. Columns that are only here stay."""
        shown = {id(column) for column in self._all_columns().values()}
        rest = list(self._chosen(fields).values())
        while rest:
            column = rest.pop()
            column.forget()
            if isinstance(column.source, Computed):  # what only it is computed from goes as well
                rest += [part for part in column.source.parts if id(part) not in shown]
        return self

    @property
    def fetches(self) -> Mapping[str, FieldFetches]:
        """What this view and all views made from it fetched, by stored field: `report` for
        programs."""
        return self._ledger.fields

    def report(self) -> dict[str, Any]:
        """What this view and all views made from it fetched, by stored field: ``requests``,
        ``fetched`` (rows and bytes), ``undeclared`` (neither in ``reads`` nor prefetched),
        ``untouched`` (bytes of fields that nobody looked at), and sums of bytes. Object columns
        count rows only."""
        return self._ledger.report()

    def _chosen(self, fields: Keys) -> dict[str, LazyColumn]:
        """Columns by name, all of them for ``None``. ``UnknownColumn``."""
        columns = self._all_columns()
        return {n: columns[n] for n in known_names(fields, columns, "the view", once=False)}

    # ---- storing them

    def push(self, fields: Keys = None, *, overwrite: bool = False) -> BatchHandle:
        """Store local columns (all by default) as fields of the samples of ``handle``, and return
        the handle with them. They stay here as well.

        Where one sample stands for several rows (a repeated or padded view) it is stored once;
        ``DuplicateRows`` where those rows differ, so that they would be samples of their own. And
        ``FieldExists`` for a field that is stored already (``overwrite=True`` writes a new
        version); then nothing was stored. A fetched column that was edited in place is written
        when it is named.
        """
        home, target, values = self._to_push(fields)
        if values:
            client = home.connection.client()
            self._pushed(home, client.put(values, handle=target, overwrite=overwrite))
        return self.handle

    async def store(self, fields: Keys = None, *, overwrite: bool = False) -> BatchHandle:
        """``push`` to be awaited, for code on an event loop."""
        home, target, values = self._to_push(fields)
        if values:
            put = home.connection.put(values, target, overwrite=overwrite)
            self._pushed(home, await put)
        return self.handle

    def _to_push(self, fields: Keys) -> tuple[Samples, BatchHandle, dict[str, Any]]:
        """The samples of the rows, each of them once, and its values."""
        home = self._home()
        columns = self._chosen(self.local_fields if fields is None else fields)
        fetch_now(columns.values(), self._ledger)
        values = {name: column.value for name, column in columns.items()}
        if not values or home.are_distinct:
            return home, home.handle({}), values
        _, first, sample_of_row = np.unique(home.uids, return_index=True, return_inverse=True)
        once = {name: take_value(value, first) for name, value in values.items()}
        for name, value in values.items():
            if not same_content(take_value(once[name], sample_of_row), value):
                raise _rows_repeat(home, name)
        return home, home.take(first).handle({}), once

    def _pushed(self, home: Samples, stored: BatchHandle) -> None:
        tensors, arrays = self._open()
        for name, spec in stored.fields.items():
            columns = tensors if name in tensors else arrays
            columns.column(name).become_stored(Stored(home, name, spec))

    # ---- keeping it

    def save_to_disk(self, filepath: str | PathLike[str]) -> None:
        """Pickle to a file, with all columns in it: what is kept must not need the service."""
        self.materialize().save_to_disk(filepath)


def _stored_fields(columns: Mapping[str, LazyColumn]) -> dict[str, Stored]:
    """Stored columns by name; those that only derived ones show, by their name in storage."""
    shown = {n: one.source for n, one in columns.items() if isinstance(one.source, Stored)}
    hidden: dict[str, Stored] = {}
    rest = [column for column in columns.values() if isinstance(column.source, Computed)]
    while rest:
        source = rest.pop().source
        if isinstance(source, Computed):
            rest += source.parts
        elif isinstance(source, Stored):
            hidden.setdefault(source.field, source)
    return hidden | shown


def _rows_repeat(samples: Samples, column: str) -> DuplicateRows:
    distinct, counts = np.unique(samples.uids, return_counts=True)
    return DuplicateRows(len(samples), len(distinct), distinct[counts > 1].tolist(), column)
