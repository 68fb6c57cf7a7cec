"""Conditions on tags against plain Python over rows."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.coordinator.predicate import (
    MAX_DEPTH,
    MAX_VALUES,
    And,
    Compare,
    Exists,
    IsIn,
    Not,
    Or,
    Predicate,
    tag,
)
from transferqueue.coordinator.tag_values import tag_values
from transferqueue.coordinator.tags import TagTable
from transferqueue.errors import InvalidInput, TagTypeMismatch, UnknownTag

ROWS: list[dict[str, Any]] = [
    {"v": v, "name": name, "ok": ok, "w": w}
    for v in (None, 1, 2, 3)
    for name in (None, "a", "b")
    for ok in (True, False, None)
    for w in (0.5, None)
]
OPS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _table() -> TagTable:
    table = TagTable("partition 'train'", len(ROWS))
    for name in ROWS[0]:
        values = tag_values(name, [row[name] for row in ROWS], len(ROWS))
        assert values is not None
        table.set(name, np.arange(len(ROWS)), values)
    return table


leaves = st.one_of(
    st.builds(
        lambda name, op, value: OPS[op](tag(name), value),
        st.sampled_from(["v", "w"]),
        st.sampled_from(list(OPS)),
        st.sampled_from([1, 2, 2.5, 0.5, 9]),
    ),
    st.sampled_from(["a", "c"]).map(lambda value: tag("name") == value),
    st.sampled_from(["a", "c"]).map(lambda value: tag("name") != value),
    st.booleans().map(lambda value: tag("ok") == value),
    st.lists(st.sampled_from(["a", "b", "z"]), max_size=3).map(lambda v: tag("name").isin(v)),
    st.lists(st.sampled_from([1, 3, 8]), max_size=3).map(lambda v: tag("v").isin(v)),
    st.sampled_from(["v", "name", "never"]).map(lambda name: tag(name).exists()),
)
predicates = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(operator.invert),
    ),
    max_leaves=8,
)


def _holds(predicate: Predicate, row: dict[str, Any]) -> bool:
    match predicate:
        case Compare(name, op, value):
            return row[name] is not None and bool(OPS[op.value](row[name], value))
        case IsIn(name, values):
            return row[name] is not None and row[name] in values
        case Exists(name):
            return row.get(name) is not None
        case And(left, right):
            return _holds(left, row) and _holds(right, row)
        case Or(left, right):
            return _holds(left, row) or _holds(right, row)
        case Not(inner):
            return not _holds(inner, row)
    raise AssertionError(predicate)


@given(predicate=predicates)
def test_a_condition_holds_for_the_rows_it_says(predicate: Predicate) -> None:
    table, expected = _table(), [_holds(predicate, row) for row in ROWS]
    predicate.check(table)
    assert predicate.mask(table, np.arange(len(ROWS))).tolist() == expected
    assert predicate.mask(table, slice(0, len(ROWS))).tolist() == expected


@given(predicate=predicates)
def test_a_condition_survives_the_wire(predicate: Predicate) -> None:
    again = Predicate.from_plain(predicate.to_plain())
    assert repr(again) == repr(predicate)
    assert again.tags() == predicate.tags()


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        "v >= 3",
        ["v", ">=", 3],
        [">=", "v"],
        [">=", "v", None],
        [">=", "v", [1]],
        [">=", 3, 3],
        ["and", [">=", "v", 3]],
        ["in", "v", 3],
        ["in", "v", [{}]],
        ["not"],
        ["eval", "v", 3],
        ["exists", 3],
        [">=", "v", 2**63],
        ["==", "v", "x" * 5000],
    ],
)
def test_anything_else_on_the_wire_is_refused(plain: Any) -> None:
    with pytest.raises(InvalidInput):
        Predicate.from_plain(plain)


def test_a_condition_that_is_too_deep_or_too_long_is_refused() -> None:
    deep: list[Any] = [">=", "v", 3]
    for _ in range(MAX_DEPTH):
        deep = ["not", deep]
    with pytest.raises(InvalidInput, match="nested 64 deep"):
        Predicate.from_plain(deep)
    wide: list[Any] = [">=", "v", 3]
    for _ in range(11):
        wide = ["or", wide, wide]
    with pytest.raises(InvalidInput, match="at most 1024 conditions"):
        Predicate.from_plain(wide)
    with pytest.raises(InvalidInput, match=f"more than {MAX_VALUES}"):
        Predicate.from_plain(["in", "v", [0] * (MAX_VALUES + 1)])


def test_an_unknown_tag_names_near_ones_and_holds_for_no_row() -> None:
    table = _table()
    with pytest.raises(UnknownTag, match="did you mean 'name'"):
        (tag("nam") == "a").check(table)
    assert not (tag("nam") == "a").mask(table, np.arange(4)).any()
    assert not tag("nam").isin(["a"]).mask(table, np.arange(4)).any()


@pytest.mark.parametrize(
    ("predicate", "message"),
    [
        (tag("v") == "a", "tag 'v' is int64, got str 'a'"),
        (tag("v") == True, "tag 'v' is int64, got bool True"),  # noqa: E712
        (tag("name") == 3, "tag 'name' is str, got int 3"),
        (tag("ok") == 1, "tag 'ok' is bool, got int 1"),
        (tag("name") < "b", "only == and != make sense"),
        (tag("ok") >= False, "only == and != make sense"),
        (tag("v").isin(["a"]), "got str 'a' in isin"),
    ],
)
def test_a_comparison_of_two_types_is_refused_and_holds_for_no_row(
    predicate: Predicate, message: str
) -> None:
    table = _table()
    with pytest.raises(TagTypeMismatch, match=message):
        predicate.check(table)
    assert not predicate.mask(table, np.arange(len(ROWS))).any()


def test_a_wrong_part_is_found_inside_a_whole() -> None:
    for whole in (
        (tag("v") > 1) & ~(tag("nam") == "a"),
        (tag("nam") == "a") | (tag("v") > 1),
    ):
        with pytest.raises(UnknownTag):
            whole.check(_table())


def test_python_words_for_and_or_not_are_caught() -> None:
    with pytest.raises(TypeError, match="write &"):
        bool((tag("v") > 1) and (tag("v") < 3))
    with pytest.raises(TypeError, match="compare it"):
        bool(tag("v"))
    with pytest.raises(TypeError, match="put comparisons in brackets"):
        (tag("v") > 1) & 3  # type: ignore[operator]


def test_what_cannot_be_compared_is_refused_where_it_is_written() -> None:
    for wrong in (None, [1], object(), 2**63):
        with pytest.raises(InvalidInput, match="tag 'v'"):
            tag("v") == wrong  # noqa: B015
    with pytest.raises(InvalidInput, match="not a str"):
        tag("v").isin("abc")
    with pytest.raises(InvalidInput, match="non-empty str"):
        tag("")


def test_numpy_scalars_compare_as_plain_values() -> None:
    assert (tag("v") >= np.int64(3)).to_plain() == [">=", "v", 3]
    assert (tag("v") >= np.float32(0.5)).to_plain() == [">=", "v", 0.5]
