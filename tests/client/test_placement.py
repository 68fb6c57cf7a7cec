"""Which rows go to, or lie on, which shard."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.client.placement import nearest, place_new_rows, split_by_home
from transferqueue.devices.ladder import Rung
from transferqueue.uids import SEQUENCE_BITS


def uids_of(slots: list[int]) -> np.ndarray:
    return (np.array(slots, np.int64) << SEQUENCE_BITS) + np.arange(len(slots))


@given(st.lists(st.integers(0, 4), max_size=40))
def test_every_row_is_in_the_part_of_its_slot_once_and_in_order(slots: list[int]) -> None:
    uids = uids_of(slots)
    parts = split_by_home(uids)
    numbers = np.arange(len(uids))
    seen = np.concatenate([numbers[part.rows] for part in parts]) if parts else numbers[:0]
    assert sorted(seen.tolist()) == numbers.tolist()
    for part in parts:
        rows = numbers[part.rows]
        assert len(rows) == part.num_rows
        assert (np.diff(rows) > 0).all()
        assert {slots[i] for i in rows.tolist()} == {part.slot}
    assert [part.slot for part in parts] == list(dict.fromkeys(slots))


def test_rows_that_follow_one_another_are_a_slice() -> None:
    parts = split_by_home(uids_of([1, 1, 2, 2, 2, 1]))
    assert parts[1].rows == slice(2, 5)
    assert isinstance(parts[0].rows, np.ndarray)
    assert split_by_home(uids_of([7, 7]))[0].rows == slice(0, 2)


@given(
    st.integers(1, 100),
    st.integers(0, 10_000),
    st.lists(st.integers(0, 50), min_size=1, max_size=6, unique=True),
    st.integers(0, 1000),
    st.integers(1, 5_000),
)
def test_new_rows_go_to_one_shard_while_they_are_few_else_in_equal_runs(
    num_rows: int, num_bytes: int, slots: list[int], turn: int, split_bytes: int
) -> None:
    parts = place_new_rows(num_rows, num_bytes, slots, turn=turn, split_bytes=split_bytes)
    assert [part.rows.start for part in parts] == [
        0,
        *(part.rows.stop for part in parts[:-1]),
    ]
    assert parts[-1].rows.stop == num_rows
    counts = [part.num_rows for part in parts]
    assert max(counts) - min(counts) <= 1
    assert min(counts) >= 1
    assert len({part.slot for part in parts}) == len(parts)
    assert parts[0].slot == slots[turn % len(slots)]
    if num_bytes < 2 * split_bytes:
        assert len(parts) == 1
    else:
        assert len(parts) == min(len(slots), num_rows, num_bytes // split_bytes)


def test_a_put_of_no_rows_has_one_empty_part() -> None:
    (part,) = place_new_rows(0, 0, [4, 5], turn=1, split_bytes=1)
    assert (part.slot, part.num_rows, part.rows) == (5, 0, slice(0, 0))


def test_new_rows_on_a_gpu_go_to_the_shards_on_that_gpu() -> None:
    ways = [(0, Rung.PEER), (1, Rung.SAME_GPU), (2, Rung.STREAM), (3, Rung.SAME_GPU)]
    assert nearest(ways) == [1, 3]
    assert nearest(ways[:1] + ways[2:3]) == [0]


def test_by_way_of_the_host_all_shards_are_alike() -> None:
    assert nearest([(0, Rung.PINNED_STREAM), (1, Rung.SHM), (2, Rung.STREAM)]) == [0, 1, 2]
