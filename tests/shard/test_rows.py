"""Where cells lie: rows found, cells written once, cleared rows gone."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.errors import FieldExists, FieldsMissing, RowsGone
from transferqueue.shard.rows import Cells, RowTable


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def cells(*starts: int, slab: int = 0) -> Cells:
    return Cells(
        slabs=np.full(len(starts), slab, np.int32),
        starts=np.array(starts, np.int64),
        lengths=np.ones(len(starts), np.int64),
    )


def table_of(*uids: int) -> RowTable:
    table = RowTable()
    table.append(ints(*uids))
    return table


def put(table: RowTable, field: str, uids: np.ndarray, slab: int = 0) -> None:
    table.write(field, table.locate(uids), cells(*(uids * 10).tolist(), slab=slab))


def test_rows_are_found_in_the_order_asked_for() -> None:
    table = table_of(3, 5, 9)
    assert table.locate(ints(9, 3, 9)).tolist() == [2, 0, 2]
    assert table.locate(ints()).tolist() == []


@pytest.mark.parametrize("uid", [0, 4, 10, -1, 2**62, -(2**63)])
def test_a_row_that_never_was_is_gone(uid: int) -> None:
    with pytest.raises(RowsGone, match="1 of 2 rows"):
        table_of(3, 5, 9).locate(ints(5, uid))
    with pytest.raises(RowsGone, match="1 of 1 rows"):
        RowTable().locate(ints(uid))


def test_a_missing_field_is_counted_by_rows_and_names_its_like() -> None:
    table = table_of(1, 2, 3)
    put(table, "rewards", ints(2))
    with pytest.raises(FieldsMissing, match=r"'rewards' \(2 of 3 rows\)"):
        table.read_all(["rewards"], table.locate(ints(1, 2, 3)))
    put(table, "rewards", ints(1, 3))
    with pytest.raises(FieldsMissing, match="did you mean 'rewards'"):
        table.read_all(["rewardz"], table.locate(ints(1)))


def test_a_cell_is_taken_from_when_it_is_reserved_and_free_again_when_it_is_not() -> None:
    table = table_of(1, 2)
    rows = table.locate(ints(1))
    table.reserve("x", rows)
    for allow_written in (False, True):
        with pytest.raises(FieldExists):
            table.check_free("x", rows, allow_written=allow_written)
    table.check_free("x", table.locate(ints(2)))
    table.unreserve("x", rows)
    table.check_free("x", rows)
    table.unreserve("y", rows)
    assert table.fields == ["x"]


def test_a_reserved_cell_is_absent_for_readers() -> None:
    table = table_of(1)
    table.reserve("x", table.locate(ints(1)))
    assert not table.read("x", ints(0)).is_there.any()


def test_reserving_to_overwrite_leaves_what_is_there_in_sight() -> None:
    table = table_of(1, 2)
    put(table, "x", ints(1))
    rows = table.locate(ints(1, 2))
    table.reserve("x", rows)
    assert table.read("x", rows).starts.tolist() == [10, 0]
    table.unreserve("x", rows)
    assert table.read("x", rows).is_there.tolist() == [True, False]


def test_writing_over_a_cell_returns_the_one_it_replaces() -> None:
    table = table_of(1, 2)
    put(table, "x", ints(2), slab=4)
    old = table.write("x", table.locate(ints(1, 2)), cells(7, 8, slab=5))
    assert (old.slabs.tolist(), old.starts.tolist()) == ([4], [20])


def test_clearing_returns_every_cell_once_and_the_row_is_gone() -> None:
    table = table_of(1, 2, 3)
    put(table, "x", ints(1, 2, 3))
    put(table, "y", ints(3), slab=1)
    freed = table.clear(table.locate(ints(2, 3)))
    assert sorted(start for part in freed for start in part.starts.tolist()) == [20, 30, 30]
    assert table.uids().tolist() == [1]
    with pytest.raises(RowsGone):
        table.locate(ints(3))


def test_clearing_a_reserved_row_frees_nothing_of_the_put_under_way() -> None:
    table = table_of(1, 2)
    table.reserve("x", table.locate(ints(1, 2)))
    assert sum(len(part) for part in table.clear(table.locate(ints(1)))) == 0
    table.unreserve("x", table.locate(ints(2)))
    table.check_free("x", table.locate(ints(2)))


def test_the_table_follows_what_is_alive_and_keeps_reservations() -> None:
    table = RowTable()
    uids = np.arange(1000)
    table.append(uids)
    put(table, "x", uids)
    put(table, "only early rows", np.arange(100), slab=1)
    table.reserve("y", table.locate(ints(990, 999)))
    table.clear(table.locate(np.arange(900)))
    assert len(table._uids) <= 256
    assert table.fields == ["x", "y"]
    alive = np.arange(900, 1000)
    assert table.read("x", table.locate(alive)).starts.tolist() == (alive * 10).tolist()
    with pytest.raises(FieldExists, match="2 of the rows"):
        table.check_free("y", table.locate(alive))
    table.append(ints(5000))
    assert table.locate(ints(5000, 999)).tolist() == [100, 99]


def test_many_small_appends_cost_amortized_copies() -> None:
    table = RowTable()
    for uid in range(3000):
        table.append(ints(uid))
    assert len(table) == 3000
    assert len(table._uids) <= 2 * 3000
