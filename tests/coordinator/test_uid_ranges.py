"""Uids by ranges against dicts and sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.coordinator.uid_ranges import (
    GoneUids,
    SlotRows,
    UidRanges,
    slots_of,
    split_by_slot,
)
from transferqueue.errors import RowsLost
from transferqueue.homes import Homes

uid_sets = st.sets(st.integers(0, 60), min_size=1, max_size=20)


@given(batches=st.lists(uid_sets, max_size=8))
def test_every_uid_finds_its_row_in_whatever_order_puts_commit(batches: list[set[int]]) -> None:
    slot_rows, model = SlotRows(), {}
    for batch in batches:
        new = sorted(batch - model.keys())
        if new:
            slot_rows.add(np.array(new), len(model))
            model.update({uid: len(model) + i for i, uid in enumerate(new)})
    asked = np.arange(-2, 63)
    assert slot_rows.find(asked).tolist() == [model.get(uid, -1) for uid in asked.tolist()]


@given(rows=st.dictionaries(st.integers(0, 80), st.integers(0, 1000), min_size=1))
def test_a_lookup_can_be_made_of_rows_in_any_order(rows: dict[int, int]) -> None:
    slot_rows = SlotRows.of(np.array(list(rows)), np.array(list(rows.values())))
    asked = np.arange(-2, 83)
    assert slot_rows.find(asked).tolist() == [rows.get(uid, -1) for uid in asked.tolist()]


def test_puts_of_one_row_that_follow_each_other_share_a_run() -> None:
    slot_rows = SlotRows()
    for uid in range(10_000):
        slot_rows.add(np.array([uid]), uid)
    assert slot_rows.num_bytes < 1000


@given(batches=st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=10))
def test_ranges_hold_what_was_added_and_grow_together(batches: list[list[int]]) -> None:
    ranges, model = UidRanges(), set()
    for batch in batches:
        ranges.add(np.array(batch, dtype=np.int64))
        model |= set(batch)
    asked = np.arange(-2, 43)
    assert ranges.contains(asked).tolist() == [uid in model for uid in asked.tolist()]
    assert ranges.num_ranges == sum(uid - 1 not in model for uid in model)


def test_the_highest_slot_has_negative_uids_and_works() -> None:
    uids = np.array([(7 << 48) + 5, (0xFFFF << 48) + 1 - (1 << 64), (7 << 48) + 4], dtype=np.int64)
    assert slots_of(uids).tolist() == [7, 0xFFFF, 7]
    assert {slot: at.tolist() for slot, at in split_by_slot(uids).items()} == {
        7: [0, 2],
        0xFFFF: [1],
    }
    gone = GoneUids()
    gone.add(uids[:2])
    assert gone.contains(uids).tolist() == [True, True, False]
    assert gone.num_ranges == 2


def test_no_uids_are_of_no_slot() -> None:
    assert split_by_slot(np.zeros(0, dtype=np.int64)) == {}


def test_of_a_restored_service_all_below_what_a_shard_gives_is_gone_but_what_it_told() -> None:
    """Its home ranges reach over slots that are no more; that costs one range, not one a slot."""
    first = (1 << 62) + 5
    homes = Homes(starts=(0, (1 << 48) + 10, first), slots=(0, 1, 1))
    gone = GoneUids(homes)
    kept = np.array([(1 << 48) + 12, (1 << 48) + 13, first], dtype=np.int64)
    gone.add_all_but(1, kept, first + 2)
    asked = np.array([9, *kept.tolist(), (1 << 48) + 14, 1 << 61, first + 1, first + 2])
    assert gone.contains(asked).tolist() == [False, False, False, False, True, True, True, False]
    assert gone.num_ranges < 5
    gone.add(kept[:1])
    assert gone.contains(kept).tolist() == [True, False, False]
    gone.lost_slots.add(1)
    with pytest.raises(RowsLost, match="shard"):
        gone.check_not_lost(kept)
    gone.check_not_lost(np.array([9], dtype=np.int64))
