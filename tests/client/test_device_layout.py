"""How columns are laid on a device, against rows picked one by one."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.client import device_gather, device_layout
from transferqueue.client.device_gather import RowOrder
from transferqueue.client.device_layout import Layout, PartRows, lay_out

UNIT = 24
"""Bytes."""


@dataclass
class Case:
    unit_bytes: int
    lengths: np.ndarray | None
    parts: list[PartRows]
    memories: list[np.ndarray]
    """Of each part: where its rows begin, or the rows one after the other."""
    rows: list[bytes]
    """That are wanted of the column, in its own order."""
    inverse: np.ndarray | None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_rows = draw(st.integers(1, 12))
    unit_bytes = draw(st.sampled_from([1, 3, 4, 24]))
    ragged = draw(st.booleans())
    lengths = np.array(draw(st.lists(st.integers(0, 4), min_size=num_rows, max_size=num_rows)))
    units = lengths if ragged else np.ones(num_rows, np.int64)
    part_of = np.array(draw(st.lists(st.integers(-1, 2), min_size=num_rows, max_size=num_rows)))
    dice = np.random.default_rng(draw(st.integers(0, 1000)))
    units = np.where(part_of < 0, 0, units) if ragged else units
    rows = [dice.integers(1, 256, n * unit_bytes, np.uint8).tobytes() for n in units]
    parts, memories = [], []
    for number in range(3):
        mine = np.flatnonzero(part_of == number)
        if len(mine):
            part, memory = _part(draw, dice, mine, rows, unit_bytes)
            parts.append(part)
            memories.append(memory)
    absent = part_of < 0
    wanted = [bytes(len(r)) if gone else r for r, gone in zip(rows, absent, strict=True)]
    inverse = None
    if draw(st.booleans()):
        inverse = np.array(draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=20)))
    return Case(unit_bytes, units if ragged else None, parts, memories, wanted, inverse)


def _part(
    draw: st.DrawFn, dice: np.random.Generator, mine: np.ndarray, rows: list[bytes], unit: int
) -> tuple[PartRows, np.ndarray]:
    if draw(st.booleans()):
        memory = b"".join(rows[row] for row in mine)
        return PartRows(rows=mine, starts=None), np.frombuffer(memory, np.uint8)
    starts, at = np.zeros(len(mine), np.int64), draw(st.integers(0, 40))
    pieces: list[tuple[int, bytes]] = []
    for place in dice.permutation(len(mine)).tolist():
        starts[place] = at
        pieces.append((at, rows[mine[place]]))
        at += len(rows[mine[place]]) + draw(st.sampled_from([0, 0, unit, 5, 3 * unit]))
    memory = dice.integers(1, 256, at + 1, np.uint8)
    for start, data in pieces:
        memory[start : start + len(data)] = np.frombuffer(data, np.uint8)
    spans = draw(st.booleans())
    return PartRows(rows=mine, starts=starts, spans_gaps=spans), memory


def carried_out(case: Case, layout: Layout) -> np.ndarray:
    """The memory that the column was laid in."""
    laid = np.full(layout.nbytes, 0xDB, np.uint8)
    laid[slice(*layout.zeros)] = 0
    for copies in layout.copies:
        memory = case.memories[copies.part]
        for start, target, size in zip(*(x.tolist() for x in copies[1:]), strict=True):
            laid[target : target + size] = memory[start : start + size]
    for number, runs in layout.runs.items():
        data, at = case.memories[number], 0
        assert runs.total_bytes == len(data)
        for start, size in zip(runs.starts.tolist(), runs.sizes.tolist(), strict=True):
            laid[start : start + size] = data[at : at + size]
            at += size
    return laid


@given(cases(), st.sampled_from([0, 3, 1024]), st.sampled_from([2, 1 << 20]))
def test_every_column_is_what_was_asked_for(case: Case, most: int, index: int) -> None:
    with (
        mock.patch.object(device_layout, "MAX_PIECES", most),
        mock.patch.object(device_gather, "MAX_INDEX", index),
    ):
        sizes = np.array([len(row) for row in case.rows])
        is_complete = sum(len(np.atleast_1d(part.rows)) for part in case.parts) == len(sizes)
        layout = lay_out(sizes, case.unit_bytes, case.parts, case.inverse, is_complete=is_complete)
        laid = carried_out(case, layout)
        wanted = b"".join(case.rows)
        lengths = case.lengths
        if case.inverse is not None:
            wanted = b"".join(case.rows[row] for row in case.inverse)
            lengths = None if lengths is None else lengths[case.inverse]
        if layout.first_units is None:
            assert case.inverse is None
            assert laid.tobytes() == wanted
            return
        order = RowOrder(layout.first_units, lengths)
        out = torch.full((len(wanted),), 0xDB, dtype=torch.uint8)
        if wanted:
            plain = torch.from_numpy(order.plain.copy()).reshape(-1)
            order.gather(out, torch.from_numpy(laid), plain, case.unit_bytes)
        assert out.numpy().tobytes() == wanted


def layout(rows: list[int], *, inverse: list[int] | None = None, spans: bool = True) -> Layout:
    """Of rows of one put, which lie side by side in a shard's memory, each of a unit."""
    starts = 1000 + UNIT * np.array(rows, np.int64)
    part = PartRows(rows=slice(0, len(rows)), starts=starts, spans_gaps=spans)
    sizes = np.full(len(rows), UNIT, np.int64)
    which = None if inverse is None else np.array(inverse)
    return lay_out(sizes, UNIT, [part], which, is_complete=True)


def test_rows_that_are_asked_for_often_are_copied_once() -> None:
    found = layout(list(range(1000)), inverse=list(range(1000)) * 8)
    assert found.num_copies == 1
    assert found.nbytes == 1000 * UNIT
    assert found.first_units is not None
    assert len(found.first_units) == 8000


def test_a_few_pieces_go_straight_to_their_places() -> None:
    found = layout(list(range(999, -1, -1)))
    assert (found.num_copies, found.first_units) == (1000, None)
    assert layout(list(range(9999))).num_copies == 1


def test_many_pieces_are_one_copy_and_an_order() -> None:
    shuffled = np.random.default_rng(0).permutation(6000).tolist()
    assert layout(shuffled).num_copies == 1
    every_third = list(range(0, 60_000, 3))[::-1]
    assert layout(every_third, spans=False).num_copies == 20_000
    found = layout(every_third)
    assert found.num_copies <= 2
    assert found.nbytes < 3 * 20_000 * UNIT


def test_what_lies_between_rows_is_not_copied_where_it_is_far_more_than_they_are() -> None:
    found = layout(list(range(0, 2_000_000, 1000)))
    rows = 2000 * UNIT
    assert found.nbytes <= 2 * rows + device_layout.SPARE_BYTES
    assert found.num_copies > 1000


@pytest.mark.parametrize("unit_bytes", [0, 8])
def test_a_column_without_bytes_is_nothing(unit_bytes: int) -> None:
    part = PartRows(rows=slice(0, 3), starts=np.zeros(3, np.int64), spans_gaps=True)
    found = lay_out(np.zeros(3, np.int64), unit_bytes, [part], np.array([2, 2]), is_complete=True)
    assert (found.nbytes, found.num_copies) == (0, 0)
