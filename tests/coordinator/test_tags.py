"""Tag values and tag columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.coordinator.tag_values import MAX_TAG_CHARS, TagKind, tag_values
from transferqueue.coordinator.tags import TagTable
from transferqueue.errors import InvalidInput, RowCountMismatch, TagTypeMismatch, UnknownTag

ints = st.integers(-(2**63), 2**63 - 1)
columns = st.one_of(
    st.lists(st.one_of(st.none(), st.booleans()), min_size=1, max_size=20),
    st.lists(st.one_of(st.none(), ints), min_size=1, max_size=20),
    st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), min_size=1, max_size=20),
    st.lists(st.one_of(st.none(), st.text(max_size=8)), min_size=1, max_size=20),
)


def _rows(n: int) -> np.ndarray:
    return np.arange(n)


def _table(n: int = 64) -> TagTable:
    return TagTable("partition 'train'", n)


@given(column=columns)
def test_values_come_back_as_they_were_set(column: list[Any]) -> None:
    values = tag_values("t", column, len(column))
    if values is None:
        assert column == [None] * len(column)
        return
    table = _table()
    table.set("t", _rows(len(column)), values)
    got = table.get(_rows(len(column)), ["t"])["t"].tolist()
    assert got == column
    assert [type(a) for a in got] == [type(b) for b in column]


@given(column=columns, kept=st.sets(st.integers(0, 19)))
def test_values_stay_with_their_rows_when_rows_are_renumbered(
    column: list[Any], kept: set[int]
) -> None:
    values = tag_values("t", column, len(column))
    if values is None:
        return
    order = sorted(row for row in kept if row < len(column))
    table = _table()
    table.set("t", _rows(len(column)), values)
    table.keep(np.array(order, dtype=np.int64), 32)
    got = table.get(_rows(len(order)), ["t"])["t"].tolist()
    assert got == [column[row] for row in order]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, TagKind.BOOL),
        (3, TagKind.INT),
        (np.int16(3), TagKind.INT),
        (0.5, TagKind.FLOAT),
        (np.float32(0.5), TagKind.FLOAT),
        ("a", TagKind.STR),
        (np.array([1, 2], dtype=np.uint8), TagKind.INT),
        (np.array([0.5, 1], dtype=np.float16), TagKind.FLOAT),
        (np.array(["a", "b"]), TagKind.STR),
        ([1, 2.5], TagKind.FLOAT),
        ([np.int64(1), 2], TagKind.INT),
    ],
)
def test_a_tag_has_one_of_four_types(value: Any, kind: TagKind) -> None:
    values = tag_values("t", value, 2)
    assert values is not None
    assert values.kind is kind
    assert len(values) == 2


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, "a"], "one type, got"),
        ([1, True], "one type, got"),
        ([{}, {}], "got dict; put it as a field"),
        (object(), "put it as a field"),
        (1 + 2j, "got complex128"),
        (2**63, "does not fit int64"),
        ([2**63, 1], "does not fit int64"),
        (np.array([2**63, 1], dtype=np.uint64), "does not fit int64"),
        (np.zeros((2, 2)), r"shape \[2, 2\]"),
        (["x" * (MAX_TAG_CHARS + 1), "a"], "the limit is 1024"),
        ("x" * (MAX_TAG_CHARS + 1), "the limit is 1024"),
    ],
)
def test_what_cannot_be_a_tag_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        tag_values("depth", value, 2)
    assert "'depth'" in str(caught.value)


def test_one_value_a_row() -> None:
    with pytest.raises(RowCountMismatch, match="'t': expected 3 rows, got 2"):
        tag_values("t", [1, 2], 3)


def test_a_tag_keeps_its_type() -> None:
    table = _table()
    table.set("t", _rows(2), tag_values("t", "a", 2))
    with pytest.raises(TagTypeMismatch, match="tag 't' is str, got int64"):
        table.check_values({"t": tag_values("t", 3, 2)})


def test_ints_turn_into_floats_when_a_float_comes() -> None:
    table = _table()
    table.set("t", _rows(2), tag_values("t", [1, 2], 2))
    table.check_values({"t": tag_values("t", 0.5, 1)})
    table.set("t", _rows(1), tag_values("t", 0.5, 1))
    assert table.get(_rows(2), ["t"])["t"].tolist() == [0.5, 2.0]
    table.set("t", _rows(1), tag_values("t", 7, 1))
    assert table.get(_rows(2), ["t"])["t"].tolist() == [7.0, 2.0]


def test_an_unknown_tag_names_near_ones() -> None:
    table = _table()
    table.set("policy_version", _rows(1), tag_values("policy_version", 1, 1))
    with pytest.raises(UnknownTag, match=r"'policy_versoin' in partition 'train'.*policy_version"):
        table.column("policy_versoin")


def test_tags_that_none_of_the_rows_has_are_left_out() -> None:
    table = _table()
    table.set("a", _rows(2), tag_values("a", 1, 2))
    table.set("b", np.array([5]), tag_values("b", 1, 1))
    assert list(table.get(_rows(3))) == ["a"]


def test_strings_of_freed_rows_are_forgotten() -> None:
    table = _table(1000)
    table.set("g", _rows(1000), tag_values("g", [f"g{i}" for i in range(1000)], 1000))
    table.keep(np.array([17]), 8)
    assert table.columns["g"]._strings == ["g17"]
    assert table.columns["g"].code("g17") == 0
    assert table.columns["g"].code("g18") == -1
