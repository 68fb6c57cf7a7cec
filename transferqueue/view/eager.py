"""The primitives under ``DataProto``: everything that touches a column, and nothing that checks.

``DataProto`` is written over these few operations. A batch that keeps its columns elsewhere
overrides them (and ``batch``/``non_tensor_batch``, which must answer names and lengths cheaply);
here the columns are in memory. Callers have checked names and rows. What makes a batch makes one
of ``type(self)`` through ``_new``, with a ``meta_info`` dict of its own.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any, Self

from tensordict import TensorDict

from transferqueue.view import columns
from transferqueue.view import serialization as wire
from transferqueue.view.conflicts import check_same_column
from transferqueue.view.description import describe_array, describe_tensor
from transferqueue.view.item import DataProtoItem
from transferqueue.view.sizes import columns_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import torch

    from transferqueue.view.rows import RowIndex, RowSlice


class EagerColumns:
    """Columns in memory. Rows given as slices become views, rows given by index copies."""

    batch: Any
    non_tensor_batch: dict[str, np.ndarray]
    meta_info: dict[str, Any]

    def _new(
        self, batch: Any, non_tensor_batch: dict[str, np.ndarray], meta_info: dict[str, Any]
    ) -> Self:
        kind: Any = type(self)
        made: Self = kind(batch=batch, non_tensor_batch=non_tensor_batch, meta_info=meta_info)
        return made

    # ---- reading

    def __len__(self) -> int:
        """Rows of ``batch`` (it has a length without columns too), else of the arrays, else 0."""
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return next((len(column) for column in self.non_tensor_batch.values()), 0)

    @property
    def _has_batch(self) -> bool:
        return self.batch is not None

    def _tensor_names(self) -> list[str]:
        return [] if self.batch is None else list(self.batch.keys())

    def _array_names(self) -> list[str]:
        return list(self.non_tensor_batch)

    def _columns(self) -> Iterator[tuple[str, Any]]:
        """Every column with its name, tensors first."""
        if self.batch is not None:
            yield from self.batch.items()
        yield from self.non_tensor_batch.items()

    def _describe_columns(self) -> tuple[dict[str, str], dict[str, str]]:
        """Tensors and arrays in words, by name."""
        batch = {} if self.batch is None else self.batch
        return (
            {name: describe_tensor(column) for name, column in batch.items()},
            {name: describe_array(column) for name, column in self.non_tensor_batch.items()},
        )

    def _sizes_bytes(self) -> tuple[int, int]:
        """Bytes of the tensors and of the arrays."""
        tensors = () if self.batch is None else self.batch.values()
        return columns_nbytes(tensors), columns_nbytes(self.non_tensor_batch.values())

    def _check_same_tensor(self, other: EagerColumns, name: str) -> None:
        """Raise unless the tensor ``name`` of both holds the same."""
        check_same_column(name, self.batch.get(name), other.batch.get(name))

    def _check_same_array(self, other: EagerColumns, name: str) -> None:
        """Raise unless the array ``name`` of both holds the same."""
        check_same_column(name, self.non_tensor_batch[name], other.non_tensor_batch[name])

    # ---- other rows

    def _take(self, rows: RowSlice | RowIndex) -> Self:
        take = columns.slice_rows if isinstance(rows, slice) else columns.take_rows
        return self._new(
            None if self.batch is None else take(self.batch, rows),  # type: ignore[arg-type]
            {name: column[rows] for name, column in self.non_tensor_batch.items()},
            dict(self.meta_info),
        )

    def _cut(self, bounds: Sequence[int]) -> list[Self]:
        """Consecutive runs of rows between ``bounds``, as views."""
        runs = [slice(*pair) for pair in itertools.pairwise(bounds)]
        batches = [None] * len(runs) if self.batch is None else columns.cut_rows(self.batch, bounds)
        return [
            self._new(
                batch,
                {name: column[run] for name, column in self.non_tensor_batch.items()},
                dict(self.meta_info),
            )
            for batch, run in zip(batches, runs, strict=True)
        ]

    def _row(self, number: int) -> DataProtoItem:
        return DataProtoItem(
            None if self.batch is None else columns.row(self.batch, number),
            {name: column[number] for name, column in self.non_tensor_batch.items()},
            dict(self.meta_info),
        )

    @classmethod
    def _cat(cls, parts: Sequence[EagerColumns], meta_info: dict[str, Any]) -> Self:
        """All rows of parts that may still differ in their columns: ``ColumnsDiffer``."""
        columns.check_same_names([part._tensor_names() for part in parts])
        columns.check_same_names([part._array_names() for part in parts])
        batches = [part.batch for part in parts]
        if any(batch is not None for batch in batches):
            batches = [part._batch_or_empty() for part in parts]
        arrays = {
            name: columns.cat_arrays(name, [part.non_tensor_batch[name] for part in parts])
            for name in parts[0].non_tensor_batch
        }
        batch = None if batches[0] is None else columns.cat_rows(batches)
        kind: Any = cls
        made: Self = kind(batch=batch, non_tensor_batch=arrays, meta_info=meta_info)
        return made

    def _batch_or_empty(self) -> Any:
        if self.batch is not None:
            return self.batch
        num_rows = next((len(column) for column in self.non_tensor_batch.values()), 0)
        return TensorDict({}, batch_size=[num_rows])

    def _assign(self, other: EagerColumns) -> None:
        """Take over the rows and columns of ``other``."""
        self.batch, self.non_tensor_batch = other.batch, other.non_tensor_batch

    # ---- other columns

    def _pick(self, tensors: Sequence[str], arrays: Sequence[str]) -> Self:
        """These columns, shared; the length stays."""
        return self._new(
            None if self.batch is None else self.batch.select(*tensors),
            {name: self.non_tensor_batch[name] for name in arrays},
            dict(self.meta_info),
        )

    def _pop_columns(self, tensors: Sequence[str], arrays: Sequence[str]) -> Self:
        """Move columns to a new batch, which is ``None`` if no tensor moves; no ``meta_info``."""
        batch = self.batch.select(*tensors) if tensors else None
        for name in tensors:
            self._open_batch().pop(name)
        return self._new(batch, {name: self.non_tensor_batch.pop(name) for name in arrays}, {})

    def _rename_columns(self, tensors: Mapping[str, str], arrays: Mapping[str, str]) -> None:
        """Rename all at once, in place."""
        moved = {new: self._open_batch().pop(old) for old, new in tensors.items()}
        for name, column in moved.items():
            self.batch.set(name, column)
        self.non_tensor_batch.update(
            {new: self.non_tensor_batch.pop(old) for old, new in arrays.items()}
        )

    def _adopt(self, other: EagerColumns, tensors: Sequence[str], arrays: Sequence[str]) -> None:
        """Add these columns of ``other``, shared, in place."""
        if self.batch is None and other.batch is not None:
            self.batch = TensorDict({}, batch_size=other.batch.batch_size)
        for name in tensors:
            self._open_batch().set(name, other.batch.get(name))
        self.non_tensor_batch.update({name: other.non_tensor_batch[name] for name in arrays})

    def _open_batch(self) -> Any:
        """The batch to be changed: a locked one (shared or mapped memory) is replaced by a copy of
        its container, which shares the tensors."""
        if self.batch.is_locked:
            self.batch = self.batch.copy()
        return self.batch

    def _map_columns(self, function: Callable[[str, Any], Any], num_rows: int) -> Self:
        """Every column replaced by ``function(name, column)``, of ``num_rows`` rows."""
        batch = self.batch
        return self._new(
            None if batch is None else columns.map_columns(batch, function, num_rows),
            {name: function(name, column) for name, column in self.non_tensor_batch.items()},
            dict(self.meta_info),
        )

    def to(self, device: torch.device | str | int) -> Self:
        """Move the tensors, in place; returns self."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    # ---- copies and pickles

    def __copy__(self) -> Self:
        """Same columns, own containers."""
        return self._pick(self._tensor_names(), self._array_names())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Own columns: tensors are cloned as they are, not taken through a pickle."""
        batch = self.batch
        if batch is not None:  # column by column: tensordict's own clone cannot do uint16
            batch = columns.map_columns(
                batch, lambda _, column: column.clone(), columns.num_rows(batch)
            )
        return self._new(
            batch,
            copy.deepcopy(self.non_tensor_batch, memo),
            copy.deepcopy(self.meta_info, memo),
        )

    def __getstate__(self) -> Any:
        """Plain arrays of exactly these rows; see ``serialization``.

        Ours: one format, in which every batch works, and never the storage behind a slice.
        """
        return {
            "batch": None if self.batch is None else wire.serialize_tensordict(self.batch),
            "non_tensor_batch": wire.without_parents(self.non_tensor_batch),
            "meta_info": wire.without_parents(self.meta_info),
        }

    def __setstate__(self, state: Any) -> None:
        encoded = state["batch"]
        self.batch = None if encoded is None else wire.adopt_tensordict(encoded)
        self.non_tensor_batch = state["non_tensor_batch"]
        self.meta_info = state["meta_info"]
