"""The handle as a value: what it refuses, what it says, what it weighs."""

from __future__ import annotations

import copy
import gc
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.errors import (
    FieldSpecMismatch,
    InvalidInput,
    Malformed,
    MetaConflict,
    RowCountMismatch,
    UnknownField,
    WrongService,
)
from transferqueue.handle import BatchHandle, FieldKind, FieldSpec
from transferqueue.uids import make_uids

F32 = FieldSpec(dtype="float32", shape=(4,))
RAGGED = FieldSpec(dtype="bfloat16", shape=(-1,), ragged_dim=0)
OBJECTS = FieldSpec(dtype="object", kind=FieldKind.OBJECT)


def handle(num_rows: int = 4, **changes: object) -> BatchHandle:
    parts: dict[str, object] = {
        "service_id": "svc",
        "partition": "train",
        "uids": make_uids(1, 10, num_rows),
        "fields": {"values": F32, "responses": RAGGED, "prompt": OBJECTS},
    }
    return BatchHandle(**{**parts, **changes})  # type: ignore[arg-type]


def test_equal_content_is_equal_and_hashes_alike() -> None:
    left, right = handle(meta_info={"a": 1, "b": 2}), handle(meta_info={"b": 2, "a": 1})
    assert left == right
    assert len({left, right}) == 1
    assert left != handle()
    assert left != handle(5, meta_info={"a": 1, "b": 2})
    assert left != left.rename({"values": "v"})
    assert handle() != handle(partition="val")
    assert handle() != "a handle"


def test_a_handle_is_never_changed() -> None:
    uids = np.arange(3)
    fields = {"values": F32}
    meta = {"list": [1]}
    made = handle(uids=uids, fields=fields, meta_info=meta)
    uids[0], meta["list"] = 99, [2]
    fields.clear()
    made.meta_info["list"].append(3)
    assert made == handle(3, uids=np.arange(3), fields={"values": F32}, meta_info={"list": [1]})
    with pytest.raises(ValueError, match="read-only"):
        made.uids[0] = 1
    with pytest.raises(TypeError):
        made.fields["x"] = F32  # type: ignore[index]
    with pytest.raises(AttributeError, match="never changed"):
        made.partition = "val"  # type: ignore[misc]


def test_what_is_derived_shares_fields_and_uids() -> None:
    made = handle(100)
    for part in [made[10:20], *made.chunk(3), *made.split(7), made.select(list(made.fields))]:
        assert np.shares_memory(part.uids, made.uids)
    assert made[5:].fields is made.fields
    assert made.repeat(2).fields is made.fields


def test_meta_of_one_chunk_is_not_that_of_another() -> None:
    first, second = handle(meta_info={"m": {}}).chunk(2)
    with pytest.raises(InvalidInput, match="with_meta"):
        first.meta_info["m"]["x"] = 1
    assert second.meta_info == {"m": {}}
    assert first.with_meta(x=1).without_meta("m").meta_info == {"x": 1}
    assert first.without_meta().meta_info == {}


def test_it_survives_pickle_and_copy() -> None:
    made = handle(meta_info={"t": (1,)}).rename({"values": "v"})[[2, 0]]
    for again in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        assert again == made


def test_its_repr_is_one_short_line() -> None:
    assert repr(handle()) == "BatchHandle('train', 4 rows, 3 fields: values, responses, prompt)"
    many = handle(fields={f"f{i}": F32 for i in range(50)})
    assert len(repr(many)) < 100


def test_it_lists_and_iterates_rows() -> None:
    rows = list(handle(3))
    assert [len(row) for row in rows] == [1, 1, 1]
    assert BatchHandle.concat(rows) == handle(3)
    assert "values" in handle()


@pytest.mark.parametrize(
    "wrong",
    [
        {"uids": [-1]},
        {"uids": [0.5]},
        {"partition": ""},
        {"partition": 3},
        {"fields": {"": F32}},
        {"fields": {"x" * 300: F32}},
        {"sources": {"nobody": "x"}},
        {"meta_info": {"x": object()}},
    ],
    ids=str,
)
def test_parts_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        handle(**wrong)


def test_an_unknown_field_comes_with_near_names() -> None:
    for operation in (
        lambda h: h.select(["valuez"]),
        lambda h: h.drop(["valuez"]),
        lambda h: h.rename({"valuez": "v"}),
        lambda h: h.stored_name("valuez"),
    ):
        with pytest.raises(UnknownField, match=r"'valuez' in the handle; did you mean 'values'"):
            operation(handle())


def test_a_bare_string_is_not_taken_for_a_list_of_names() -> None:
    with pytest.raises(TypeError, match="'values'"):
        handle().select("values")


def test_a_renamed_field_keeps_its_stored_name() -> None:
    made = handle().rename({"values": "old"}).rename({"old": "new", "prompt": "values"})
    assert list(made.fields) == ["new", "responses", "values"]
    assert [made.stored_name(name) for name in made.fields] == ["values", "responses", "prompt"]
    back = made.rename({"new": "values", "values": "prompt"})
    assert back == handle()
    assert made.select(["new"]).stored_name("new") == "values"
    assert BatchHandle.from_bytes(made.to_bytes()).stored_name("values") == "prompt"


def test_two_fields_cannot_be_given_one_name() -> None:
    with pytest.raises(InvalidInput, match="'responses'"):
        handle().rename({"values": "responses"})
    with pytest.raises(InvalidInput, match="'x'"):
        handle().rename({"values": "x", "prompt": "x"})


