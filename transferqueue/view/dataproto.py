"""``DataProto``: a batch of tensor columns, object columns and ``meta_info``.

The container that verl's training loop is written against, with verl 0.9.1's API and semantics;
"ours" in a docstring says where they differ. Rows are aligned over all columns.

Methods here check their arguments, read column names, lengths and ``meta_info``, and leave the
columns to the primitives of ``eager``, which a subclass overrides to keep them elsewhere. Every
operation keeps the type, and every result has a ``meta_info`` dict of its own (ours: verl shares
one among all chunks, slices and selections, so that writing to one writes to all).
"""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from transferqueue.errors import BatchInconsistent, NotDivisible, NothingToConcat
from transferqueue.html import described_html
from transferqueue.rows import checked_count
from transferqueue.view import conversion, folding, minibatches, rows
from transferqueue.view import serialization as wire
from transferqueue.view.auto_padding import DataProtoConfig
from transferqueue.view.consistency import check_consistent
from transferqueue.view.description import describe
from transferqueue.view.eager import EagerColumns
from transferqueue.view.equality import same_content
from transferqueue.view.meta_info import concatenated, united
from transferqueue.view.names import as_names, known_names, renaming
from transferqueue.view.union import check_same_rows, new_columns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from os import PathLike

    from tensordict import TensorDict, TensorDictBase

    Keys = Collection[str] | str | None
    Rows = list[int] | list[bool] | np.ndarray | torch.Tensor

_GIB = 1024**3


