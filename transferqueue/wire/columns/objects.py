"""Columns of Python objects: one cell a row (see `wire.cells`), written for all rows at once.

Three kinds of column are most of what is put, and are written and read by numpy and C loops:
plain values, strings, and arrays or tensors of one dtype and number of dimensions. Anything else
goes row by row. All paths write the same cells, so any path reads what another wrote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from transferqueue.dtypes import OBJECT
from transferqueue.errors import Malformed, UnsupportedObject
from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.wire.cells import (
    ESCAPE,
    CellReader,
    CellWriter,
    ObjectPolicy,
    is_array_like,
    is_tensor,
    other_leaf,
)
from transferqueue.wire.columns.encoded import EncodedColumn, Hole
from transferqueue.wire.columns.text import pack_text, read_text
from transferqueue.wire.columns.uniform import pack_uniform, read_uniform
from transferqueue.wire.values import CannotCarry, ValuePacker, object_array

if TYPE_CHECKING:
    import msgpack

    from transferqueue.wire.cells import Elsewhere
    from transferqueue.wire.format import Buffer

Lengths = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Pieces = tuple[Sequence["Buffer"], Lengths]

MAX_ONE_PASS_BYTES: Final = 1 << 30
"""The parser copies what it reads, so larger columns go row by row."""


def encode_objects(
    field: str,
    values: Sequence[object],
    shape: tuple[int, ...],
    policy: ObjectPolicy,
    elsewhere: Elsewhere | None = None,
) -> EncodedColumn:
    """Rows of objects; of ``shape`` each when an object array had more than one dimension.
    ``elsewhere``: knows the tensors among them whose bytes are fetched later.

    Raises `UnsupportedObject` with the field, row and type.
    """
    spec = FieldSpec.of(OBJECT, shape, kind=FieldKind.OBJECT)
    writer = CellWriter(policy, elsewhere)
    payload, lengths, holes = _cells(field, list(values), policy, writer)
    return EncodedColumn(
        spec=spec, num_rows=len(values), lengths=lengths, payload=payload, holes=holes
    )


def _cells(
    field: str, values: list[Any], policy: ObjectPolicy, writer: CellWriter
) -> tuple[Bytes, Lengths, list[Hole]]:
    """All cells end to end, the bytes of each, and what is still to be filled in."""
    if set(map(type, values)) == {str}:
        return (*pack_text(values), [])
    pieces, lengths = _pieces(field, values, policy, writer)
    if not writer.left:
        return np.frombuffer(b"".join(pieces), dtype=np.uint8), lengths, []
    payload = np.frombuffer(bytearray().join(pieces), dtype=np.uint8)
    return payload, lengths, _holes(pieces, writer)


def _holes(pieces: Sequence[Buffer], writer: CellWriter) -> list[Hole]:
    found, at = [], 0
    for piece in pieces:
        left = writer.left.get(id(piece))
        if left is not None:
            found.append(Hole(offset=at, block=left[1]))
        at += len(piece)
    return found


def _pieces(field: str, values: list[Any], policy: ObjectPolicy, writer: CellWriter) -> Pieces:
    """The pieces of all cells in order, and the bytes of each cell."""
    types = set(map(type, values))
    if len(types) == 1 and is_array_like(values[0]) and not _has_any(writer.elsewhere, values):
        uniform = pack_uniform(values)
        if uniform is not None:
            return uniform
    try:
        cells = ValuePacker(lambda value: _plain_leaf(value, policy)).pack_many(values)
    except (_HasArrays, CannotCarry):
        return _row_by_row(field, values, writer)
    return cells, _sizes(cells)


def _has_any(elsewhere: Elsewhere | None, values: list[Any]) -> bool:
    return elsewhere is not None and is_tensor(values[0]) and elsewhere.has_any(values)


class _HasArrays(Exception):
    """A value has an array somewhere inside, so its cell is not a plain one."""


def _plain_leaf(value: object, policy: ObjectPolicy) -> msgpack.ExtType:
    if is_array_like(value):
        raise _HasArrays
    return other_leaf(value, policy)


def _row_by_row(field: str, values: list[object], writer: CellWriter) -> Pieces:
    pieces: list[Buffer] = []
    lengths = np.empty(len(values), dtype=np.int64)
    for row, value in enumerate(values):
        try:
            cell = writer.write(value)
        except CannotCarry as error:
            raise UnsupportedObject(field, row, error.type_name, error.hint) from error
        pieces += cell
        lengths[row] = sum(map(len, cell))
    return pieces, lengths


def _sizes(cells: Sequence[Buffer]) -> Lengths:
    return np.fromiter(map(len, cells), dtype=np.int64, count=len(cells))


def decode_objects(
    field: str, spec: FieldSpec, payload: Bytes, lengths: Lengths, policy: ObjectPolicy
) -> np.ndarray[Any, Any]:
    """Inverse of `encode_objects`: an object array ``[rows, *shape]``.

    Arrays and tensors in it share the memory of ``payload``. A row without bytes is ``None``: that
    is how an absent one comes. Raises `Malformed`, or `UnsupportedObject` for a pickle that the
    policy does not allow.
    """
    present = np.flatnonzero(lengths)
    ends = np.cumsum(lengths)[present]
    values = _values(field, payload, ends - lengths[present], ends, policy)
    rows = np.full(len(lengths), None, dtype=object)
    rows[present] = object_array(values, (len(values),))
    return _spread(rows, spec.shape) if spec.shape else rows


def _values(
    field: str, payload: Bytes, starts: Lengths, ends: Lengths, policy: ObjectPolicy
) -> list[Any]:
    reader = CellReader(payload, policy)
    escaped = payload[starts] == ESCAPE
    if not escaped.any():
        texts = read_text(payload, starts, ends)
        if texts is not None:
            return texts
        if payload.nbytes <= MAX_ONE_PASS_BYTES:
            try:
                return reader.read_plain(len(starts))
            except CannotCarry:
                pass  # row by row, to name the row
    elif escaped.all():
        uniform = read_uniform(payload, starts, ends)
        if uniform is not None:
            return uniform
    return _read_row_by_row(field, reader, starts, ends)


def _read_row_by_row(
    field: str, reader: CellReader, starts: Lengths, ends: Lengths
) -> list[object]:
    values = []
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        try:
            values.append(reader.read(start, end))
        except CannotCarry as error:
            raise UnsupportedObject(field, row, error.type_name, error.hint) from error
    return values


def _spread(rows: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Rows that are each the items of one more-dimensional row."""
    spread = np.full((len(rows), *shape), None, dtype=object)
    flat = spread.reshape(len(rows), math.prod(shape))  # of 0 rows -1 says nothing
    for row, items in enumerate(rows.tolist()):
        if items is None:
            continue
        if type(items) is not list or len(items) != flat.shape[1]:
            raise Malformed(f"a row of objects of shape {shape} has other items")
        flat[row] = object_array(items, (len(items),))
    return spread
