"""Columns cut into the parts of shards, and parts of shards joined into columns.

Works on bytes and lengths only; `wire.columns` makes tensors of them. Every step costs a few
numpy operations a part, none a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.copying import copy_into
from transferqueue.backends.gather import gather, gather_into, merge_runs
from transferqueue.errors import FieldSpecMismatch, Malformed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.client.placement import Rows
    from transferqueue.fields import FieldSpec
    from transferqueue.wire.get import GotColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBytes:
    """One column as bytes."""

    spec: FieldSpec
    lengths: np.ndarray | None  # int64[rows] in units; None: one unit each
    payload: np.ndarray  # uint8[bytes of the rows, in order]
    present: np.ndarray | None = None  # bool[rows]; None: all. Absent rows are zeros or empty

    def sizes(self, num_rows: int) -> np.ndarray:
        """Bytes of each row. int64[rows]."""
        if self.lengths is None:
            return np.full(num_rows, self.spec.unit_bytes, dtype=np.int64)
        return self.lengths * self.spec.unit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRows:
    """Some rows of a column, not yet brought together."""

    lengths: np.ndarray | None  # int64[rows] in units; None: one unit each
    num_bytes: int
    _source: np.ndarray  # uint8[bytes of the whole column]
    _starts: np.ndarray  # int64[runs], where the rows lie in the source
    _sizes: np.ndarray  # int64[runs]

    def payload(self) -> np.ndarray:
        """The bytes in one piece: a view when the rows follow one another."""
        return gather(self._source, self._starts, self._sizes)

    def copy_to(self, out: np.ndarray) -> None:
        """The one copy of a put: from the caller's memory to its place in the arena."""
        if len(self._starts) == 1:
            first = int(self._starts[0])
            copy_into(out, self._source[first : first + self.num_bytes])
        else:
            gather_into(out, self._source, self._starts, self._sizes)


def rows_of(column: ColumnBytes, rows: Rows, num_rows: int) -> ColumnRows:
    """Rows of a column of ``num_rows``."""
    sizes = column.sizes(num_rows)
    starts = np.cumsum(sizes) - sizes
    run_starts, run_sizes = merge_runs(starts[rows], sizes[rows])
    return ColumnRows(
        lengths=None if column.lengths is None else np.ascontiguousarray(column.lengths[rows]),
        num_bytes=int(run_sizes.sum()),
        _source=column.payload,
        _starts=run_starts,
        _sizes=run_sizes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GotPart:
    """What one shard had of a column."""

    rows: Rows
    """Where its rows go in the whole."""
    num_rows: int
    column: GotColumn


def join_parts(field: str, num_rows: int, parts: Sequence[GotPart]) -> ColumnBytes:
    """The whole column. FieldSpecMismatch when puts of different shapes are asked for at once."""
    spec = _common_spec(field, parts)
    present = _join_present(num_rows, parts)
    lengths = _join_lengths(spec, num_rows, parts)
    only = parts[0]
    if present is None and len(parts) == 1 and isinstance(only.rows, slice):
        return ColumnBytes(spec=spec, lengths=lengths, payload=_payload(only))
    unit_bytes = spec.unit_bytes
    sizes = (
        np.full(num_rows, unit_bytes, dtype=np.int64) if lengths is None else lengths * unit_bytes
    )
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if num_rows else 0
    payload = np.empty(total, dtype=np.uint8) if present is None else np.zeros(total, np.uint8)
    for part in parts:
        _scatter(payload, ends - sizes, sizes, part)
    return ColumnBytes(spec=spec, lengths=lengths, payload=payload, present=present)


def _common_spec(field: str, parts: Sequence[GotPart]) -> FieldSpec:
    specs = [spec for part in parts for spec in part.column.specs]
    spec = reduce(lambda left, right: left.merge(right, field=field), specs)
    if not spec.is_concrete:
        distinct = list(dict.fromkeys(str(spec) for spec in specs))
        raise FieldSpecMismatch(
            field,
            distinct[0],
            ", ".join(distinct[1:]),
            "rows of different shapes make no one tensor: put the field as ragged (torch.nested, "
            "layout torch.jagged), or get the rows apart",
        )
    return spec


def _join_present(num_rows: int, parts: Sequence[GotPart]) -> np.ndarray | None:
    covered = sum(part.num_rows for part in parts)
    if covered == num_rows and all(part.column.present is None for part in parts):
        return None
    present = np.zeros(num_rows, dtype=bool)
    for part in parts:
        present[part.rows] = True if part.column.present is None else part.column.present
    return present


def _join_lengths(spec: FieldSpec, num_rows: int, parts: Sequence[GotPart]) -> np.ndarray | None:
    if not spec.has_lengths:
        return None
    lengths = np.zeros(num_rows, dtype=np.int64)
    for part in parts:
        if part.column.lengths is None:
            raise Malformed("a ragged column came without its lengths")
        lengths[_present_rows(part)] = part.column.lengths
    return lengths


def _present_rows(part: GotPart) -> Rows:
    """Positions in the whole of the rows that the part has bytes for."""
    if part.column.present is None:
        return part.rows
    if isinstance(part.rows, slice):
        return np.flatnonzero(part.column.present) + int(part.rows.start)
    rows: np.ndarray = part.rows[part.column.present]
    return rows


def _payload(part: GotPart) -> np.ndarray:
    if part.column.payload is None:
        raise Malformed("an answer without bytes")
    return part.column.payload


def _scatter(out: np.ndarray, starts: np.ndarray, sizes: np.ndarray, part: GotPart) -> None:
    """Put the bytes of a part, row by row in order, where its rows lie in ``out``."""
    payload, rows = _payload(part), _present_rows(part)
    row_starts, row_sizes = starts[rows], sizes[rows]
    if int(row_sizes.sum()) != len(payload):
        raise Malformed(f"{len(payload)} bytes came for {int(row_sizes.sum())}")
    if len(payload) == 0:
        return
    if isinstance(rows, slice):
        first = int(row_starts[0])
        out[first : first + len(payload)] = payload
        return
    scatter_rows(out, row_starts, row_sizes, payload)


def scatter_rows(
    out: np.ndarray, starts: np.ndarray, sizes: np.ndarray, payload: np.ndarray
) -> None:
    """Inverse of `gather`: cut ``payload`` into ``sizes`` and lay the pieces at ``starts``."""
    size = int(sizes[0])
    if (sizes == size).all() and not (starts % size).any() and len(out) % size == 0:
        out.reshape(-1, size)[starts // size] = payload.reshape(-1, size)
        return
    index = np.arange(len(payload), dtype=np.int64)
    index += np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    out[index] = payload


def expand_rows(column: ColumnBytes, inverse: np.ndarray, num_distinct: int) -> ColumnBytes:
    """The column of rows that name the same sample more than once. ``inverse``: int64[rows]."""
    sizes = column.sizes(num_distinct)
    starts = np.cumsum(sizes) - sizes
    row_starts, row_sizes = starts[inverse], sizes[inverse]
    payload = np.empty(int(row_sizes.sum()), dtype=np.uint8)
    filled = row_sizes > 0
    if filled.any():
        gather_into(payload, column.payload, row_starts[filled], row_sizes[filled])
    return ColumnBytes(
        spec=column.spec,
        lengths=None if column.lengths is None else column.lengths[inverse],
        payload=payload,
        present=None if column.present is None else column.present[inverse],
    )
