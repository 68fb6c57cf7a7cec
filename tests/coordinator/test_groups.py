"""Which groups are complete, against counting."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.coordinator.groups import GroupIndex, ReadyGroups
from transferqueue.coordinator.row_set import RowSet
from transferqueue.coordinator.tag_values import tag_values
from transferqueue.coordinator.tags import TagTable

CAPACITY = 256
tags_of_rows = st.lists(st.one_of(st.none(), st.integers(0, 6)), min_size=1, max_size=40)


def _array(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _index(values: list[int | None], batch: int) -> GroupIndex:
    """An index that got its rows in batches."""
    table = TagTable("partition 'train'", CAPACITY)
    tagged = tag_values("g", values, len(values))
    if tagged is not None:
        table.set("g", np.arange(len(values)), tagged)
    index = GroupIndex("g", table, _array([]), CAPACITY)
    for first in range(0, len(values), batch):
        index.add(np.arange(first, min(first + batch, len(values))))
    return index


def _members(values: list[int | None], ready: set[int]) -> dict[int, list[int]]:
    """Group -> its ready rows, groups in order of their first row."""
    groups: dict[int, list[int]] = defaultdict(list)
    for row, value in enumerate(values):
        if value is not None:
            groups[value]
            if row in ready:
                groups[value].append(row)
    return groups


@given(
    values=tags_of_rows,
    batch=st.integers(1, 9),
    size=st.integers(1, 4),
    changes=st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 39))), max_size=8),
    n=st.integers(0, 8),
)
def test_the_oldest_complete_groups_are_found(
    values: list[int | None],
    batch: int,
    size: int,
    changes: list[tuple[bool, set[int]]],
    n: int,
) -> None:
    ready, model = RowSet(CAPACITY), set()
    groups = ReadyGroups(_index(values, batch), size, ready)
    for adds, rows in changes:
        rows = {row for row in rows if row < len(values)}
        changed = sorted(rows - model) if adds else sorted(rows & model)
        (ready.add if adds else ready.discard)(_array(changed))
        groups.change(_array(changed), 1 if adds else -1)
        model = model | rows if adds else model - rows
    members = _members(values, model)
    complete = [rows for rows in members.values() if len(rows) >= size]
    assert groups.num_complete == sum(len(rows) // size for rows in complete)
    assert groups.first(n).tolist() == [row for rows in complete[:n] for row in rows]
    groups.rebuild()
    assert groups.num_complete == sum(len(rows) // size for rows in complete)


def test_a_group_of_thousands_is_not_walked_row_by_row() -> None:
    table = TagTable("partition 'train'", 5000)
    values = tag_values("g", [i % 2 for i in range(5000)], 5000)
    assert values is not None
    table.set("g", np.arange(5000), values)
    index = GroupIndex("g", table, np.arange(5000), 5000)
    rows = index.rows_of(_array([1, 0]))
    assert rows.tolist() == [*range(1, 5000, 2), *range(0, 5000, 2)]


def test_rows_tagged_later_join_and_moved_rows_ask_for_a_rebuild() -> None:
    table = TagTable("partition 'train'", CAPACITY)
    index = GroupIndex("g", table, _array([]), CAPACITY)
    index.add(np.arange(4))
    tagged = tag_values("g", ["a", "b"], 2)
    assert tagged is not None
    table.set("g", _array([1, 2]), tagged)
    joined = index.retag(np.arange(4))
    assert joined is not None
    assert joined.tolist() == [1, 2]
    assert index.codes(np.arange(4)).tolist() == [-1, 0, 1, -1]
    again = index.retag(np.arange(4))
    assert again is not None
    assert again.tolist() == []
    moved = tag_values("g", ["b"], 1)
    assert moved is not None
    table.set("g", _array([1]), moved)
    assert index.retag(np.arange(4)) is None
    index.rebuild(np.arange(4), CAPACITY)
    assert index.rows_of(_array([0])).tolist() == [1, 2]