def test_a_put_adds_fields_and_merges_their_specs() -> None:
    made = handle().with_fields({"new": F32, "values": FieldSpec(dtype="float32", shape=(9,))})
    assert made.fields["new"] == F32
    assert made.fields["values"].shape == (-1,)
    with pytest.raises(FieldSpecMismatch, match="'values'"):
        handle().with_fields({"values": RAGGED})


def test_union_has_the_fields_and_meta_of_both() -> None:
    left = handle(meta_info={"a": 1, "timing": 73.94637}).select(["values", "prompt"])
    right = handle(meta_info={"b": 2, "timing": 73.94638}).select(["prompt", "responses"])
    union = left.union(right)
    assert list(union.fields) == ["values", "prompt", "responses"]
    assert union.meta_info == {"a": 1, "b": 2, "timing": 73.94638}


def test_union_across_a_repeat_names_both_sizes_and_the_repeat() -> None:
    for left, right in [(handle(2), handle(2).repeat(2)), (handle(2).repeat(2), handle(2))]:
        with pytest.raises(RowCountMismatch) as caught:
            left.union(right)
        message = str(caught.value)
        assert str(len(left)) in message
        assert str(len(right)) in message
        assert "h.repeat(2)" in message


def test_union_says_why_the_rows_are_not_the_same() -> None:
    with pytest.raises(InvalidInput, match="another order"):
        handle(3).union(handle(3).reorder([2, 1, 0]))
    with pytest.raises(InvalidInput, match="2 of 3 are in both"):
        handle(4)[:3].union(handle(4)[1:])


def test_union_refuses_what_cannot_be_one_batch() -> None:
    with pytest.raises(WrongService):
        handle().union(handle(service_id="another"))
    with pytest.raises(InvalidInput, match=r"two partitions: 'train' and 'val'"):
        handle().union(handle(partition="val"))
    with pytest.raises(FieldSpecMismatch, match="'values'"):
        handle().union(handle(fields={"values": RAGGED}))
    with pytest.raises(FieldSpecMismatch, match="stored as"):
        handle().union(handle(fields={"other": F32}).rename({"other": "values"}))
    with pytest.raises(MetaConflict, match=r"'a'.* 1 .* 2 "):
        handle(meta_info={"a": 1}).union(handle(meta_info={"a": 2}))


def test_concat_merges_specs_and_needs_the_same_fields() -> None:
    wide = handle(2, fields={"values": FieldSpec(dtype="float32", shape=(5,))})
    narrow = handle(2, fields={"values": F32})
    assert BatchHandle.concat([wide, narrow]).fields["values"].shape == (-1,)
    with pytest.raises(InvalidInput, match=r"\['prompt', 'responses'\]"):
        BatchHandle.concat([handle(), narrow])
    with pytest.raises(FieldSpecMismatch, match="stored as"):
        BatchHandle.concat([narrow, handle(fields={"other": F32}).rename({"other": "values"})])
    with pytest.raises(WrongService):
        BatchHandle.concat([handle(), handle(service_id="another")])
    with pytest.raises(ValueError, match="at least one"):
        BatchHandle.concat([])


def test_a_sample_may_be_in_it_twice_and_that_shows() -> None:
    assert not handle().has_duplicates
    assert handle().repeat(2).has_duplicates
    assert not handle(0).has_duplicates


def big_handle(num_rows: int, *, shuffled: bool) -> BatchHandle:
    uids = np.concatenate([make_uids(slot, 10**9, num_rows // 4) for slot in range(4)])
    if shuffled:
        uids = np.random.default_rng(0).permutation(uids)
    fields = {f"a_field_of_a_ppo_batch_{i}": RAGGED for i in range(20)}
    return handle(uids=uids, fields=fields)


def test_a_thousand_shuffled_rows_of_twenty_fields_are_16_kib() -> None:
    assert len(big_handle(1024, shuffled=True).to_bytes()) <= 16 << 10
    assert len(big_handle(1024, shuffled=False).to_bytes()) <= 2 << 10


def test_the_algebra_does_no_python_work_per_row() -> None:
    """Counted in calls, which do not depend on how busy the machine is."""

    def calls(num_rows: int) -> int:
        made = big_handle(num_rows, shuffled=True)
        order = np.random.default_rng(1).permutation(num_rows)
        count = 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        gc.disable()  # its callbacks are calls too
        sys.setprofile(profile)
        try:
            chunks = made.chunk(32)
            BatchHandle.concat(chunks).reorder(order).repeat(2)[order]
            BatchHandle.from_bytes(made.to_bytes()).union(made)
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    def fewest(num_rows: int) -> int:
        # A finalizer of something that an earlier test left may run in between: it only adds.
        return min(calls(num_rows) for _ in range(5))

    fewest(1_000)
    assert fewest(1_000) == fewest(100_000)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_handle_are_malformed(data: bytes) -> None:
    for attempt in (data, b"TQH\x01" + data):
        with pytest.raises(Malformed):
            BatchHandle.from_bytes(attempt)


@given(st.data())
def test_a_damaged_handle_is_malformed_or_a_handle(data: st.DataObject) -> None:
    made = handle(30, meta_info={"t": (1, {"a": [2**70]})}).rename({"values": "v"})
    whole = made[np.random.default_rng(0).permutation(30)].to_bytes()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole) - 1))
    for attempt in (bytes(damaged), whole[:cut], whole + b"\0"):
        try:
            taken = BatchHandle.from_bytes(attempt)
        except Malformed:
            continue
        assert len(taken) <= 1 << 24
        assert isinstance(taken.meta_info, dict)
