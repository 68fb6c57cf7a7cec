"""Which slabs leave memory, and when."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.shard.coldness import Marks, Surplus, coldest

MARKS = Marks.of(1000, 0.9, 0.5)


def test_nothing_goes_below_the_high_mark() -> None:
    surplus = Surplus(MARKS)
    assert [surplus.now(used, 0) for used in (0, 500, 900)] == [0, 0, 0]


def test_above_the_high_mark_slabs_go_until_the_low_one_is_reached() -> None:
    surplus = Surplus(MARKS)
    assert [surplus.now(used, 0) for used in (901, 700, 501, 500, 700)] == [401, 200, 1, 0, 0]


def test_a_put_that_waits_makes_slabs_go_at_any_level() -> None:
    surplus = Surplus(MARKS)
    assert surplus.now(300, 200) == 200
    assert surplus.now(100, 200) == 100, "there is no more to move"
    assert surplus.now(0, 200) == 0
    assert surplus.now(950, 200) == 450, "whichever is more"


@pytest.mark.parametrize(
    ("surplus", "most", "expected"),
    [
        (0, 100, []),
        (1, 100, [1]),
        (10, 100, [1]),
        (11, 100, [1, 3]),
        (1000, 99, [1, 3, 0]),
        (1000, 35, [1, 3]),
        (1000, 5, [1]),
        (1000, 1000, [1, 3, 0, 2]),
    ],
)
def test_the_coldest_go_first_and_no_more_than_needed(
    surplus: int, most: int, expected: list[int]
) -> None:
    nbytes = np.array([30, 10, 40, 20])
    last_use = np.array([7, 1, 9, 4])
    assert coldest(nbytes, last_use, surplus, most).tolist() == expected


def test_where_there_is_nothing_nothing_goes() -> None:
    assert coldest(np.array([], np.int64), np.array([], np.int64), 5, 5).tolist() == []
