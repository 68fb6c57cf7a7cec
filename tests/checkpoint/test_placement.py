"""Saved rows are dealt evenly to any number of shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.checkpoint.lives import Life
from transferqueue.checkpoint.placement import MAX_STRETCHES, Stretch, place, stretches_of


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_few_rows_are_a_stretch_each() -> None:
    assert stretches_of(ints(3, 4, 9), ints(10, 20, 5)) == [
        Stretch(first_uid=3, nbytes=10),
        Stretch(first_uid=4, nbytes=20),
        Stretch(first_uid=9, nbytes=5),
    ]
    assert stretches_of(ints(), ints()) == []


def test_many_rows_are_a_bounded_number_of_even_stretches() -> None:
    sizes = np.random.default_rng(0).integers(0, 100, 50_000)
    stretches = stretches_of(np.arange(50_000), sizes)
    assert len(stretches) <= MAX_STRETCHES
    assert sum(stretch.nbytes for stretch in stretches) == sizes.sum()
    assert max(s.nbytes for s in stretches) <= 3 * sizes.sum() / MAX_STRETCHES


@given(
    sizes=st.lists(st.integers(0, 1000), max_size=200),
    num_shards=st.integers(1, 20),
)
def test_each_row_has_a_home_and_no_shard_gets_more_than_its_share_and_a_stretch(
    sizes: list[int], num_shards: int
) -> None:
    uids = np.arange(len(sizes)) * 3 + 5
    stretches = stretches_of(uids, np.array(sizes, dtype=np.int64))
    life = Life(number=9, num_shards=num_shards)
    homes = place(stretches, life)
    slots = homes.of(uids)
    assert set(slots.tolist()) <= set(range(num_shards))
    held = np.bincount(slots, weights=sizes, minlength=num_shards) if len(sizes) else np.zeros(1)
    assert held.max() <= sum(sizes) / num_shards + max(sizes, default=0) + 1e-9


@pytest.mark.parametrize("num_shards", [1, 3])
def test_new_uids_live_on_the_shard_that_gives_them(num_shards: int) -> None:
    life = Life(number=9, num_shards=num_shards)
    homes = place([Stretch(first_uid=1, nbytes=10)], life)
    for slot in range(life.num_parts):
        part = life.part(slot)
        assert homes.of(ints(part.start, part.stop - 1)).tolist() == [slot, slot]


def test_the_same_rows_go_to_one_shard_or_to_several() -> None:
    stretches = [Stretch(first_uid=100 * n, nbytes=1) for n in range(6)]
    by_shards = {
        n: place(stretches, Life(number=9, num_shards=n)).of(ints(0, 100, 200, 300, 400, 500))
        for n in (1, 2, 3)
    }
    assert by_shards[1].tolist() == [0] * 6
    assert by_shards[2].tolist() == [0, 0, 0, 1, 1, 1]
    assert by_shards[3].tolist() == [0, 0, 1, 1, 2, 2]
