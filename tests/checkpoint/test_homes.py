"""Which shard a uid lives on."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.errors import Malformed
from transferqueue.homes import END, NAMED, Homes, UidRange

MOVED = Homes(starts=(0, 100, 1 << 50), slots=(2, 0, 2))


def uids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_without_a_table_each_uid_lives_on_the_slot_that_it_names() -> None:
    assert NAMED.of(uids(5, (3 << 48) + 7)).tolist() == [0, 3]
    assert NAMED.ranges_of(3) == [UidRange(start=3 << 48, stop=4 << 48)]


def test_with_a_table_the_range_decides() -> None:
    assert MOVED.of(uids(0, 99, 100, (1 << 50) - 1, 1 << 50, END - 1)).tolist() == [
        2, 2, 0, 0, 2, 2,
    ]  # fmt: skip
    assert MOVED.ranges_of(2) == [UidRange(start=0, stop=100), UidRange(start=1 << 50, stop=END)]
    assert MOVED.ranges_of(1) == []


def test_a_batch_is_split_by_home_in_the_order_of_its_rows() -> None:
    split = MOVED.split(uids(100, 5, 101, 6))
    assert {slot: at.tolist() for slot, at in split.items()} == {0: [0, 2], 2: [1, 3]}
    assert MOVED.split(uids()) == {}


def test_a_table_comes_back_from_its_plain_form() -> None:
    assert Homes.from_plain(MOVED.to_plain()) == MOVED
    assert Homes.from_plain(None) == NAMED


@pytest.mark.parametrize(
    "plain", [[[1], [0]], [[0, 0], [1, 2]], [[0], [1, 2]], [[0], [-1]], [["a"], [0]], 7]
)
def test_what_is_no_table_is_refused(plain: object) -> None:
    with pytest.raises(Malformed):
        Homes.from_plain(plain)
