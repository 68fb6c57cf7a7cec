"""Parts of shards joined into columns.

Works on bytes and lengths only; `wire.columns` makes tensors of them. Every step costs a few
numpy operations a part, none a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.client.column_bytes import ColumnBytes
from transferqueue.errors import FieldSpecMismatch, Malformed
from transferqueue.memory.copying import copy_into
from transferqueue.memory.gather import gather_into

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.client.device_copies import LentRanges
    from transferqueue.client.placement import Rows
    from transferqueue.fields import FieldSpec
    from transferqueue.wire.get import GotColumn


_NO_BYTES = np.empty(0, dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class GotPart:
    """What one shard had of a column."""

    rows: Rows
    """Where its rows go in the whole."""
    num_rows: int
    column: GotColumn
    payload: np.ndarray | None
    """uint8[bytes of its rows, in order]; ``None``: they are still to come."""
    lent: LentRanges | None = None
    """They lie in memory of the shard, where a device of this process copies them from."""

    @property
    def is_to_come(self) -> bool:
        return self.payload is None and self.lent is None


class JoinedColumn:
    """One column of a get, from the parts of its shards.

    Invariant: every byte is copied at most once here, and not at all when one part is the whole
    column, or when its bytes came to where `target` said.
    """

    def __init__(self, field: str, num_rows: int, parts: Sequence[GotPart]) -> None:
        """``parts``: at least one. FieldSpecMismatch when puts of different shapes are asked for
        at once."""
        self._parts = list(parts)
        self._blocks = [part.payload for part in parts]
        self._in_place: set[int] = set()
        self._spec = common_spec(field, parts)
        self._present = join_present(num_rows, parts)
        self._lengths = join_lengths(self._spec, num_rows, parts)
        self._out: np.ndarray | None = None
        if len(parts) > 1 or self._present is not None or not isinstance(parts[0].rows, slice):
            self._lay_out(num_rows)

    def _lay_out(self, num_rows: int) -> None:
        whole = ColumnBytes(spec=self._spec, lengths=self._lengths, payload=_NO_BYTES)
        self._sizes = whole.sizes(num_rows)
        self._starts = np.cumsum(self._sizes) - self._sizes
        total = int(self._sizes.sum())
        is_full = self._present is None
        self._out = np.empty(total, np.uint8) if is_full else np.zeros(total, np.uint8)

    def target(self, number: int) -> np.ndarray:
        """Where the bytes of a part that are still to come are to be put, uint8[bytes].

        In their final memory where its rows follow one another; else in a block of their own.
        """
        part = self._parts[number]
        block = self._stretch(part)
        if block is None:
            block = np.empty(part.column.num_bytes(part.num_rows), dtype=np.uint8)
        else:
            self._in_place.add(number)
        self._blocks[number] = block
        return block

    def finish(self) -> ColumnBytes:
        """The column. Every part has its bytes."""
        payload = self._blocks[0] if self._out is None else self._joined(self._out)
        if payload is None:
            raise Malformed("an answer without bytes")
        return ColumnBytes(
            spec=self._spec, lengths=self._lengths, payload=payload, present=self._present
        )

    def _joined(self, out: np.ndarray) -> np.ndarray:
        for number, (part, block) in enumerate(zip(self._parts, self._blocks, strict=True)):
            if block is None:
                raise Malformed("an answer without bytes")
            if number not in self._in_place:
                self._lay(part, block, out)
        return out

    def _stretch(self, part: GotPart) -> np.ndarray | None:
        """The part's bytes in ``out``, if they follow one another there."""
        rows = present_rows(part)
        if self._out is None or not isinstance(rows, slice):
            return None
        first = int(self._starts[rows.start]) if part.num_rows else 0
        return self._out[first : first + int(self._sizes[rows].sum())]

    def _lay(self, part: GotPart, block: np.ndarray, out: np.ndarray) -> None:
        """Put the bytes of a part, row by row in order, where its rows lie in ``out``."""
        rows = present_rows(part)
        starts, sizes = self._starts[rows], self._sizes[rows]
        if int(sizes.sum()) != len(block):
            raise Malformed(f"{len(block)} bytes came for {int(sizes.sum())}")
        if len(block) == 0:
            return
        if isinstance(rows, slice):
            first = int(starts[0])
            copy_into(out[first : first + len(block)], block)
        else:
            scatter_rows(out, starts, sizes, block)


def common_spec(field: str, parts: Sequence[GotPart]) -> FieldSpec:
    specs = [spec for part in parts for spec in part.column.specs]
    spec = specs[0]
    if len(specs) > 1:
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


def join_present(num_rows: int, parts: Sequence[GotPart]) -> np.ndarray | None:
    covered, are_whole = 0, True
    for part in parts:
        covered += part.num_rows
        are_whole = are_whole and part.column.present is None
    if covered == num_rows and are_whole:
        return None
    present = np.zeros(num_rows, dtype=bool)
    for part in parts:
        present[part.rows] = True if part.column.present is None else part.column.present
    return present


def join_lengths(spec: FieldSpec, num_rows: int, parts: Sequence[GotPart]) -> np.ndarray | None:
    if not spec.has_lengths:
        return None
    lengths = np.zeros(num_rows, dtype=np.int64)
    for part in parts:
        if part.column.lengths is None:
            raise Malformed("a ragged column came without its lengths")
        lengths[present_rows(part)] = part.column.lengths
    return lengths


def present_rows(part: GotPart) -> Rows:
    """Positions in the whole of the rows that the part has bytes for."""
    if part.column.present is None:
        return part.rows
    if isinstance(part.rows, slice):
        return np.flatnonzero(part.column.present) + int(part.rows.start)
    rows: np.ndarray = part.rows[part.column.present]
    return rows


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
