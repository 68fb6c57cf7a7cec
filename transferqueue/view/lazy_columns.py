"""The primitives under ``LazyDataProto``: those of ``eager``, on columns that need not be here.

A column is a `LazyColumn` in a `LazyDict`. An operation rewrites where columns come from; none but
``_map_columns`` and a comparison of two different columns fetches.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from tensordict import TensorDict

from transferqueue.errors import BatchInconsistent
from transferqueue.view import lazy_rows, lazy_state
from transferqueue.view.columns import map_columns
from transferqueue.view.conflicts import check_same_column
from transferqueue.view.consistency import check_arrays, check_consistent
from transferqueue.view.devices import place_of
from transferqueue.view.item import DataProtoItem
from transferqueue.view.lazy_column import LazyColumn, Regroup, RowMemo
from transferqueue.view.lazy_description import describe_columns, held_bytes
from transferqueue.view.lazy_dict import (
    LazyDict,
    UnmadeBatch,
    columns_of_batch,
    columns_of_dict,
    lazy_batch,
)
from transferqueue.view.lazy_fetch import fetch_now
from transferqueue.view.lazy_ledger import FetchLedger
from transferqueue.view.lazy_origin import Unfolding
from transferqueue.view.lazy_sources import RowOf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from transferqueue.view.eager import EagerColumns
    from transferqueue.view.lazy_samples import Samples
    from transferqueue.view.rows import RowIndex, RowSlice

    Columns = Mapping[str, LazyColumn]


class LazyColumns(Unfolding):
    """Columns that are fetched when they are read."""

    @property
    def batch(self) -> Any:
        """The tensor columns, or ``None``. Made at the first touch."""
        if isinstance(self._batch, UnmadeBatch):
            self._batch = self._batch.made()
        return self._batch

    @batch.setter
    def batch(self, batch: Any) -> None:
        self._batch = batch

    @classmethod
    def _made(
        cls,
        tensors: Columns | None,
        arrays: Columns,
        meta_info: dict[str, Any],
        *,
        num_rows: int,
        samples: tuple[Samples, ...],
        ledger: FetchLedger,
        device: torch.device | None = None,
    ) -> Self:
        made = object.__new__(cls)
        made._samples, made._ledger, made.meta_info = samples, ledger, meta_info
        made._batch = None if tensors is None else lazy_batch(tensors, [num_rows], device, ledger)
        made.non_tensor_batch = LazyDict(arrays, ledger)
        return made

    def _like(
        self, tensors: Columns, arrays: Columns, num_rows: int, samples: tuple[Samples, ...]
    ) -> Self:
        """Other columns or rows of this batch."""
        return self._made(
            None if self._batch is None else tensors,
            arrays,
            dict(self.meta_info),
            num_rows=num_rows,
            samples=samples,
            ledger=self._ledger,
            device=self._device,
        )

    def __len__(self) -> int:
        """Without any column the number of samples, where an eager batch says 0."""
        if self._batch is not None:
            return int(self._batch.batch_size[0])
        counts = (column.num_rows for column in self._array_columns().values())
        return next(counts, len(self._samples[0]) if self._samples else 0)

    def check_consistency(self) -> None:
        """As of an eager batch. What is stored is as long as its samples."""
        tensors, arrays = self._batch, self._array_columns()
        if isinstance(getattr(tensors, "_tensordict", None), LazyDict):
            tensors = TensorDict({}, batch_size=tensors.batch_size)
        elif isinstance(tensors, UnmadeBatch):
            tensors = TensorDict({}, batch_size=list(tensors.batch_size))
        check_consistent(tensors, {name: one.value for name, one in arrays.items() if one.is_here})
        for name, column in arrays.items():
            if not column.is_here and column.num_rows != len(self):
                raise BatchInconsistent(
                    f"non_tensor_batch[{name!r}] has {column.num_rows} rows, the others have "
                    f"{len(self)}"
                )

    # ---- columns, without touching them

    @property
    def _device(self) -> torch.device | None:
        return None if self._batch is None else self._batch.device

    @property
    def _has_batch(self) -> bool:
        return self._batch is not None

    def _tensor_names(self) -> list[str]:
        return list(self._tensor_columns())

    def _tensor_columns(self) -> dict[str, LazyColumn]:
        return columns_of_batch(self._batch)

    def _array_columns(self) -> dict[str, LazyColumn]:
        return columns_of_dict(self.non_tensor_batch)

    def _all_columns(self) -> dict[str, LazyColumn]:
        """Tensors first. A name that both have is the tensor's."""
        tensors = self._tensor_columns()
        arrays = self._array_columns().items()
        return tensors | {name: column for name, column in arrays if name not in tensors}

    def _open(self) -> tuple[LazyDict, LazyDict]:
        """The containers of tensors and of arrays, to be changed without touching a column: what
        the caller assigned is wrapped, a locked batch is replaced."""
        batch = self._batch
        tensors: Any = None
        if isinstance(batch, UnmadeBatch):
            tensors = batch.columns
        elif batch is not None:
            tensors = batch._tensordict
            if batch.is_locked or not isinstance(tensors, LazyDict):
                columns = self._tensor_columns()
                self._batch = lazy_batch(columns, batch.batch_size, batch.device, self._ledger)
                tensors = self._batch.columns
        arrays: Any = self.non_tensor_batch
        if not isinstance(arrays, LazyDict):
            arrays = self.non_tensor_batch = LazyDict(self._array_columns(), self._ledger)
        return LazyDict({}, self._ledger) if batch is None else tensors, arrays

    # ---- reading

    def _columns(self) -> Iterator[tuple[str, Any]]:
        fetch_now(self._all_columns().values(), self._ledger)
        return super()._columns()

    def _describe_columns(self) -> tuple[dict[str, str], dict[str, str]]:
        return describe_columns(self._tensor_columns()), describe_columns(self._array_columns())

    def _sizes_bytes(self) -> tuple[int, int]:
        """Of what is here."""
        return held_bytes(self._tensor_columns()), held_bytes(self._array_columns())

    def _check_same_tensor(self, other: EagerColumns, name: str) -> None:
        theirs = columns_of_batch(_kept_batch(other))[name]
        self._check_same(name, self._tensor_columns()[name], theirs)

    def _check_same_array(self, other: EagerColumns, name: str) -> None:
        theirs = columns_of_dict(other.non_tensor_batch)[name]
        self._check_same(name, self._array_columns()[name], theirs)

    def _check_same(self, name: str, mine: LazyColumn, theirs: LazyColumn) -> None:
        """Two names of one stored field are the same without a look at it."""
        if not mine.is_known_to_equal(theirs):
            fetch_now([mine, theirs], self._ledger)
            check_same_column(name, mine.value, theirs.value)

    # ---- other rows

    def _check_assigned(self) -> None:
        """Refuse arrays that the caller put here and that are none, or not as long as the rest:
        an eager batch does when it makes the result."""
        arrays = self._array_columns()
        assigned = {name: one.value for name, one in arrays.items() if one.source is None}
        if assigned:
            check_arrays(assigned, None if self._batch is None else len(self))

    def _take(self, rows: RowSlice | RowIndex) -> Self:
        self._check_assigned()
        memo, num_rows = RowMemo(rows), len(self)
        return self._like(
            lazy_rows.take(self._tensor_columns(), memo, num_rows),
            lazy_rows.take(self._array_columns(), memo, num_rows),
            memo.num_rows,
            self._samples_of(memo),
        )

    def _cut(self, bounds: Sequence[int]) -> list[Self]:
        self._check_assigned()
        memos = [RowMemo(run) for run in lazy_rows.runs_between(bounds)]
        tensors = lazy_rows.cut(self._tensor_columns(), bounds, memos)
        arrays = lazy_rows.cut(self._array_columns(), bounds, memos)
        return [
            self._like(mine, theirs, memo.num_rows, self._samples_of(memo))
            for mine, theirs, memo in zip(tensors, arrays, memos, strict=True)
        ]

    def _samples_of(self, memo: RowMemo) -> tuple[Samples, ...]:
        return tuple(memo.samples(samples) for samples in self._samples)

    def _row(self, number: int) -> DataProtoItem:
        def row(columns: Columns) -> dict[str, LazyColumn]:
            return {name: LazyColumn(RowOf(column, number)) for name, column in columns.items()}

        batch = None
        if self._batch is not None:
            kept = lazy_batch(row(self._tensor_columns()), [], self._device, self._ledger)
            batch = kept.made()
        arrays = LazyDict(row(self._array_columns()), self._ledger)
        return DataProtoItem(batch, arrays, dict(self.meta_info))

    @classmethod
    def _cat(cls, parts: Sequence[Any], meta_info: dict[str, Any]) -> Self:
        """All rows, of views and eager batches alike."""
        for part in parts:
            if isinstance(part, LazyColumns):
                part._check_assigned()
            else:
                part.check_consistency()
        sizes = [len(part) for part in parts]
        join = lazy_rows.Join(sizes)
        batches = [_kept_batch(part) for part in parts]
        tensors = join.columns([columns_of_batch(batch) for batch in batches])
        arrays = join.columns([columns_of_dict(part.non_tensor_batch) for part in parts])
        devices = {batch.device for batch in batches if batch is not None}
        ledgers = [part._ledger for part in parts if isinstance(part, LazyColumns)]
        return cls._made(
            None if all(batch is None for batch in batches) else tensors,
            arrays,
            meta_info,
            num_rows=sum(sizes),
            samples=_joined_samples(parts, join),
            ledger=ledgers[0] if ledgers else FetchLedger(),
            device=devices.pop() if len(devices) == 1 else None,
        )

    def _assign(self, other: EagerColumns) -> None:
        self._batch, self.non_tensor_batch = _kept_batch(other), other.non_tensor_batch
        self._samples = other._samples if isinstance(other, LazyColumns) else ()

    # ---- other columns

    def _pick(self, tensors: Sequence[str], arrays: Sequence[str]) -> Self:
        all_tensors, all_arrays = self._tensor_columns(), self._array_columns()
        return self._like(
            {name: all_tensors[name] for name in tensors},
            {name: all_arrays[name] for name in arrays},
            len(self),
            self._samples,
        )

    def _pop_columns(self, tensors: Sequence[str], arrays: Sequence[str]) -> Self:
        num_rows, (mine, my_arrays) = len(self), self._open()
        return self._made(
            {name: mine.pop_column(name) for name in tensors} if tensors else None,
            {name: my_arrays.pop_column(name) for name in arrays},
            {},
            num_rows=num_rows,
            samples=self._samples if tensors or arrays else (),  # of no columns, it has no rows
            ledger=self._ledger,
            device=self._device,
        )

    def _rename_columns(self, tensors: Mapping[str, str], arrays: Mapping[str, str]) -> None:
        for mine, names in zip(self._open(), (tensors, arrays), strict=True):
            moved = {new: mine.pop_column(old) for old, new in names.items()}
            for name, column in moved.items():
                mine.put_column(name, column)

    def _adopt(self, other: EagerColumns, tensors: Sequence[str], arrays: Sequence[str]) -> None:
        their_batch = _kept_batch(other)
        if self._batch is None and their_batch is not None:
            self._batch = lazy_batch({}, their_batch.batch_size, None, self._ledger)
        mine, my_arrays = self._open()
        theirs = columns_of_batch(their_batch)
        their_arrays = columns_of_dict(other.non_tensor_batch)
        device, regroup = self._device, Regroup()
        for name in tensors:
            column = theirs[name]
            mine.put_column(name, column if device is None else column.on(device, regroup))
        for name in arrays:
            my_arrays.put_column(name, their_arrays[name])
        if isinstance(other, LazyColumns):
            new = (one for one in other._samples if not any(map(one.same_as, self._samples)))
            self._samples += tuple(new)

    def _map_columns(self, function: Callable[[str, Any], Any], num_rows: int) -> Self:
        """Of every column, fetched. Whether rows are samples still is not known, so the result has
        no handle."""
        fetch_now(self._all_columns().values(), self._ledger)
        batch = self.batch
        return self._new(
            None if batch is None else map_columns(batch, function, num_rows),
            {name: function(name, column) for name, column in self.non_tensor_batch.items()},
            dict(self.meta_info),
        )

    def to(self, device: torch.device | str | int) -> Self:
        """Move the tensors that are here, in place, and have the others come there at once, by the
        best way (`Client.links`); returns self. On to a device that torch does not know, as
        `transferqueue.devices` names it, only those come that are not here."""
        if self._batch is not None:
            place, regroup = place_of(device), Regroup()
            columns = {
                name: column.on(place, regroup) for name, column in self._tensor_columns().items()
            }
            if isinstance(self.non_tensor_batch, LazyDict):  # arrays come with the moved tensors
                arrays = {n: one.apart(regroup) for n, one in self._array_columns().items()}
                self.non_tensor_batch = LazyDict(arrays, self._ledger)
            known = place if isinstance(place, torch.device) else None
            self._batch = lazy_batch(columns, self._batch.batch_size, known, self._ledger)
        return self

    # ---- copies and pickles

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Own columns; what is not here is not fetched for it."""

        rows = RowMemo(slice(0, len(self), 1))
        tensors, arrays = self._tensor_columns(), self._array_columns()
        for column in [*tensors.values(), *arrays.values()]:
            value = column.value
            if value is not None:
                is_array = isinstance(value, np.ndarray)
                rows.give(column, copy.deepcopy(value, memo) if is_array else value.clone())
        made = self._like(
            {name: rows.column(column) for name, column in tensors.items()},
            {name: rows.column(column) for name, column in arrays.items()},
            len(self),
            self._samples_of(rows),
        )
        made.meta_info = copy.deepcopy(self.meta_info, memo)
        return made

    def __getstate__(self) -> Any:
        """The samples, and of columns only those that are local or were edited."""
        batch = self._batch
        return lazy_state.dump(
            lazy_state.ViewState(
                tensors=self._tensor_columns(),
                arrays=self._array_columns(),
                batch_size=None if batch is None else tuple(batch.batch_size),
                device=self._device,
                samples=self._samples,
                meta_info=self.meta_info,
            )
        )

    def __setstate__(self, state: Any) -> None:
        view = lazy_state.load(state)
        ledger = self._ledger = FetchLedger()
        self._samples, self.meta_info, self._batch = view.samples, view.meta_info, None
        if view.batch_size is not None:
            self._batch = lazy_batch(view.tensors, view.batch_size, view.device, ledger)
        self.non_tensor_batch = LazyDict(view.arrays, ledger)


def _kept_batch(part: EagerColumns) -> Any:
    """The ``batch`` of any batch. That of a view may not be made yet, and stays so."""
    return part._batch if isinstance(part, LazyColumns) else part.batch


def _joined_samples(parts: Sequence[Any], join: lazy_rows.Join) -> tuple[Samples, ...]:
    """What the rows of all parts stand for, as far as one handle can say it."""
    if not all(isinstance(part, LazyColumns) for part in parts):
        return ()
    if len({len(part._samples) for part in parts}) != 1:
        return ()
    joined = zip(*(part._samples for part in parts), strict=True)
    return tuple(join.samples(one) for one in joined if one[0].are_of_one_table(one))