class DataProto(EagerColumns):
    """A batch. Invariant: one batch dimension, as long in every column.

    ``batch``: the tensor columns, or ``None``. ``non_tensor_batch``: arrays, their dim 0 the
    batch. ``meta_info``: anything about the whole of it. All three are the caller's objects, not
    copies, as in verl; assign to them freely and call ``check_consistency`` after.
    """

    def __init__(
        self,
        batch: TensorDict | None = None,
        non_tensor_batch: dict[str, np.ndarray] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        self.batch = batch
        self.non_tensor_batch = {} if non_tensor_batch is None else non_tensor_batch
        self.meta_info = {} if meta_info is None else meta_info
        self.check_consistency()

    def check_consistency(self) -> None:
        """``BatchInconsistent`` (``AssertionError``) unless the columns are a batch.

        Ours: without a ``batch`` the arrays are checked against one another.
        """
        check_consistent(self.batch, self.non_tensor_batch)

    # ---- making one

    @classmethod
    def from_single_dict(
        cls,
        data: Mapping[str, torch.Tensor | np.ndarray],
        meta_info: dict[str, Any] | None = None,
        auto_padding: bool = False,  # noqa: FBT001, FBT002 - verl's signature
    ) -> Self:
        """Tensors become ``batch``, arrays ``non_tensor_batch``; ``ValueError`` for others."""
        tensors, arrays = conversion.split_by_kind(data)
        return cls.from_dict(tensors, arrays, meta_info, auto_padding=auto_padding)

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, torch.Tensor] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,  # noqa: FBT001, FBT002 - verl's signature
    ) -> Self:
        """Tensors whose dim 0 is the batch, and arrays or lists with one element a row.

        Ours: no dict given is changed or kept, and a list of lists is a 1-D object array also
        when the lists happen to have one length.
        """
        if not isinstance(non_tensors, dict | None):
            raise BatchInconsistent(f"non_tensors must be a dict, got {non_tensors!r:.80}")
        return cls(
            batch=conversion.batch_of_tensors(tensors or {}, num_batch_dims),
            non_tensor_batch=conversion.as_arrays(non_tensors or {}),
            meta_info={
                **(meta_info or {}),
                **({DataProtoConfig.auto_padding_key: True} if auto_padding else {}),
            },
        )

    @classmethod
    def from_tensordict(
        cls,
        tensor_dict: TensorDictBase,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
    ) -> Self:
        """Tensors become ``batch``, ``NonTensorStack`` object arrays, ``NonTensorData`` meta_info.

        Ours: nothing given is changed, a nested TensorDict is kept, the device too, an object
        array is one-dimensional, and no ``batch`` is made where there is no tensor.
        """
        tensors, arrays, meta = conversion.columns_of_tensordict(tensor_dict)
        batch = conversion.batch_of_tensors(tensors, num_batch_dims)
        if batch is not None and tensor_dict.device is not None:
            batch = batch.to(tensor_dict.device)
        return cls(batch=batch, non_tensor_batch=arrays, meta_info={**(meta_info or {}), **meta})

    @classmethod
    def from_verl(cls, data: Any) -> Self:
        """A ``verl.protocol.DataProto`` as one of ours: same tensors and arrays, own containers."""
        for name in ("batch", "non_tensor_batch", "meta_info"):
            if not hasattr(data, name):
                raise TypeError(f"from_verl takes verl's DataProto, got {type(data).__name__}")
        batch = None if data.batch is None else data.batch.copy()
        return cls(batch, dict(data.non_tensor_batch or {}), dict(data.meta_info or {}))

    def to_verl(self) -> Any:
        """The same as a ``verl.protocol.DataProto``: same tensors and arrays, own containers.
        ``ImportError`` without verl."""
        from verl.protocol import DataProto as VerlDataProto

        batch = None if self.batch is None else self.batch.copy()
        return VerlDataProto(batch, dict(self.non_tensor_batch), dict(self.meta_info))

    def to_tensordict(self) -> TensorDict:
        """One TensorDict: arrays as ``NonTensorStack``, meta_info as ``NonTensorData``.

        A name used twice is a ``BatchInconsistent`` (``AssertionError``). Ours: works on 0 rows
        and without tensors.
        """
        return conversion.to_tensordict(self)

    # ---- looking at it

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self)} rows\n{self.get_data_info()}"

    def _repr_html_(self) -> str:
        return described_html(repr(self))

    def __eq__(self, other: object) -> bool:
        """Equal content, NaN included. Ours: verl's raises as soon as there is a column."""
        if not isinstance(other, DataProto):
            return NotImplemented
        mine, theirs = (
            (None if one.batch is None else len(one), dict(one._columns()), one.meta_info)
            for one in (self, other)
        )
        return same_content(mine, theirs)

    __hash__ = None  # type: ignore[assignment]

    def get_data_info(self) -> str:
        """Names with shapes, dtypes and devices; types of ``meta_info``."""
        tensors, arrays = self._describe_columns()
        return describe(tensors, arrays, self.meta_info)

    def print_size(self, prefix: str = "") -> None:
        """Print GiB of tensors and of arrays. Ours: what object columns refer to is counted."""
        tensors, arrays = self._sizes_bytes()
        message = (
            f"Size of tensordict: {tensors / _GIB} GB, size of non_tensor_batch: {arrays / _GIB} GB"
        )
        sys.stdout.write(f"{prefix}, {message}\n" if prefix else f"{message}\n")

    # ---- rows

    def __getitem__(self, item: Any) -> Any:
        """A slice: views. A list, array or tensor of rows or a mask: copies. An int: one
        ``DataProtoItem``, ``IndexError`` past either end, so that iteration works.

        Anything else is a ``TypeError``. Ours: ``True`` is no row number.
        """
        if isinstance(item, slice):
            return self.slice(item.start, item.stop, item.step)
        if isinstance(item, list | np.ndarray | torch.Tensor):
            return self.select_idxs(item)
        if isinstance(item, int | np.integer) and not isinstance(item, bool):
            return self._row(rows.as_row_number(item, len(self)))
        raise TypeError(f"rows are picked by int, slice, list, array or tensor, not {item!r:.80}")

    def slice(
        self, start: int | None = None, end: int | None = None, step: int | None = None
    ) -> Self:
        """Rows ``[start:end:step]`` as views; bounds clamp. A negative step is a ``ValueError``."""
        return self._take(rows.as_row_slice(start, end, step, len(self)))

    def select_idxs(self, idxs: Rows) -> Self:
        """Copies of the rows named: ints may repeat and count from the end, or a bool mask.

        ``IndexError`` for a mask of another length, floats, two dimensions, rows out of range.
        Ours: floats in a list are refused as well, and every int dtype but uint8 works.
        """
        return self._take(rows.as_row_index(idxs, len(self)))

    def reorder(self, indices: Rows) -> None:
        """Replace the rows by those named, in place. Ours: takes lists and arrays too."""
        self._assign(self._take(rows.as_row_index(indices, len(self))))

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:  # noqa: FBT001, FBT002
        """Every row ``repeat_times`` times, ``a a b b`` interleaved, else ``a b a b``; 0 gives an
        empty batch. Ours: jagged columns work and the device is kept."""
        times = checked_count(repeat_times, "repeat_times", low=0)
        if not interleave and times:
            return self._cat([self] * times, dict(self.meta_info))
        return self._take(np.repeat(np.arange(len(self)), times))

    def sample_level_repeat(
        self, repeat_times: list[int] | tuple[int, ...] | np.ndarray | torch.Tensor
    ) -> Self:
        """Row ``i`` ``repeat_times[i]`` times. ``AssertionError`` unless it is one int a row."""
        return self._take(rows.repeated_by_row(len(self), repeat_times))

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Append ``padding_size`` copies of row 0 for ``"first"``, else of the last row, in place.
        ``IndexError`` without a row to copy."""
        if padding_size == 0:
            return
        row = rows.as_row_number(0 if padding_candidate == "first" else -1, len(self))
        size = checked_count(padding_size, "padding_size", low=0)
        self._assign(self._cat([self, self._take(np.full(size, row))], {}))

    def is_padding_enabled(self) -> bool:
        """Whether uneven chunks are allowed, for this batch or for the process."""
        mine = self.meta_info.get(DataProtoConfig.auto_padding_key, False)
        return bool(mine or DataProtoConfig.auto_padding)

    def chunk(self, chunks: int) -> list[Self]:
        """``chunks`` equal runs of rows as views.

        Rows that do not divide are a ``NotDivisible`` (``AssertionError``) unless padding is
        enabled: then sizes are ``torch.chunk``'s with a ``batch``, ``np.array_split``'s without.
        Ours: always ``chunks`` of them (array_split's sizes where torch makes fewer), also of
        0 rows, and each has its own ``meta_info``.
        """
        parts = checked_count(chunks, "chunks", low=1)
        if len(self) % parts and not self.is_padding_enabled():
            hint = "pad_dataproto_to_divisor() first, or set DataProtoConfig.auto_padding = True"
            raise NotDivisible("chunk", len(self), parts, hint)
        as_torch = rows.ceil_bounds(len(self), parts) if self._has_batch else None
        return self._cut(as_torch or rows.even_bounds(len(self), parts))

    def split(self, split_size: int) -> list[Self]:
        """Runs of ``split_size`` rows as views; the last may be short. Below 1: ``ValueError``
        (ours: also for negative sizes, for which verl returns no rows at all)."""
        size = checked_count(split_size, "split_size", low=1)
        return self._cut([*range(0, len(self), size), len(self)])

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """All rows of all parts, in order, as the most derived type among them.

        ``meta_info`` must agree (``MetaConflict``, an ``AssertionError``), but ``metrics`` are
        collected to lists and ``None`` is skipped. Ours: parts with other columns raise, a
        metric that a part lacks is ``None``, and times under ``timing`` may differ: the longer
        stays. An empty list raises ``NothingToConcat`` (``IndexError``).
        """
        parts = list(data)
        if not parts:
            raise NothingToConcat
        for part in parts:
            if not isinstance(part, DataProto):
                raise TypeError(f"concat takes DataProtos, got {type(part).__name__}")
        kind = type(parts[0])
        for part in parts:
            kind = type(part) if issubclass(type(part), kind) else kind
        return kind._cat(parts, concatenated(part.meta_info for part in parts))

    def unfold_column_chunks(self, n_split: int, split_keys: Keys = None) -> Self:
        """Columns in ``split_keys`` are cut along dim 1 into ``n_split`` rows; others repeat.

        ``NotDivisible`` (``AssertionError``) where dim 1 does not divide. Ours: works with arrays
        when ``split_keys`` is None. Names that are no column are ignored, as in verl.
        """
        return folding.unfold_column_chunks(self, n_split, as_names(split_keys) or [])

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: dict[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Mini-batches by torch's DataLoader, ``epochs`` times; one seed, one order.

        ``NotDivisible`` (``AssertionError``) for a short last one. Ours: columns keep dtype and
        layout (verl makes objects of all arrays and fails on jagged ones), ``batch`` may be None.
        """
        return minibatches.iterate(self, mini_batch_size, epochs, seed, dataloader_kwargs)

    # ---- columns

    def select(
        self,
        batch_keys: Keys = None,
        non_tensor_batch_keys: Keys = None,
        meta_info_keys: Keys = None,
        deepcopy: bool = False,  # noqa: FBT001, FBT002 - verl's signature
    ) -> Self:
        """These columns and ``meta_info`` keys, shared not copied; ``None`` is all, ``[]`` none.

        Ours: a missing name raises ``UnknownColumn`` (``KeyError``) in all three, containers are
        the result's own, and ``deepcopy`` copies the tensors too.
        """
        tensors, arrays, meta = self._known(batch_keys, non_tensor_batch_keys, meta_info_keys)
        selected = self._pick(tensors, [name for name in self._array_names() if name in arrays])
        if meta_info_keys is not None:
            selected.meta_info = {k: value for k, value in self.meta_info.items() if k in meta}
        return copy.deepcopy(selected) if deepcopy else selected

    def pop(
        self,
        batch_keys: Keys = None,
        non_tensor_batch_keys: Keys = None,
        meta_info_keys: Keys = None,
    ) -> Self:
        """Move these columns and ``meta_info`` keys to a new batch; ``None`` is none.

        A missing name raises ``UnknownColumn`` (``AssertionError``). Ours: then nothing has moved,
        and the type is kept.
        """
        wanted = (batch_keys or [], non_tensor_batch_keys or [], meta_info_keys or [])
        tensors, arrays, meta = self._known(*wanted, once=True)
        popped = self._pop_columns(tensors, arrays)
        popped.meta_info = {key: self.meta_info.pop(key) for key in meta}
        return popped

    def rename(self, old_keys: list[str] | str, new_keys: list[str] | str) -> Self:
        """Rename columns in place, all at once, so that two may swap names; returns self.

        Ours: several at once work, arrays are renamed as well, a name that is taken raises
        ``NameTaken`` (``ValueError``). A missing one is a ``KeyError``.
        """
        tensors, arrays = self._tensor_names(), self._array_names()
        new_names = renaming(old_keys, new_keys, [*tensors, *arrays])
        self._rename_columns(
            {name: new_names[name] for name in tensors if name in new_names},
            {name: new_names[name] for name in arrays if name in new_names},
        )
        return self

    def union(self, other: DataProto) -> Self:
        """Add the columns and ``meta_info`` of ``other``, in place; returns self.

        What both have must be equal; else, or with another number of rows, an ``AssertionError``.
        Ours: equal content is equal (NaN; tensors and arrays inside objects and ``meta_info``), a
        dtype difference is refused, either side may lack tensors, times under ``timing`` may
        differ, and a failure leaves both as they were.
        """
        if not isinstance(other, DataProto):
            raise TypeError(f"union takes a DataProto, got {type(other).__name__}")
        if self._has_rows() and other._has_rows():
            check_same_rows((len(self),), (len(other),))
        meta = united(self.meta_info, other.meta_info)
        tensors, arrays = new_columns(self, other)
        self._adopt(other, tensors, arrays)
        self.meta_info.update(meta)
        return self

    def _has_rows(self) -> bool:
        """Whether there is anything that says how many rows there are."""
        return self._has_batch or bool(self._array_names())

    def _known(
        self, tensors: Keys, arrays: Keys, meta: Keys, *, once: bool = False
    ) -> tuple[list[str], list[str], list[str]]:
        return (
            known_names(tensors, self._tensor_names(), "batch", once=once),
            known_names(arrays, self._array_names(), "non_tensor_batch", once=once),
            known_names(meta, self.meta_info, "meta_info", once=once),
        )

    # ---- keeping it

    def save_to_disk(self, filepath: str | PathLike[str]) -> None:
        """Pickle to a file."""
        wire.save(self, filepath)

    @staticmethod
    def load_from_disk(filepath: str | PathLike[str]) -> DataProto:
        """Unpickle from a file that you trust; ``TypeError`` if it holds something else."""
        data = wire.load(filepath)
        if not isinstance(data, DataProto):
            raise TypeError(f"{filepath} holds a {type(data).__name__}, not a DataProto")
        return data
