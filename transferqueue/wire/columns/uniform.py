"""Array cells of a whole column at once: arrays or tensors of one dtype and number of dimensions.

Their headers are one numpy block, their elements are found by arithmetic, and what is left to do
for each array is done by loops in C (``map`` over C functions).
"""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.wire.cells import (
    ALIGNMENT,
    ARRAY_CELL,
    ARRAY_HEAD,
    MAX_NDIM,
    NUMPY,
    TORCH,
    array_header,
    array_itemsize,
    dtype_text,
    header_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.wire.format import Buffer

Lengths = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_TENSOR_FACTS = attrgetter("layout", "device", "is_nested")

_ZEROS = [bytes(size) for size in range(ALIGNMENT)]


def pack_uniform(values: Sequence[Any]) -> tuple[Sequence[Buffer], Lengths] | None:
    """The pieces of the cells and the bytes of each; ``None`` when the arrays are not alike."""
    first = values[0]
    if len(set(map(attrgetter("dtype"), values))) > 1 or first.ndim > MAX_NDIM:
        return None
    if len(set(map(attrgetter("ndim"), values))) > 1:
        return None
    memory = _array_memory(values) if isinstance(first, np.ndarray) else _tensor_memory(values)
    if memory is None:
        return None
    flavour, dtype, blocks = memory
    sizes = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    pads = -sizes % ALIGNMENT
    headers = _headers(flavour, dtype, values, first.ndim)
    pieces: list[Any] = [b""] * (3 * len(values))
    pieces[0::3] = list(headers)
    pieces[1::3] = blocks
    pieces[2::3] = map(_ZEROS.__getitem__, pads.tolist())
    return pieces, headers.shape[1] + sizes + pads


def _headers(flavour: int, dtype: str, values: Sequence[Any], ndim: int) -> Bytes:
    """The header of each array, uint8 ``[arrays, header bytes]``."""
    template = np.frombuffer(array_header(flavour, dtype, (0,) * ndim), dtype=np.uint8)
    headers = np.tile(template, (len(values), 1))
    shapes = np.array(list(map(attrgetter("shape"), values)), dtype="<i8").reshape(
        len(values), ndim
    )
    headers[:, ARRAY_HEAD.size : ARRAY_HEAD.size + 8 * ndim] = shapes.view(np.uint8)
    return headers


def _array_memory(arrays: Sequence[Any]) -> tuple[int, str, list[Bytes]]:
    flat = map(methodcaller("reshape", -1), map(np.ascontiguousarray, arrays))
    return NUMPY, arrays[0].dtype.str, list(map(methodcaller("view", np.uint8), flat))


def _tensor_memory(tensors: Sequence[Any]) -> tuple[int, str, list[Bytes]] | None:
    """``None`` when one of them is anything but plain, non-empty memory of the CPU."""
    import torch

    from transferqueue.wire.tensors import TORCH_DTYPES, dtype_name

    first = tensors[0]
    plain = (torch.strided, torch.device("cpu"), False)
    if type(first) is not torch.Tensor or set(map(_TENSOR_FACTS, tensors)) != {plain}:
        return None
    if 0 in map(methodcaller("numel"), tensors) or True in map(methodcaller("is_conj"), tensors):
        return None
    if True in map(methodcaller("is_neg"), tensors) or dtype_name(first) not in TORCH_DTYPES:
        return None
    flat = map(methodcaller("reshape", -1), map(methodcaller("detach"), tensors))
    memory = map(methodcaller("view", torch.uint8), map(methodcaller("contiguous"), flat))
    return TORCH, dtype_name(first), list(map(methodcaller("numpy"), memory))


def read_uniform(payload: Bytes, starts: Lengths, ends: Lengths) -> list[Any] | None:
    """The arrays of cells that follow one another and fill ``payload``.

    They share its memory. ``None`` when they are not alike, or not well formed: then whoever reads
    them one by one finds out what is wrong.
    """
    sizes = ends - starts
    if int(sizes.min()) < ARRAY_HEAD.size:
        return None
    if payload.ctypes.data % ALIGNMENT:
        payload = payload.copy()
    heads = payload[starts[:, None] + np.arange(ARRAY_HEAD.size)]
    _, kind, flavour, ndim, _, dtype = ARRAY_HEAD.unpack(heads[0].tobytes())
    if (heads != heads[0]).any() or kind != ARRAY_CELL or ndim > MAX_NDIM:
        return None
    shapes = _shapes(payload, starts, sizes, ndim)
    if shapes is None:
        return None
    itemsize = array_itemsize(flavour, dtype)
    # An empty array says nothing about its other sizes; numpy and torch have limits for them.
    largest = np.maximum(shapes, 1).astype(np.float64).prod(axis=1) * itemsize
    if (largest > 1 << 56).any():
        return None
    if (shapes.prod(axis=1) * itemsize > payload.nbytes).any():
        return None
    data_sizes = shapes.prod(axis=1) * itemsize
    pads = -data_sizes % ALIGNMENT
    data_starts = starts + header_bytes(ndim)
    if (data_starts + data_sizes + pads != ends).any():
        return None
    make = _tensors if flavour == TORCH else _arrays
    return make(payload, dtype_text(dtype), shapes, data_starts)


def _arrays(payload: Bytes, dtype: str, shapes: Lengths, starts: Lengths) -> list[Any]:
    new: Any = np.ndarray
    shape_of_each = map(tuple, shapes.tolist())
    return list(map(new, shape_of_each, repeat(np.dtype(dtype)), repeat(payload), starts.tolist()))


def _shapes(payload: Bytes, starts: Lengths, sizes: Lengths, ndim: int) -> Lengths | None:
    """The shape of each array, ``[arrays, ndim]``."""
    if int(sizes.min()) < header_bytes(ndim):
        return None
    columns = ARRAY_HEAD.size + np.arange(8 * ndim)
    shapes = payload[starts[:, None] + columns].reshape(-1).view("<i8").reshape(len(starts), ndim)
    return None if (shapes < 0).any() else shapes


def _tensors(payload: Bytes, dtype: str, shapes: Lengths, starts: Lengths) -> list[Any] | None:
    """Views of one tensor over the whole payload, a third of the cost of cutting it up."""
    import torch

    from transferqueue.wire.tensors import TORCH_DTYPES

    if dtype not in TORCH_DTYPES:
        return None
    whole = torch.from_numpy(payload).view(TORCH_DTYPES[dtype])  # cells fill it to 16 bytes
    strides = np.ones_like(shapes)
    strides[:, :-1] = np.cumprod(np.maximum(shapes, 1)[:, :0:-1], axis=1)[:, ::-1]
    offsets = starts // whole.itemsize
    return list(map(whole.as_strided, shapes.tolist(), strides.tolist(), offsets.tolist()))
