"""What has been worked out of the rows of a handle is found by all handles of those rows."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.errors import Malformed
from transferqueue.handle import BatchHandle, FieldSpec
from transferqueue.handle_rows import Rows
from transferqueue.uids import decode_uids


@pytest.fixture
def handle() -> BatchHandle:
    return BatchHandle(
        service_id="s",
        partition="train",
        uids=[5, 3, 4],
        fields={"ids": FieldSpec(dtype="int64", shape=(4,))},
    )


def test_handles_of_one_batch_with_other_fields_share_their_rows(handle: BatchHandle) -> None:
    spec = FieldSpec(dtype="float32")
    later = handle.with_fields({"values": spec}).with_meta(step=1).rename({"ids": "tokens"})
    assert later.rows is handle.rows
    assert later.select(["values"]).rows is handle.rows
    assert later.rows.coded is handle.rows.coded


def test_other_rows_are_others(handle: BatchHandle) -> None:
    cut = handle[1:]
    assert cut.rows is not handle.rows
    assert decode_uids(cut.rows.coded).tolist() == [3, 4]
    assert handle.repeat(2).has_duplicates
    assert not handle.has_duplicates


def test_what_was_worked_out_is_kept_by_its_key() -> None:
    rows = Rows(np.array([1, 2, 3]))
    asked = []

    def work_out() -> int:
        asked.append(len(rows.uids))
        return sum(asked)

    assert [rows.kept("a", work_out), rows.kept("a", work_out), rows.kept("b", work_out)] == [
        3,
        3,
        6,
    ]


def test_rows_come_back_from_their_bytes_and_cannot_be_changed() -> None:
    rows = Rows.of_bytes(Rows(np.array([9, 7, 7])).coded)
    assert rows.uids.tolist() == [9, 7, 7]
    assert not rows.are_distinct
    with pytest.raises(ValueError, match="read-only"):
        rows.uids[0] = 1
    with pytest.raises(Malformed):
        Rows.of_bytes(b"\x00")
