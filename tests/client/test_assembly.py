"""Columns cut into parts and joined again, against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.client.assembly import GotPart, JoinedColumn, expand_rows, scatter_rows
from transferqueue.client.column_bytes import ColumnBytes, rows_of
from transferqueue.errors import FieldSpecMismatch, Malformed
from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.wire.get import GotColumn

DENSE = FieldSpec(dtype="int32", shape=(3,))
EMPTY = FieldSpec(dtype="int32", shape=(0,))
RAGGED = FieldSpec(dtype="int16", shape=(-1, 2), ragged_dim=0)


@st.composite
def columns(draw: st.DrawFn, spec: FieldSpec, max_rows: int = 12) -> ColumnBytes:
    num_rows = draw(st.integers(0, max_rows))
    lengths = None
    num_units = num_rows
    if spec.has_lengths:
        listed = draw(st.lists(st.integers(0, 4), min_size=num_rows, max_size=num_rows))
        lengths = np.array(listed, np.int64)
        num_units = sum(listed)
    content = draw(st.binary(min_size=num_units * spec.unit_bytes, max_size=None))
    payload = np.frombuffer(content[: num_units * spec.unit_bytes], np.uint8)
    return ColumnBytes(spec=spec, lengths=lengths, payload=payload)


ANY_COLUMN = st.sampled_from([DENSE, EMPTY, RAGGED]).flatmap(columns)


def cells_of(column: ColumnBytes, num_rows: int) -> list[bytes]:
    sizes = column.sizes(num_rows)
    assert int(sizes.sum()) == len(column.payload)
    return [part.tobytes() for part in np.split(column.payload, np.cumsum(sizes))[:-1]]


def num_rows_of(column: ColumnBytes) -> int:
    if column.lengths is not None:
        return len(column.lengths)
    unit = column.spec.unit_bytes
    return len(column.payload) // unit if unit else 4


@given(ANY_COLUMN, st.data())
def test_rows_of_a_column_are_its_cells(column: ColumnBytes, data: st.DataObject) -> None:
    num_rows = num_rows_of(column)
    cells = cells_of(column, num_rows)
    index = data.draw(_rising(num_rows))
    for rows in (slice(0, num_rows), slice(1, max(1, num_rows - 1)), np.array(index, np.intp)):
        part = rows_of(column, rows, num_rows)
        numbers = np.arange(num_rows)[rows]
        expected = b"".join(cells[i] for i in numbers.tolist())
        assert part.num_bytes == len(expected)
        out = np.empty(part.num_bytes, np.uint8)
        part.copy_to(out)
        assert out.tobytes() == expected
        offset = data.draw(st.integers(0, len(expected)))
        nbytes = data.draw(st.integers(0, len(expected) - offset))
        assert part.cut(offset, nbytes).tobytes() == expected[offset : offset + nbytes]


def test_consecutive_rows_are_not_copied_to_be_cut() -> None:
    payload = np.arange(120, dtype=np.uint8)
    part = rows_of(ColumnBytes(spec=DENSE, lengths=None, payload=payload), slice(2, 8), 10)
    assert np.shares_memory(part.cut(5, 20), payload)


@given(ANY_COLUMN, st.data())
def test_parts_of_shards_join_to_the_column_whichever_way_their_bytes_come(
    column: ColumnBytes, data: st.DataObject
) -> None:
    num_rows = num_rows_of(column)
    if not num_rows:
        return
    cells = cells_of(column, num_rows)
    shard_of = np.array(
        data.draw(st.lists(st.integers(0, 2), min_size=num_rows, max_size=num_rows))
    )
    is_there = np.array(data.draw(st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)))
    if data.draw(st.booleans()):
        is_there[:] = True
    parts, late = [], []
    for shard in sorted(set(shard_of.tolist())):
        rows = np.flatnonzero(shard_of == shard)
        if not is_there[rows].any():
            continue
        payload = b"".join(cells[i] for i in rows.tolist() if is_there[i])
        is_late = data.draw(st.booleans())
        late.append(payload if is_late else None)
        parts.append(_part(column, rows, is_there[rows], None if is_late else payload))
    if not parts:
        return
    joined = JoinedColumn("x", num_rows, parts)
    for number, payload in enumerate(late):
        if payload is not None:
            target = joined.target(number)
            assert len(target) == len(payload)
            target[:] = np.frombuffer(payload, np.uint8)
    got = joined.finish()
    absent = b"" if column.lengths is not None else bytes(column.spec.unit_bytes)
    expected = [cell if there else absent for cell, there in zip(cells, is_there, strict=True)]
    assert cells_of(got, num_rows) == expected
    assert (got.present is None) == is_there.all()
    if got.present is not None:
        assert got.present.tolist() == is_there.tolist()


def _part(
    column: ColumnBytes, rows: np.ndarray, is_there: np.ndarray, payload: bytes | None
) -> GotPart:
    first, last = int(rows[0]), int(rows[-1])
    is_run = last - first + 1 == len(rows)
    lengths = None if column.lengths is None else column.lengths[rows[is_there]]
    return GotPart(
        rows=slice(first, last + 1) if is_run else rows,
        num_rows=len(rows),
        column=got_column(column.spec, lengths, None if is_there.all() else is_there),
        payload=None if payload is None else np.frombuffer(payload, np.uint8),
    )


def got_column(spec: FieldSpec, lengths: Any = None, present: Any = None, **more: Any) -> GotColumn:
    return GotColumn(
        specs=[spec],
        spec_of_row=None,
        present=present,
        lengths=lengths,
        **more,
    )


def whole(spec: FieldSpec, num_rows: int, payload: np.ndarray | None, **more: Any) -> GotPart:
    return GotPart(
        rows=slice(0, num_rows),
        num_rows=num_rows,
        column=got_column(spec, **more),
        payload=payload,
    )


def test_a_column_of_one_shard_is_not_copied() -> None:
    payload = np.arange(24, dtype=np.uint8)
    column = JoinedColumn("x", 2, [whole(DENSE, 2, payload)]).finish()
    assert np.shares_memory(column.payload, payload)


def test_bytes_of_consecutive_rows_come_to_their_final_memory() -> None:
    parts = [
        GotPart(rows=slice(0, 1), num_rows=1, column=got_column(DENSE), payload=None),
        GotPart(rows=slice(1, 3), num_rows=2, column=got_column(DENSE), payload=None),
    ]
    joined = JoinedColumn("x", 3, parts)
    targets = [joined.target(0), joined.target(1)]
    column = joined.finish()
    assert all(np.shares_memory(target, column.payload) for target in targets)
    assert [len(target) for target in targets] == [12, 24]


def test_shapes_that_differ_are_refused_and_dtypes_too() -> None:
    other_shape = FieldSpec(dtype="int32", shape=(4,))
    other_dtype = FieldSpec(dtype="int64", shape=(3,))
    for other in (other_shape, other_dtype):
        parts = [
            GotPart(rows=slice(0, 1), num_rows=1, column=got_column(DENSE), payload=None),
            GotPart(rows=slice(1, 2), num_rows=1, column=got_column(other), payload=None),
        ]
        with pytest.raises(FieldSpecMismatch, match="'x'"):
            JoinedColumn("x", 2, parts)


def test_text_of_two_widths_is_the_wider() -> None:
    narrow, wide = (FieldSpec(dtype=d, kind=FieldKind.ARRAY) for d in ("<U2", "<U5"))
    parts = [
        GotPart(
            rows=slice(0, 1),
            num_rows=1,
            column=got_column(narrow, np.array([2])),
            payload=np.arange(8, dtype=np.uint8),
        ),
        GotPart(
            rows=slice(1, 2),
            num_rows=1,
            column=got_column(wide, np.array([5])),
            payload=np.arange(20, dtype=np.uint8),
        ),
    ]
    column = JoinedColumn("x", 2, parts).finish()
    assert column.spec == wide
    assert column.lengths is not None
    assert column.lengths.tolist() == [2, 5]


@pytest.mark.parametrize("payload", [None, np.zeros(5, np.uint8)])
def test_an_answer_that_lacks_bytes_is_malformed(payload: np.ndarray | None) -> None:
    parts = [
        GotPart(rows=slice(0, 1), num_rows=1, column=got_column(DENSE), payload=payload),
        GotPart(
            rows=slice(1, 2), num_rows=1, column=got_column(DENSE), payload=np.zeros(12, np.uint8)
        ),
    ]
    with pytest.raises(Malformed):
        JoinedColumn("x", 2, parts).finish()
    with pytest.raises(Malformed, match="lengths"):
        JoinedColumn("x", 1, [whole(RAGGED, 1, payload)])


@given(ANY_COLUMN, st.data())
def test_rows_that_are_named_again_are_there_again(
    column: ColumnBytes, data: st.DataObject
) -> None:
    num_rows = num_rows_of(column)
    if not num_rows:
        return
    cells = cells_of(column, num_rows)
    inverse = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=20)), np.intp)
    got = expand_rows(column, inverse, num_rows)
    assert cells_of(got, len(inverse)) == [cells[i] for i in inverse.tolist()]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10), st.randoms())
def test_scattering_is_the_inverse_of_gathering(sizes: list[int], random: Any) -> None:
    order = list(range(len(sizes)))
    random.shuffle(order)
    ends = np.cumsum(sizes)
    starts = (ends - sizes)[order]
    out = np.zeros(int(ends[-1]), np.uint8)
    source = np.arange(len(out), dtype=np.uint8)
    moved = [source[s : s + sizes[i]] for i, s in zip(order, starts.tolist(), strict=True)]
    payload = np.concatenate(moved)
    if len(payload):
        scatter_rows(out, starts, np.array(sizes)[order], payload)
    assert out.tolist() == source.tolist()


def _rising(num_rows: int) -> st.SearchStrategy[list[int]]:
    return st.sets(st.integers(0, max(0, num_rows - 1)), max_size=num_rows).map(sorted)
