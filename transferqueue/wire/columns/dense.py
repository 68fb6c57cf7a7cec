"""Columns whose rows all have one shape: tensors, and numpy arrays of numbers, times and text.

The bytes are the elements in C order, which is how they lie in memory, so both ways go without a
copy for contiguous memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import UnsupportedTensor
from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.wire.cells import array_bytes
from transferqueue.wire.columns.encoded import EncodedColumn
from transferqueue.wire.tensors import (
    Bytes,
    Stays,
    dtype_name,
    nowhere,
    tensor_block,
    tensor_from_bytes,
)

if TYPE_CHECKING:
    import torch

Lengths = np.ndarray[Any, np.dtype[np.int64]]


def encode_tensor(tensor: torch.Tensor, stays: Stays = nowhere) -> EncodedColumn:
    """A strided tensor ``[rows, *shape]``. Raises `CannotCarry`."""
    payload = tensor_block(tensor, stays)
    spec = FieldSpec.of(dtype_name(tensor), tuple(tensor.shape[1:]))
    return EncodedColumn(spec=spec, num_rows=tensor.shape[0], lengths=None, payload=payload)


def decode_tensor(spec: FieldSpec, payload: Bytes | torch.Tensor, num_rows: int) -> torch.Tensor:
    """Inverse of `encode_tensor`; shares the memory of ``payload``."""
    return tensor_from_bytes(payload, spec.dtype, (num_rows, *spec.shape))


def encode_array(field: str, array: np.ndarray[Any, Any]) -> EncodedColumn:
    """A numpy array ``[rows, *shape]`` of an allowed dtype, text being one unit a character."""
    if isinstance(array, np.ma.MaskedArray):
        raise UnsupportedTensor(
            field, "a masked array", "put .filled(...), and .mask as a field of its own"
        )
    spec = FieldSpec.of(array.dtype.str, array.shape[1:], kind=FieldKind.ARRAY)
    num_rows = array.shape[0]
    lengths = np.full(num_rows, text_width(spec), dtype=np.int64) if spec.is_text else None
    return EncodedColumn(
        spec=spec, num_rows=num_rows, lengths=lengths, payload=array_bytes(np.asarray(array))
    )


def text_width(spec: FieldSpec) -> int:
    """Characters of one string of a text field."""
    return int(spec.dtype[2:])


def decode_array(spec: FieldSpec, payload: Bytes, num_rows: int) -> np.ndarray[Any, Any]:
    """Inverse of `encode_array` for all but text; shares the memory of ``payload``."""
    return _as_array(payload, spec.dtype, (num_rows, *spec.shape))


def decode_text(
    spec: FieldSpec, payload: Bytes, lengths: Lengths, num_rows: int
) -> np.ndarray[Any, Any]:
    """Inverse of `encode_array` for text.

    As wide as the widest row, which is exactly the dtype that was put when all rows are of one put,
    and then it shares the memory of ``payload``.
    """
    widths = np.unique(lengths)
    shape = spec.shape
    if len(widths) == 0 or widths[-1] == 0:  # no rows, or none that is there
        return np.zeros((num_rows, *shape), dtype=spec.dtype)
    if len(widths) == 1:
        width = int(widths[0])
        return _as_array(payload, f"{spec.dtype[:2]}{width}", (num_rows, *shape))
    starts = (np.cumsum(lengths) - lengths) * spec.unit_bytes
    text = np.zeros((num_rows, *shape), dtype=f"{spec.dtype[:2]}{widths[-1]}")
    for width in widths[widths > 0].tolist():
        rows = np.flatnonzero(lengths == width)
        cells = starts[rows, None] + np.arange(width * spec.unit_bytes)
        text[rows] = _as_array(
            payload[cells].reshape(-1), f"{spec.dtype[:2]}{width}", (len(rows), *shape)
        )
    return text


def _as_array(payload: Bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if payload.nbytes == 0:
        return np.zeros(shape, dtype=dtype)
    return payload.view(dtype).reshape(shape)
