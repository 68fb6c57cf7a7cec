"""What people write for rows, against what numpy makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.errors import InvalidInput, RowCountMismatch
from transferqueue.rows import checked_count, choose_rows, even_chunks, permutation


@given(st.integers(0, 200), st.integers(1, 40))
def test_chunks_are_those_of_array_split(num_rows: int, num_chunks: int) -> None:
    ours = [np.arange(num_rows)[chunk].tolist() for chunk in even_chunks(num_rows, num_chunks)]
    assert ours == [part.tolist() for part in np.array_split(np.arange(num_rows), num_chunks)]


@pytest.mark.parametrize(
    ("num_rows", "num_chunks", "sizes"),
    [
        (10, 4, [3, 3, 2, 2]),
        (2, 4, [1, 1, 0, 0]),
        (1, 4, [1, 0, 0, 0]),
        (124, 15, [9] * 4 + [8] * 11),
    ],
)
def test_rows_that_do_not_divide_are_split_unevenly(
    num_rows: int, num_chunks: int, sizes: list[int]
) -> None:
    assert [chunk.stop - chunk.start for chunk in even_chunks(num_rows, num_chunks)] == sizes


@pytest.mark.parametrize(
    "rows",
    [
        slice(2, 5),
        slice(None, None, -2),
        [0, -1, 3, 3],
        [],
        np.array([True, False] * 5),
        torch.tensor([4, 1]),
        torch.tensor([True] * 10),
        np.array([1, 2], dtype=np.uint8),
        range(3),
    ],
    ids=str,
)
def test_rows_are_what_numpy_says(rows: object) -> None:
    data = np.arange(10) * 10
    index = rows if isinstance(rows, slice) else list(rows)  # type: ignore[call-overload]
    assert data[choose_rows(rows, 10)].tolist() == data[index].tolist()


@pytest.mark.parametrize("row", [0, 9, -1, -10, np.int32(3), torch.tensor(3)], ids=str)
def test_one_int_is_one_row_that_keeps_its_dimension(row: int) -> None:
    data = np.arange(10) * 10
    assert data[choose_rows(row, 10)].tolist() == [int(data[int(row)])]


@pytest.mark.parametrize("rows", [10, -11, [0, 10], [-11], [True] * 9], ids=str)
def test_rows_out_of_range_are_an_index_error(rows: object) -> None:
    with pytest.raises(IndexError, match="10"):
        choose_rows(rows, 10)


@pytest.mark.parametrize("rows", [True, None, "a", (1, 2), [1.0], [[1]], ["a"], 1.5], ids=str)
def test_anything_else_is_a_type_error(rows: object) -> None:
    with pytest.raises(TypeError):
        choose_rows(rows, 10)


def test_a_permutation_takes_each_row_once() -> None:
    assert permutation([2, -1, 0, 1], 4).tolist() == [2, -1, 0, 1]
    assert permutation([], 0).tolist() == []
    with pytest.raises(InvalidInput, match="each row once"):
        permutation([0, -4, 1, 2], 4)
    with pytest.raises(RowCountMismatch, match="expected 4 rows, got 2"):
        permutation([0, 1], 4)


@pytest.mark.parametrize("value", [True, 1.0, "2", None])
def test_a_count_is_an_int(value: object) -> None:
    with pytest.raises(TypeError, match="n must be an int"):
        checked_count(value, "n", low=0)


def test_a_count_has_a_lowest_value() -> None:
    assert checked_count(np.int64(3), "n", low=3) == 3
    with pytest.raises(ValueError, match="n must be at least 3, got 2"):
        checked_count(2, "n", low=3)
