"""Uids: how they are made up, and that their coding is exact and short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from transferqueue.errors import InvalidInput, Malformed
from transferqueue.uids import (
    MAX_ROWS,
    MAX_SLOT,
    SEQUENCE_MASK,
    as_uids,
    decode_uids,
    encode_uids,
    make_uids,
    sequences_of,
    slots_of,
)

any_uids = hnp.arrays(np.int64, st.integers(0, 60), elements=st.integers(0, 2**63 - 1))
near_uids = st.builds(
    lambda slot, first, offsets: make_uids(slot, first, 1)[0] + np.array(offsets, dtype=np.int64),
    st.integers(0, MAX_SLOT),
    st.integers(0, SEQUENCE_MASK - 5000),
    st.lists(st.integers(0, 5000), max_size=60),
)


@given(any_uids | near_uids)
def test_uids_come_back_in_their_order(uids: np.ndarray) -> None:
    decoded = decode_uids(encode_uids(uids))
    assert decoded.dtype == np.int64
    assert not decoded.flags.writeable
    np.testing.assert_array_equal(decoded, uids)


def test_a_uid_is_its_slot_and_its_sequence() -> None:
    uids = make_uids(MAX_SLOT, SEQUENCE_MASK - 1, 2)
    assert slots_of(uids).tolist() == [MAX_SLOT, MAX_SLOT]
    assert sequences_of(uids).tolist() == [SEQUENCE_MASK - 1, SEQUENCE_MASK]
    assert (uids >= 0).all()


@pytest.mark.parametrize(
    "arguments", [(-1, 0, 1), (MAX_SLOT + 1, 0, 1), (0, -1, 1), (0, SEQUENCE_MASK, 2), (0, 0, -1)]
)
def test_uids_that_cannot_be_are_not_made(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"got|no"):
        make_uids(*arguments)


def test_rows_in_order_cost_a_run_however_many_they_are() -> None:
    uids = make_uids(3, 10**9, 1_000_000)
    assert len(encode_uids(uids)) < 32
    assert len(encode_uids(uids[::-1])) < 32
    assert len(encode_uids(uids[::7])) < 32
    assert len(encode_uids(np.concatenate([uids[:500], uids[900:]]))) < 48


def test_shuffled_rows_of_four_shards_cost_three_bytes_each() -> None:
    rng = np.random.default_rng(0)
    uids = np.concatenate([make_uids(slot, 10**9 + slot, 256) for slot in range(4)])
    assert len(encode_uids(rng.permutation(uids))) < 3 * 1024 + 100


@given(st.binary(max_size=200))
def test_bytes_that_are_no_uids_are_malformed_or_uids(data: bytes) -> None:
    try:
        uids = decode_uids(data)
    except Malformed:
        return
    assert (uids >= 0).all()


@given(any_uids | near_uids, st.data())
def test_a_changed_byte_is_malformed_or_other_uids(uids: np.ndarray, data: st.DataObject) -> None:
    changed = bytearray(encode_uids(uids))
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    for attempt in (bytes(changed), bytes(changed[:cut])):
        try:
            decoded = decode_uids(attempt)
        except Malformed:
            continue
        assert (decoded >= 0).all()
        assert len(decoded) <= MAX_ROWS


def test_few_bytes_cannot_claim_more_rows_than_a_handle_has() -> None:
    data = bytearray(encode_uids(make_uids(0, 0, 5)))
    data[1:5] = (MAX_ROWS + 1).to_bytes(4, "little")
    with pytest.raises(Malformed):
        decode_uids(bytes(data))


@pytest.mark.parametrize("values", [[-1], [[1]], [1.5], ["a"], [True]], ids=str)
def test_what_is_no_uid_is_refused(values: object) -> None:
    with pytest.raises(InvalidInput):
        as_uids(values)


def test_uids_are_shared_when_nobody_can_change_them_and_copied_otherwise() -> None:
    mine = np.arange(5)
    taken = as_uids(mine)
    mine[0] = 77
    assert taken[0] == 0
    assert as_uids(taken) is taken
