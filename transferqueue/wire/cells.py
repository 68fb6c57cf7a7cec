"""One row of an object column as bytes: a cell that says itself what it is.

Rows of different puts, written by different paths of this code, stand beside each other in one
answer, so nothing about a row may live outside its cell. Three forms, told by the first byte:

    plain   a value as in `values`: what msgpack can begin with, which is never 0xC1
    array   0xC1 0x01: one numpy array or torch tensor
    tree    0xC1 0x02: a value with arrays or tensors somewhere inside

An array cell, little-endian, is a header and the elements in C order, each filled up with zeros to
a multiple of 16 bytes, so that arrays of a whole column of them lie aligned where they are::

    0xC1 0x01 flavour ndim    u32 0    dtype[24]    i64 size of each dimension

``flavour`` is 0 for numpy (``dtype.str``) and 1 for torch (dtype name); ``dtype`` is ASCII filled
up with NULs. A tree cell is::

    0xC1 0x02 0 0    u32 number of arrays    u64 bytes of the value    value (to 16)    array cells

In its value extension 32 (u32, little-endian) stands for the array of that number. Extension 33 is
a pickle (`pickled`), written and read only where both ends were told ``objects="pickle"``.

Large arrays are thereby copied once on the way out and not at all on the way in.
"""

from __future__ import annotations

import math
import struct
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgpack
import numpy as np

