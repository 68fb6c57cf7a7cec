"""Columns as plain arrays: how a ``DataProto`` is pickled, and kept on disk.

A tensor becomes ``(dtype name, shape, uint8 array)`` of exactly its own cells, so a slice never
carries the batch it was cut from, which ``torch.save`` of a view does. The arrays are
ordinary numpy arrays: pickle protocol 5 (Ray, multiprocessing) passes them out of band without a
copy on the sending side. A receiver that was given read-only memory copies, because a worker may
edit its batch in place.

Encoded column, by type and length::

    (dtype, shape, bytes)                             dense
    ("jagged", ragged_dim, values, offsets)           jagged; columns that share offsets still do
    (layout, [(dtype, shape, bytes), ...])            nested, one tensor a row: verl's form
    {"tensordict": (batch_size, device, columns)}     a TensorDict within the TensorDict
    {"object": value}                                 anything else, pickled as it is
"""

from __future__ import annotations

import math
import pickle
from operator import is_
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from transferqueue.errors import InvalidInput, UnsupportedTensor
from transferqueue.view import jagged

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

EncodedTensor: TypeAlias = tuple[str, tuple[int, ...], Any]
"""dtype name, shape, and anything with the buffer protocol."""

EncodedBatch: TypeAlias = tuple[tuple[int, ...], str | None, dict[str, Any]]

_JAGGED_TAG = "jagged"


def serialize_single_tensor(obj: torch.Tensor) -> tuple[str, tuple[int, ...], np.ndarray]:
    """``(dtype name, shape, uint8 array)``. The array is the tensor's own memory where that is
    contiguous and on the CPU. Gradients are left behind."""
    return _encode_tensor("obj", obj)


def _encode_tensor(name: str, obj: torch.Tensor) -> tuple[str, tuple[int, ...], np.ndarray]:
    if obj.layout != torch.strided or obj.is_quantized:
        raise UnsupportedTensor(name, f"a {obj.layout} {obj.dtype} tensor", "make it dense first")
    plain = obj.detach().cpu().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
    cells = plain.contiguous().flatten()
    if cells.numel() < 2:  # counts as contiguous whatever its stride, which bytes do not
        cells = cells.as_strided((cells.numel(),), (1,))
    dtype = str(obj.dtype).removeprefix("torch.")
    return dtype, tuple(obj.shape), cells.view(torch.uint8).numpy()


def deserialize_single_tensor(arr: EncodedTensor) -> torch.Tensor:
    """The tensor, in memory of its own. ``ValueError`` if dtype, shape and bytes do not agree.

    Ours: tensors without cells (0 rows) work.
    """
    return _decode_tensor(arr, always_copy=True)


def _decode_tensor(encoded: EncodedTensor, *, always_copy: bool) -> torch.Tensor:
    name, shape, data = encoded
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidInput(f"{name!r} is not a torch dtype")
    cells = np.frombuffer(data, np.uint8)
    if cells.size != math.prod(shape) * dtype.itemsize:
        raise InvalidInput(f"{name} {tuple(shape)} does not take {cells.size} bytes")
    if not cells.size:
        return torch.empty(tuple(shape), dtype=dtype)
    if always_copy or not cells.flags.writeable:
        cells = cells.copy()
    return torch.from_numpy(cells).view(dtype).view(tuple(shape))


def serialize_tensordict(batch: TensorDictBase) -> EncodedBatch:
    """``(batch size, device or None, {name: encoded column})``. See the module for the columns."""
    shared: dict[int, EncodedTensor] = {}
    columns = {name: _encode_column(name, column, shared) for name, column in batch.items()}
    return tuple(batch.batch_size), None if batch.device is None else str(batch.device), columns


def _encode_column(name: str, column: Any, shared: dict[int, EncodedTensor]) -> Any:
    if jagged.is_jagged(column):
        return _encode_jagged(column, shared)
    if isinstance(column, torch.Tensor):
        return _encode_tensor(name, column)
    if isinstance(column, TensorDict):
        return {"tensordict": serialize_tensordict(column)}
    return {"object": column}


def _encode_jagged(column: jagged.Jagged, shared: dict[int, EncodedTensor]) -> Any:
    if column.layout != torch.jagged:
        rows = [serialize_single_tensor(row) for row in column.unbind()]
        return str(column.layout).removeprefix("torch."), rows
    whole = jagged.packed(column)
    offsets = whole.offsets()
    if id(column.offsets()) not in shared:
        shared[id(column.offsets())] = serialize_single_tensor(offsets)
    values = serialize_single_tensor(whole.values())
    return _JAGGED_TAG, jagged.ragged_dim(whole), values, shared[id(column.offsets())]


def deserialize_tensordict(arr: EncodedBatch) -> TensorDict:
    """What ``serialize_tensordict`` took, in memory of its own.

    Also reads what verl's function of this name wrote. A batch from a GPU goes back to a GPU of
    that number if there is one, else to the CPU.
    """
    return _decode_batch(arr, always_copy=True)


