"""What ranks answered becomes one answer; the caller's handle is never changed."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.dispatch import StageReply, join
from transferqueue.errors import FieldSpecMismatch, MetaConflict
from transferqueue.handle import BatchHandle, FieldSpec

FLOATS = FieldSpec(dtype="float32", shape=(8,))


def handle_of(uids: list[int], **meta: object) -> BatchHandle:
    return BatchHandle(
        service_id="s", partition="train", uids=np.array(uids, dtype=np.int64), meta_info=meta
    )


def stored(**meta: object) -> StageReply:
    return StageReply(num_rows=2, fields={"values": FLOATS}, meta=meta, is_batch=True)


def test_the_answer_is_the_handle_with_what_was_stored() -> None:
    before = handle_of([1, 2, 3, 4], temperature=1.0)
    after = join(before, [stored(), stored()], storing=[0, 1])
    assert isinstance(after, BatchHandle)
    assert after.uids.tolist() == [1, 2, 3, 4]
    assert after.fields == {"values": FLOATS}
    assert after.meta_info == {"temperature": 1.0}
    assert not before.fields


def test_metrics_come_from_every_rank_also_from_those_that_do_not_store() -> None:
    replies = [
        stored(metrics={"loss": 0.1}),
        StageReply(num_rows=2, meta={"metrics": {"loss": 0.2}}),
    ]
    after = join(handle_of([1, 2]), replies, storing=[0])
    assert isinstance(after, BatchHandle)
    assert after.meta_info["metrics"] == {"loss": [0.1, 0.2]}


def test_metrics_of_an_earlier_stage_do_not_come_back() -> None:
    before = handle_of([1, 2], metrics={"old": [1.0]}, step=3)
    after = join(before, [stored()], storing=[0])
    assert isinstance(after, BatchHandle)
    assert after.meta_info == {"step": 3}


def test_values_come_back_from_every_rank() -> None:
    replies = [StageReply(num_rows=1, value={"loss": rank}) for rank in range(3)]
    assert join(handle_of([1, 2, 3]), replies, storing=[0, 2]) == [
        {"loss": 0}, {"loss": 1}, {"loss": 2}
    ]  # fmt: skip


def test_handles_that_ranks_made_are_joined_in_the_order_of_parts() -> None:
    replies = [StageReply(num_rows=1, value=handle_of([rank])) for rank in (10, 20, 30)]
    joined = join(handle_of([1, 2]), replies, storing=[2, 0])
    assert isinstance(joined, BatchHandle)
    assert joined.uids.tolist() == [30, 10]


def test_a_batch_of_meta_info_alone_gives_the_handle_with_it() -> None:
    replies = [StageReply(num_rows=2, meta={"metrics": {"kl": 0.1}}, is_batch=True)] * 2
    after = join(handle_of([1, 2, 3, 4]), replies, storing=[0, 1])
    assert isinstance(after, BatchHandle)
    assert after.meta_info == {"metrics": {"kl": [0.1, 0.1]}}


def test_what_a_rank_made_of_no_rows_does_not_count() -> None:
    strange = StageReply(
        num_rows=0, fields={"values": FieldSpec(dtype="float64", shape=(8,))}, is_batch=True
    )
    after = join(handle_of([1, 2]), [stored(), strange], storing=[0, 1])
    assert isinstance(after, BatchHandle)
    assert after.fields == {"values": FLOATS}


def test_of_no_rows_at_all_the_fields_are_still_known() -> None:
    empty = StageReply(num_rows=0, fields={"values": FLOATS}, is_batch=True)
    after = join(handle_of([]), [empty, empty], storing=[0, 1])
    assert isinstance(after, BatchHandle)
    assert after.fields == {"values": FLOATS}


def test_ranks_that_disagree_are_an_error_that_names_what_on() -> None:
    with pytest.raises(MetaConflict, match="temperature"):
        join(handle_of([1]), [stored(temperature=1.0), stored(temperature=0.5)], storing=[0, 1])
    other = StageReply(
        num_rows=2, fields={"values": FieldSpec(dtype="float64", shape=(8,))}, is_batch=True
    )
    with pytest.raises(FieldSpecMismatch, match="values"):
        join(handle_of([1]), [stored(), other], storing=[0, 1])


def test_times_that_differ_do_not_fail_a_step() -> None:
    after = join(
        handle_of([1]), [stored(timing={"fwd": 73.94637}), stored(timing={"fwd": 73.94638})],
        storing=[0, 1],
    )  # fmt: skip
    assert isinstance(after, BatchHandle)
    assert after.meta_info == {"timing": {"fwd": 73.94638}}


@pytest.mark.parametrize(
    "reply",
    [
        stored(metrics={"a": 1}),
        StageReply(num_rows=1, value={1, 2}),
        StageReply(num_rows=0),
        StageReply(num_rows=3, value={"loss": 0.1, "steps": 3, "name": "ä\ud800", "x": None}),
        StageReply(num_rows=3, value=True),
        StageReply(num_rows=3, value={"big": 1 << 70}),
        StageReply(num_rows=3, value={1: 2.0}),
        StageReply(num_rows=3, value={"pair": (1, 2)}),
    ],
)
def test_a_reply_is_the_same_packed(reply: StageReply) -> None:
    back = StageReply.of(reply.packed())
    assert back == reply
    assert type(back.value) is type(reply.value)


def test_a_value_that_two_ranks_gave_is_each_ones_own() -> None:
    packed = StageReply(num_rows=1, value={"loss": 0.5}).packed()
    assert isinstance(packed, bytes)
    first, second = StageReply.of(packed), StageReply.of(packed)
    first.value["loss"] = 1.0
    assert second.value == {"loss": 0.5}
    assert StageReply.of(packed).value == {"loss": 0.5}


def test_a_value_that_is_not_plain_goes_as_it_is() -> None:
    for value in ({"pair": (1, 2)}, {1: 2}, [1.0], {str(n): n for n in range(200)}):
        reply = StageReply(num_rows=1, value=value)
        assert reply.packed() is reply