from transferqueue.dtypes import TENSOR_ITEMSIZE, array_dtype, is_array_dtype
from transferqueue.errors import Malformed
from transferqueue.wire.values import (
    FIRST_LEAF_CODE,
    CannotCarry,
    ValuePacker,
    ValueReader,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from transferqueue.wire.format import Buffer

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

ESCAPE: Final = 0xC1
ARRAY_CELL: Final = 1
TREE_CELL: Final = 2
NUMPY: Final = 0
TORCH: Final = 1

ALIGNMENT: Final = 16
ARRAY_HEAD: Final = struct.Struct("<BBBBI24s")
_TREE_HEAD: Final = struct.Struct("<BBBBIQ")
_ARRAY_CODE: Final = FIRST_LEAF_CODE
_PICKLE_CODE: Final = FIRST_LEAF_CODE + 1
_INDEX: Final = struct.Struct("<I")

MAX_NDIM: Final = 32


class ObjectPolicy(StrEnum):
    """Which Python objects an object column may hold."""

    PLAIN = "plain"
    """Those with an exact form: see `values`, and numpy arrays and torch tensors."""
    PICKLE = "pickle"
    """Any others too, by pickle. Whoever can write to the service can then run code here."""


def padding(size: int) -> int:
    """Bytes that fill ``size`` up to the alignment."""
    return -size % ALIGNMENT


def array_header(flavour: int, dtype: str, shape: tuple[int, ...]) -> bytes:
    """The aligned header of an array cell."""
    if len(shape) > MAX_NDIM:
        raise CannotCarry(f"array of {len(shape)} dimensions", f"the limit is {MAX_NDIM}")
    head = ARRAY_HEAD.pack(ESCAPE, ARRAY_CELL, flavour, len(shape), 0, dtype.encode("ascii"))
    sizes = struct.pack(f"<{len(shape)}q", *shape)
    return head + sizes + bytes(padding(len(head) + len(sizes)))


def header_bytes(ndim: int) -> int:
    """How long the header of an array cell is."""
    size = ARRAY_HEAD.size + 8 * ndim
    return size + padding(size)


def array_bytes(array: np.ndarray[Any, Any]) -> Bytes:
    """The elements in C order, uint8 ``[bytes]``; not copied when contiguous."""
    if array.nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def is_tensor(value: object) -> bool:
    """Whether this is a ``torch.Tensor``, without importing torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array_like(value: object) -> bool:
    """Whether the value by itself is an array cell."""
    return (type(value) is np.ndarray and is_array_dtype(value.dtype)) or is_tensor(value)


class Elsewhere(Protocol):
    """Tensors that are not in memory of the host. Their bytes are not waited for: cells are written
    with zeros in their place (`CellWriter.left`), to be filled later."""

    def has_any(self, tensors: Iterable[torch.Tensor]) -> bool: ...

    def block(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The elements in C order where they are, uint8 ``[bytes]``; ``None`` for a tensor of the
        host. Raises `CannotCarry`."""
        ...


class CellWriter:
    """Turns rows into cells, as pieces to be joined."""

    def __init__(self, policy: ObjectPolicy, elsewhere: Elsewhere | None = None) -> None:
        self.elsewhere = elsewhere
        self._leaves = _LeavesWritten(policy, elsewhere)
        self._packer = ValuePacker(self._leaves.encoded)

    @property
    def left(self) -> Mapping[int, tuple[Buffer, torch.Tensor]]:
        """Pieces of zeros by their ``id``, and the bytes that belong there."""
        return self._leaves.left

    def write(self, value: object) -> list[Buffer]:
        """The pieces of one cell. Raises `CannotCarry`."""
        leaves = self._leaves
        if is_array_like(value):
            return leaves.array_pieces(value)
        leaves.pieces, leaves.num_arrays = [], 0
        tree = self._packer.pack(value)
        if not leaves.num_arrays:
            return [tree]
        head = _TREE_HEAD.pack(ESCAPE, TREE_CELL, 0, 0, leaves.num_arrays, len(tree))
        return [head, tree, bytes(padding(len(tree))), *leaves.pieces]


class _LeavesWritten:
    """The arrays of one cell. An object of its own: what the packer calls must not refer to whoever
    has the packer, or both live until the next collection of cycles, and what they hold too."""

    def __init__(self, policy: ObjectPolicy, elsewhere: Elsewhere | None) -> None:
        self._policy, self._elsewhere = policy, elsewhere
        self.pieces: list[Buffer] = []
        self.num_arrays = 0
        self.left: dict[int, tuple[Buffer, torch.Tensor]] = {}

    def encoded(self, value: object) -> msgpack.ExtType:
        if is_array_like(value):
            self.pieces += self.array_pieces(value)
            self.num_arrays += 1
            return msgpack.ExtType(_ARRAY_CODE, _INDEX.pack(self.num_arrays - 1))
        return other_leaf(value, self._policy)

    def array_pieces(self, value: Any) -> list[Buffer]:
        """A whole array cell."""
        block = None
        if self._elsewhere is not None and not isinstance(value, np.ndarray):
            block = self._elsewhere.block(value)
        if block is None:
            return _array_pieces(value)
        from transferqueue.wire.tensors import dtype_name

        zeros = np.zeros(block.nbytes, np.uint8).data
        self.left[id(zeros)] = zeros, block
        header = array_header(TORCH, dtype_name(value), tuple(value.shape))
        return [header, zeros, bytes(padding(zeros.nbytes))]


def other_leaf(value: object, policy: ObjectPolicy) -> msgpack.ExtType:
    """What is neither plain nor an array: pickled where that is allowed, else refused."""
    if policy is ObjectPolicy.PICKLE:
        from transferqueue.wire import pickled

        return msgpack.ExtType(_PICKLE_CODE, pickled.dump(value))
    raise CannotCarry(type_name(value))


def _array_pieces(value: Any) -> list[Buffer]:
    """A whole array cell."""
    if isinstance(value, np.ndarray):
        flavour, dtype, data = NUMPY, value.dtype.str, array_bytes(value)
    else:
        from transferqueue.wire.tensors import dtype_name, tensor_bytes

        flavour, dtype, data = TORCH, dtype_name(value), tensor_bytes(value)
    header = array_header(flavour, dtype, tuple(value.shape))
    return [header, data.data, bytes(padding(data.nbytes))]


class CellReader:
    """Inverse of `CellWriter`. Arrays share the memory of the payload, which must be writable.

    Raises `Malformed` for bytes that are not a cell, and `CannotCarry` for a pickle that the policy
    does not allow.
    """

    def __init__(self, payload: Bytes, policy: ObjectPolicy) -> None:
        self._payload = payload
        self._leaves = _LeavesRead(policy)
        self._reader = ValueReader(self._leaves.decoded)

    def read_plain(self, num_values: int) -> list[object]:
        """The whole payload as that many plain cells, in one pass."""
        return self._reader.read_many(self._payload.data, num_values)

    def read(self, start: int, end: int) -> object:
        """The cell in this range of the payload, which has been checked to lie in it."""
        if end - start < 2 or self._payload[start] != ESCAPE:
            return self._reader.read(self._payload[start:end].data)
        kind = int(self._payload[start + 1])
        if kind == TREE_CELL:
            return self._read_tree(start, end)
        if kind == ARRAY_CELL:
            array, stop = self._read_array(start, end)
            if stop != end:
                raise Malformed(f"{end - stop} bytes after an array")
            return array
        raise Malformed(f"no kind of cell {kind}")

    def _read_tree(self, start: int, end: int) -> object:
        if end - start < _TREE_HEAD.size:
            raise Malformed("a cell is cut short")
        num_arrays, tree_bytes = _TREE_HEAD.unpack_from(self._payload.data, start)[4:]
        tree_start = start + _TREE_HEAD.size
        at = tree_start + tree_bytes + padding(tree_bytes)
        if at > end:
            raise Malformed("a cell is cut short")
        self._leaves.arrays = []
        for _ in range(num_arrays):
            array, at = self._read_array(at, end)
            self._leaves.arrays.append(array)
        if at != end:
            raise Malformed(f"{end - at} bytes after the arrays of a cell")
        return self._reader.read(self._payload[tree_start : tree_start + tree_bytes].data)

    def _read_array(self, start: int, end: int) -> tuple[object, int]:
        """The array of a cell that begins at ``start``, and where the cell ends."""
        if end - start < ARRAY_HEAD.size:
            raise Malformed("an array is cut short")
        escape, kind, flavour, ndim, _, dtype = ARRAY_HEAD.unpack_from(self._payload.data, start)
        data_start = start + header_bytes(ndim)
        if (escape, kind) != (ESCAPE, ARRAY_CELL) or ndim > MAX_NDIM or data_start > end:
            raise Malformed("not an array")
        shape = struct.unpack_from(f"<{ndim}q", self._payload.data, start + ARRAY_HEAD.size)
        itemsize = array_itemsize(flavour, dtype)
        num_bytes = math.prod(shape) * itemsize
        stop = data_start + num_bytes + padding(num_bytes)
        if min(shape, default=0) < 0 or stop > end:
            raise Malformed(f"an array of shape {shape} does not fit its cell")
        data = self._payload[data_start : data_start + num_bytes]
        return array_from_bytes(flavour, dtype, shape, data), stop


class _LeavesRead:
    """As `_LeavesWritten`."""

    def __init__(self, policy: ObjectPolicy) -> None:
        self._policy = policy
        self.arrays: list[object] = []

    def decoded(self, code: int, data: bytes) -> object:
        if code == _ARRAY_CODE and len(data) == _INDEX.size:
            (index,) = _INDEX.unpack(data)
            if index < len(self.arrays):
                return self.arrays[index]
        if code == _PICKLE_CODE:
            return self._unpickle(data)
        raise Malformed(f"unexpected extension {code} of {len(data)} bytes")

    def _unpickle(self, data: bytes) -> object:
        if self._policy is not ObjectPolicy.PICKLE:
            raise CannotCarry(
                "pickled object", "it was put with objects='pickle'; read it with that too"
            )
        from transferqueue.wire import pickled

        return pickled.load(data)


def dtype_text(dtype: bytes) -> str:
    """The dtype of an array header. Raises `Malformed`."""
    try:
        return dtype.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError as error:
        raise Malformed(f"not a dtype: {dtype!r}") from error


def array_itemsize(flavour: int, dtype: bytes) -> int:
    """Bytes of one element, at least 1. Raises `Malformed` for a dtype that is not allowed."""
    name = dtype_text(dtype)
    if flavour == TORCH:
        itemsize = TENSOR_ITEMSIZE.get(name, 0)
    elif flavour == NUMPY:
        try:
            itemsize = array_dtype(name).itemsize
        except ValueError as error:
            raise Malformed(str(error)) from error
    else:
        itemsize = 0
    if itemsize < 1:
        raise Malformed(f"no array of dtype {name!r} and flavour {flavour}")
    return itemsize


def array_from_bytes(flavour: int, dtype: bytes, shape: tuple[int, ...], data: Bytes) -> object:
    """An array that shares the memory of ``data``, whose size has been checked.

    Raises `Malformed` for what the sizes do not show: see `tensors.tensor_from_bytes`.
    """
    name = dtype_text(dtype)
    try:
        if flavour == NUMPY:
            return _numpy_from_bytes(name, shape, data)
        from transferqueue.wire.tensors import tensor_from_bytes

        aligned = data.ctypes.data % TENSOR_ITEMSIZE[name] == 0
        return tensor_from_bytes(data if aligned else data.copy(), name, shape)
    except ValueError as error:
        raise Malformed(str(error)) from error


def _numpy_from_bytes(dtype: str, shape: tuple[int, ...], data: Bytes) -> np.ndarray[Any, Any]:
    if data.nbytes == 0:
        return np.empty(shape, dtype=dtype)
    array = data.view(dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()
