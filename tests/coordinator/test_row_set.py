"""RowSet against a plain set of ints."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.coordinator.row_set import RowSet, none_of

NUM_ROWS = 3000
rows = st.one_of(
    st.lists(st.integers(0, NUM_ROWS - 1), unique=True, max_size=60),
    st.tuples(st.integers(0, NUM_ROWS - 200), st.integers(0, 199)).map(
        lambda run: list(range(run[0], run[0] + run[1]))
    ),
)
changes = st.lists(st.tuples(st.booleans(), rows), max_size=12)


def _array(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _after(ops: list[tuple[bool, list[int]]]) -> tuple[RowSet, set[int]]:
    row_set, model = RowSet(NUM_ROWS), set()
    for adds, values in ops:
        if adds:
            row_set.add(_array(values))
            model |= set(values)
        else:
            row_set.discard(_array(values))
            model -= set(values)
        # Looking moves the place where the next look starts.
        assert row_set.first(1).tolist() == sorted(model)[:1]
    return row_set, model


@given(ops=changes, n=st.integers(0, 400))
def test_first_finds_the_lowest_rows_in_order(ops: list[tuple[bool, list[int]]], n: int) -> None:
    row_set, model = _after(ops)
    assert len(row_set) == len(model)
    assert row_set.first(n).tolist() == sorted(model)[:n]
    assert row_set.all().tolist() == sorted(model)


@given(ops=changes, asked=rows)
def test_contains_answers_for_each_row(ops: list[tuple[bool, list[int]]], asked: list[int]) -> None:
    row_set, model = _after(ops)
    assert row_set.contains(_array(asked)).tolist() == [row in model for row in asked]


@given(ops=changes, more=changes, kept=st.sets(st.integers(0, NUM_ROWS - 1)))
def test_rows_keep_their_membership_when_they_are_renumbered(
    ops: list[tuple[bool, list[int]]], more: list[tuple[bool, list[int]]], kept: set[int]
) -> None:
    row_set, model = _after(ops)
    order = sorted(kept)
    row_set.keep(_array(order))
    model = {new for new, old in enumerate(order) if old in model}
    assert row_set.all().tolist() == sorted(model)
    for adds, values in more:
        (row_set.add if adds else row_set.discard)(_array(values))
        model = model | set(values) if adds else model - set(values)
    assert row_set.all().tolist() == sorted(model)


def test_it_grows_when_room_is_reserved() -> None:
    row_set = RowSet()
    row_set.add(_array([]))
    assert row_set.first(5).tolist() == []
    row_set.reserve(1_000_000)
    row_set.add(_array([999_999, 3]))
    row_set.reserve(2_000_000)
    assert row_set.all().tolist() == [3, 999_999]


@given(mask=st.lists(st.booleans(), max_size=200))
def test_it_can_be_made_of_a_mask(mask: list[bool]) -> None:
    row_set = RowSet.of_mask(np.array(mask, dtype=np.bool_), 300)
    assert row_set.all().tolist() == [row for row, inside in enumerate(mask) if inside]


def test_a_mask_that_picks_none_has_the_length_of_what_it_is_for() -> None:
    assert none_of(slice(3, 7)).tolist() == [False] * 4
    assert none_of(_array([1, 2])).tolist() == [False] * 2