def adopt_tensordict(encoded: EncodedBatch) -> TensorDict:
    """As above, but in the memory given where that may be written to."""
    return _decode_batch(encoded, always_copy=False)


def _decode_batch(encoded: EncodedBatch, *, always_copy: bool) -> TensorDict:
    batch_size, device_name, columns = encoded
    decode = _ColumnDecoder(always_copy=always_copy)
    decoded = {name: decode(column) for name, column in columns.items()}
    return TensorDict(decoded, batch_size=batch_size, device=_device_here(device_name))


def _device_here(name: str | None) -> torch.device | None:
    if name is None:
        return None
    device = torch.device(name)
    here = device.type == "cpu" or (
        device.type == "cuda" and (device.index or 0) < torch.cuda.device_count()
    )
    return device if here else torch.device("cpu")


class _ColumnDecoder:
    """Decodes the columns of one batch; jagged ones that shared offsets share them again."""

    def __init__(self, *, always_copy: bool) -> None:
        self._always_copy = always_copy
        self._offsets: dict[int, torch.Tensor] = {}

    def __call__(self, encoded: Any) -> Any:
        if isinstance(encoded, dict):
            if "object" in encoded:
                return encoded["object"]
            return _decode_batch(encoded["tensordict"], always_copy=self._always_copy)
        by_length: dict[int, Callable[[Any], torch.Tensor]] = {
            2: self._rows,
            3: self._dense,
            4: self._jagged,
        }
        decode = by_length.get(len(encoded))
        if decode is None:
            raise InvalidInput(f"an encoded column has 2, 3 or 4 parts, got {len(encoded)}")
        return decode(encoded)

    def _dense(self, encoded: EncodedTensor) -> torch.Tensor:
        return _decode_tensor(encoded, always_copy=self._always_copy)

    def _jagged(self, encoded: tuple[str, int, EncodedTensor, EncodedTensor]) -> jagged.Jagged:
        _, dim, values, offsets = encoded
        if id(offsets) not in self._offsets:
            self._offsets[id(offsets)] = self._dense(offsets)
        return jagged.build(self._dense(values), self._offsets[id(offsets)], dim)

    def _rows(self, encoded: tuple[str, list[EncodedTensor]]) -> torch.Tensor:
        layout, rows = encoded
        tensors = [self._dense(row) for row in rows]
        return torch.nested.as_nested_tensor(tensors, layout=getattr(torch, layout))


def without_parents(value: Any) -> Any:
    """``value`` with every tensor inside that is part of a larger storage copied out of it.

    Goes through dicts, lists, tuples and object arrays; returns the very value where nothing
    had to be copied. What torch pickles of a view is the storage behind it, all of it.
    """
    return _compact(value, frozenset())


_PLAIN = {str, bytes, int, float, bool, type(None)}


def _compact(value: Any, open_ids: frozenset[int]) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _compact_tensor(value)
    if isinstance(value, TensorDict):
        return adopt_tensordict(serialize_tensordict(value))
    if id(value) in open_ids:  # it contains itself, which pickle can do and a copy cannot
        return value
    if type(value) in {dict, list, tuple}:
        return _compact_container(value, open_ids | {id(value)})
    if isinstance(value, np.ndarray) and value.dtype == object:
        return _compact_array(value, open_ids | {id(value)})
    return value


def _compact_container(value: Any, open_ids: frozenset[int]) -> Any:
    old = list(value.values() if type(value) is dict else value)
    new = [_compact(one, open_ids) for one in old]
    if all(map(is_, old, new)):
        return value
    return dict(zip(value, new, strict=True)) if type(value) is dict else type(value)(new)


def _compact_array(column: np.ndarray, open_ids: frozenset[int]) -> np.ndarray:
    if _PLAIN.issuperset(map(type, column.flat)):  # the usual column of strings, 20 times faster
        return column
    new = [_compact(one, open_ids) for one in column.flat]
    if all(map(is_, column.flat, new)):
        return column
    return np.fromiter(new, dtype=object, count=len(new)).reshape(column.shape)


def _compact_tensor(tensor: torch.Tensor) -> Any:
    if tensor.layout == torch.jagged:
        return _compact_jagged(tensor)
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return tensor
    if tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size():
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _compact_jagged(tensor: jagged.Jagged) -> jagged.Jagged:
    whole = jagged.packed(tensor)
    parts = [whole.values(), whole.offsets()]
    values, offsets = (_compact_tensor(part) for part in parts)
    if values is parts[0] and offsets is parts[1]:
        return whole
    return jagged.build(values, offsets, jagged.ragged_dim(whole))


def save(value: object, filepath: str | PathLike[str]) -> None:
    """Pickle one object into a file."""
    with open(filepath, "wb") as file:
        pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)


def load(filepath: str | PathLike[str]) -> object:
    """Unpickle a file. As with every pickle: only files you trust."""
    with open(filepath, "rb") as file:
        return pickle.load(file)  # noqa: S301 - verl's own format of these files
