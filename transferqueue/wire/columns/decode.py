"""Bytes of a column as what was put."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from transferqueue.dtypes import array_dtype
from transferqueue.errors import Malformed
from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.wire.cells import ObjectPolicy
from transferqueue.wire.columns.dense import decode_array, decode_tensor, decode_text
from transferqueue.wire.columns.objects import decode_objects
from transferqueue.wire.columns.ragged import decode_jagged

if TYPE_CHECKING:
    import torch

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
MAX_EMPTY_UNITS: Final = 1 << 38
"""Units of no bytes in one row: there is nothing to check their number against."""

Lengths = np.ndarray[Any, np.dtype[np.int64]]


def decode_column(
    spec: FieldSpec,
    payload: Bytes,
    lengths: Lengths | None,
    num_rows: int,
    *,
    field: str = "",
    objects: ObjectPolicy = ObjectPolicy.PLAIN,
) -> torch.Tensor | np.ndarray[Any, Any]:
    """Inverse of `encode_column` for any rows of any puts in one order.

    ``payload``: uint8 ``[bytes]``; what comes back shares its memory, so that editing one edits
    the other. It is copied first when it is read-only (a received frame) or not aligned.
    ``lengths``: int64 ``[rows]`` in units where the spec has them. An object row of length 0 is
    ``None``. Raises `Malformed` when the sizes do not add up or the bytes are no objects, and
    `UnsupportedObject` for a pickle that ``objects`` does not allow.
    """
    _check_sizes(spec, payload.nbytes, lengths, num_rows)
    payload = _usable(spec, payload)
    if spec.kind is FieldKind.OBJECT and lengths is not None:
        return decode_objects(field, spec, payload, lengths, objects)
    try:
        return _decode_elements(spec, payload, lengths, num_rows)
    except ValueError as error:
        raise Malformed(f"{spec}: {error}") from error


def decode_on_device(
    spec: FieldSpec, payload: torch.Tensor, lengths: Lengths | None, num_rows: int
) -> torch.Tensor:
    """`decode_column` for a tensor column whose bytes are on a device: uint8 ``[bytes]``."""
    _check_sizes(spec, payload.nbytes, lengths, num_rows)
    if lengths is None:
        return decode_tensor(spec, payload, num_rows)
    return decode_jagged(spec, payload, lengths, num_rows)


def _decode_elements(
    spec: FieldSpec, payload: Bytes, lengths: Lengths | None, num_rows: int
) -> torch.Tensor | np.ndarray[Any, Any]:
    """Everything but objects."""
    if spec.kind is FieldKind.TENSOR:
        if lengths is None:
            return decode_tensor(spec, payload, num_rows)
        return decode_jagged(spec, payload, lengths, num_rows)
    if lengths is None:
        return decode_array(spec, payload, num_rows)
    return decode_text(spec, payload, lengths, num_rows)


def _usable(spec: FieldSpec, payload: Bytes) -> Bytes:
    aligned = payload.ctypes.data % _alignment(spec) == 0
    usable = payload.flags.writeable and payload.flags.c_contiguous and aligned
    return payload if usable else payload.copy()


def _alignment(spec: FieldSpec) -> int:
    if spec.kind is FieldKind.TENSOR:
        return min(spec.itemsize, 8)
    # Objects see to it themselves: most of them need none.
    return array_dtype(spec.dtype).alignment if spec.kind is FieldKind.ARRAY else 1


def _check_sizes(spec: FieldSpec, num_bytes: int, lengths: Lengths | None, num_rows: int) -> None:
    if not spec.is_concrete or (lengths is None) == spec.has_lengths:
        raise Malformed(f"{spec} is not how a column is read")
    num_units, unit_bytes = num_rows, spec.unit_bytes
    if lengths is not None:
        longest = num_bytes if unit_bytes else MAX_EMPTY_UNITS
        if len(lengths) != num_rows or ((lengths < 0) | (lengths > longest)).any():
            raise Malformed(f"not the lengths of {num_rows} rows of {num_bytes} bytes")
        num_units = int(lengths.sum())
    if num_units * unit_bytes != num_bytes:
        raise Malformed(f"{num_units} units of {spec} do not take {num_bytes} bytes")
