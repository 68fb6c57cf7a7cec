"""Columns that others determine are neither stored nor moved, and come back exactly."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.view.lazy_fakes import FakeClient, eager, frozen, jagged, objects
from transferqueue.errors import InvalidInput, UnknownColumn
from transferqueue.view import lazy_connection
from transferqueue.view.dataproto import DataProto
from transferqueue.view.derived import (
    NotValue,
    Padded,
    PaddedWhere,
    Positions,
    RunMask,
    Tail,
    derive_now,
    pack_bits,
    unpack_bits,
)
from transferqueue.view.schema import Bits, Narrow, Ragged, RaggedUnder, Schema

if TYPE_CHECKING:
    from transferqueue.view.lazy_dataproto import LazyDataProto

PAD = 0
PROMPT, RESPONSE = 3, 5

DERIVED = {
    "attention_mask": NotValue("input_ids", value=PAD),
    "position_ids": Positions("attention_mask"),
    "response_mask": Tail("attention_mask", like="responses"),
}


def rollout(num_rows: int = 6) -> DataProto:
    """A batch in the padded layout of verl: prompts on the right side, responses on the left."""
    generator = torch.Generator().manual_seed(num_rows)
    prompt_lengths = torch.randint(1, PROMPT + 1, (num_rows, 1), generator=generator)
    lengths = torch.randint(0, RESPONSE + 1, (num_rows, 1), generator=generator)
    prompt_mask = torch.arange(PROMPT) >= PROMPT - prompt_lengths
    response_mask = torch.arange(RESPONSE) < lengths
    mask = torch.cat([prompt_mask, response_mask], 1)
    ids = torch.randint(1, 99, mask.shape, generator=generator) * mask
    columns = {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0),
        "responses": ids[:, PROMPT:].clone(),
        "response_mask": response_mask.long(),
        "old_log_probs": torch.rand(response_mask.shape, generator=generator) * response_mask,
        "score": torch.rand(num_rows, generator=generator),
    }
    return DataProto.from_dict(columns, {"uid": objects(*range(num_rows))}, {"step": 3})


def test_masks_and_positions_follow_from_ids() -> None:
    batch = rollout()
    found = derive_now(batch.select(["input_ids", "responses"]), DERIVED)
    expected = batch.select(["input_ids", "responses", *DERIVED])
    assert frozen(found) == frozen(expected)


def test_a_view_computes_a_derived_column_when_it_is_read_and_for_its_rows() -> None:
    client, batch = FakeClient(), rollout()
    stored = client.put(dict(batch.select(["input_ids", "responses"], []).batch.items()))
    view = client.view(stored).derive(DERIVED)
    part = view.repeat(2).chunk(3)[1].rename("position_ids", "positions")
    assert "positions" in part.batch
    assert client.gets == []
    expected = batch.repeat(2).chunk(3)[1]
    assert torch.equal(part.batch["positions"], expected.batch["position_ids"])
    assert torch.equal(part.batch["attention_mask"], expected.batch["attention_mask"])
    assert client.gets == [(4, ["input_ids"])]
    assert part.batch["input_ids"].data_ptr() == part.batch["input_ids"].data_ptr()
    assert torch.equal(part.batch["response_mask"], expected.batch["response_mask"])
    assert client.gets == [(4, ["input_ids"]), (4, ["responses"])]


def test_derived_columns_of_parts_join_to_derived_columns() -> None:
    client, batch = FakeClient(), rollout()
    view = client.view(client.put({"input_ids": batch.batch["input_ids"]}))
    view.derive({"attention_mask": NotValue("input_ids", value=PAD)})
    whole = DataProto.concat(view.chunk(3))[[5, 0]]
    assert client.gets == []
    assert torch.equal(whole.batch["attention_mask"], batch.batch["attention_mask"][[5, 0]])
    assert client.gets == [(2, ["input_ids"])]
    whole.union(view[[5, 0]])
    assert client.gets == [(2, ["input_ids"])]


def test_a_derived_column_is_not_local_and_its_handle_names_what_is_stored() -> None:
    client, batch = FakeClient(), rollout()
    handle = client.put({"ids": batch.batch["input_ids"]})
    view = client.view(handle).derive({"mask": NotValue("ids")})
    assert view.local_fields == []
    view.batch["mask"]
    assert view.push() == handle
    assert list(view.select(["mask"]).handle.fields) == ["ids"]
    assert view.report()["fetched"].keys() == {"ids"}
    assert view.report()["untouched"] == {}


def test_a_derived_column_of_a_local_one_is_local() -> None:
    client = FakeClient()
    view = client.view(client.put({"x": torch.arange(3)}))
    view.batch["y"] = torch.arange(6).reshape(3, 2)
    view.derive({"mask": NotValue("y")})
    assert view.local_fields == ["y", "mask"]
    assert view.drop().batch["mask"].tolist() == [[0, 1], [1, 1], [1, 1]]
    assert client.gets == []


def test_drop_of_a_derived_column_leaves_the_columns_that_are_shown() -> None:
    client = FakeClient()
    view = client.view(client.put({"x": torch.ones(3, 2)})).derive({"mask": NotValue("x")})
    view.batch["x"][0] = 0
    assert view.batch["mask"].tolist() == [[0, 0], [1, 1], [1, 1]]
    assert view.drop("mask").batch["x"].sum() == 4
    narrow = Schema(store={"x": Narrow(shown="float32", stored="int8")})
    view = narrow.grow(client.view(put(client, narrow.shrink(eager({"x": torch.ones(3, 2)})))))
    view.batch["x"], view.drop().batch["x"]
    assert client.fields_got == ["x", "x", "x"]


def test_an_edit_of_a_derived_column_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    monkeypatch.setattr(lazy_connection._process_clients, "get", lambda *_: client)
    view = client.view(client.put({"x": torch.ones(3, 2)})).derive({"mask": NotValue("x")})
    view.batch["mask"][0] = 7
    view.reorder([1, 0, 2])
    arrived: LazyDataProto = pickle.loads(pickle.dumps(view))
    assert arrived.batch["mask"].tolist() == [[1, 1], [7, 7], [1, 1]]
    assert arrived.drop().batch["mask"].tolist() == [[1, 1], [1, 1], [1, 1]]


def test_a_derived_column_travels_as_how_it_is_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    client, batch = FakeClient(), rollout(64)
    monkeypatch.setattr(lazy_connection._process_clients, "get", lambda *_: client)
    view = client.view(client.put(dict(batch.select(["input_ids", "responses"]).batch.items())))
    view.derive(DERIVED)
    view.prefetch()
    gets = len(client.gets)
    arrived: LazyDataProto = pickle.loads(pickle.dumps(view[3:5]))
    assert len(pickle.dumps(view)) < 3000
    assert torch.equal(arrived.batch["position_ids"], batch.batch["position_ids"][3:5])
    assert torch.equal(arrived.batch["response_mask"], batch.batch["response_mask"][3:5])
    assert client.gets[gets:] == [(2, ["input_ids"]), (2, ["responses"])]


def test_what_cannot_be_derived_is_refused_before_it_is_read() -> None:
    client = FakeClient()
    view = client.view(client.put({"ids": torch.ones(2, 3), "mask": torch.ones(2, 3)}))
    for batch in (view, eager({"ids": torch.ones(2, 3), "mask": torch.ones(2, 3)})):
        add = (
            view.derive if batch is view else lambda columns, data=batch: derive_now(data, columns)
        )
        with pytest.raises(InvalidInput, match="'mask' is there already"):
            add({"mask": NotValue("ids")})
        with pytest.raises(UnknownColumn, match="did you mean 'ids'"):
            add({"positions": Positions("idss")})
    assert client.gets == []


def test_positions_and_masks_of_ragged_columns() -> None:
    tokens = jagged(torch.arange(2), torch.arange(4), torch.arange(1))
    batch = eager({"tokens": tokens})
    derive_now(batch, {"positions": Positions("tokens"), "mask": RunMask("tokens", length=4)})
    assert [row.tolist() for row in batch.batch["positions"].unbind()] == [
        [0, 1],
        [0, 1, 2, 3],
        [0],
    ]
    assert (batch.batch["positions"] * tokens).values().tolist() == [0, 1, 0, 1, 4, 9, 0]
    assert batch.batch["mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    part = batch[[2, 0]]
    derive_now(part, {"again": Positions("tokens")})
    assert [row.tolist() for row in part.batch["again"].unbind()] == [[0], [0, 1]]


@given(
    mask=st.lists(st.lists(st.booleans(), min_size=11, max_size=11), max_size=4),
    length=st.integers(0, 11),
)
def test_bits_go_there_and_back(mask: list[list[bool]], length: int) -> None:
    column = torch.tensor(mask, dtype=torch.bool).reshape(-1, 11)[:, :length]
    packed = pack_bits(column)
    assert packed.shape == (len(column), -(-length // 8))
    assert torch.equal(unpack_bits(packed, length), column)


# ---- schemas

SCHEMA = Schema(
    store={
        "input_ids": RaggedUnder(mask="attention_mask", value=PAD, stored="int32"),
        "attention_mask": Bits(length=PROMPT + RESPONSE),
        "responses": Ragged(mask="response_mask", length=RESPONSE, stored="int32"),
        "old_log_probs": Ragged(mask="response_mask", length=RESPONSE),
    },
    derive={"position_ids": Positions("attention_mask")},
)


def put(client: FakeClient, batch: DataProto, **more: Any) -> Any:
    columns = {**dict(batch.batch.items()), **batch.non_tensor_batch}
    return client.put(columns, meta_info=batch.meta_info or None, **more)


def sorted_columns(batch: DataProto) -> Any:
    return frozen(batch.select(sorted(batch._tensor_names())))


@pytest.mark.parametrize("num_rows", [0, 1, 6, 33])
def test_what_a_schema_shrinks_it_grows_to_what_it_was(num_rows: int) -> None:
    batch, client = rollout(num_rows), FakeClient()
    shrunk = SCHEMA.shrink(batch)
    assert {"position_ids", "response_mask"} & {*shrunk.batch.keys()} == set()
    assert sorted_columns(SCHEMA.grow(shrunk)) == sorted_columns(batch)
    view = SCHEMA.grow(client.view(put(client, SCHEMA.shrink(batch))))
    assert client.gets == []
    assert sorted_columns(view.materialize()) == sorted_columns(batch)
    assert len(client.gets) == 1


def test_a_batch_that_was_shrunk_and_grown_is_a_view_in_every_respect() -> None:
    batch, client = rollout(), FakeClient()
    view = SCHEMA.grow(client.view(put(client, SCHEMA.shrink(batch))))
    expected, found = batch.repeat(2).chunk(2), view.repeat(2).chunk(2)
    whole, joined = DataProto.concat(expected[::-1]), DataProto.concat(found[::-1])
    assert client.gets == []
    assert sorted_columns(joined.materialize()) == sorted_columns(whole)
    assert set(view.handle.fields) == {
        "input_ids",
        "attention_mask",
        "responses",
        "old_log_probs",
        "score",
        "uid",
    }


def test_fewer_bytes_are_stored_and_moved() -> None:
    batch, client = rollout(256), FakeClient()
    view = SCHEMA.grow(client.view(put(client, SCHEMA.shrink(batch))))
    view.prefetch(batch._tensor_names())
    plain = sum(column.numel() * column.element_size() for column in batch.batch.values())
    assert client.got_bytes < plain / 3


def test_more_columns_are_put_to_the_same_samples_beside_the_mask_that_is_there() -> None:
    batch, client = rollout(), FakeClient()
    first = batch.select(["responses", "response_mask"], [])
    view = SCHEMA.grow(client.view(put(client, SCHEMA.shrink(first))))
    output = DataProto.from_dict({"old_log_probs": batch.batch["old_log_probs"]})
    with pytest.raises(UnknownColumn, match="response_mask"):
        SCHEMA.shrink(output)
    handle = put(client, SCHEMA.shrink(output, beside=view), handle=view.handle)
    again = SCHEMA.grow(client.view(handle))
    assert torch.equal(again.batch["old_log_probs"], batch.batch["old_log_probs"])


def test_nothing_is_lost_in_silence() -> None:
    batch = rollout()
    wide = batch.select(deepcopy=True)
    wide.batch["responses"][:, 0] = wide.batch["response_mask"][:, 0] << 40
    with pytest.raises(InvalidInput, match=r"'responses'.*not what int32 gives back"):
        SCHEMA.shrink(wide)
    other = batch.select(deepcopy=True)
    other.batch["position_ids"][2, 3] += 1
    with pytest.raises(InvalidInput, match="'position_ids'"):
        SCHEMA.shrink(other)
    dirty = batch.select(deepcopy=True)
    dirty.batch["old_log_probs"] += 1
    with pytest.raises(InvalidInput, match=r"'old_log_probs'.*other values than 0"):
        SCHEMA.shrink(dirty)
    holes = batch.select(deepcopy=True)
    holes.batch["response_mask"][:, 0] = 0
    holes.batch["response_mask"][:, 1] = 1
    with pytest.raises(InvalidInput, match="not an int64 run of ones"):
        SCHEMA.shrink(holes)
    weights = Schema(store={"attention_mask": Bits(length=PROMPT + RESPONSE)})
    twos = DataProto.from_dict({"attention_mask": batch.batch["attention_mask"] * 2})
    with pytest.raises(InvalidInput, match=r"e\.g\. 1 for 2"):
        weights.shrink(twos)
    with pytest.raises(InvalidInput, match="no mask of 4 places"):
        Schema(store={"attention_mask": Bits(length=4)}).shrink(batch)
    with pytest.raises(InvalidInput, match=r"is torch\.float32, its schema says int64"):
        Schema(store={"score": Narrow(shown="int64", stored="int8")}).shrink(batch)
    with pytest.raises(InvalidInput, match="'int33' is not a torch dtype"):
        Schema(store={"score": Narrow(shown="float32", stored="int33")}).shrink(batch)


def test_a_float_column_narrows_only_if_every_value_is_the_same_in_it() -> None:
    schema = Schema(store={"x": Narrow(shown="float32", stored="bfloat16")})
    exact = eager({"x": torch.tensor([0.5, float("nan"), -2.0, float("inf")])})
    grown = schema.grow(schema.shrink(exact)).batch["x"]
    assert torch.equal(grown.nan_to_num(7), exact.batch["x"].nan_to_num(7))
    with pytest.raises(InvalidInput, match="bfloat16"):
        schema.shrink(eager({"x": torch.tensor([0.1])}))


def test_left_padding_and_more_dimensions_shrink_too() -> None:
    schema = Schema(
        store={
            "prompts": Ragged(mask="prompt_mask", length=3, side="left", value=-1),
            "routed_experts": RaggedUnder(mask="attention_mask", stored="int8", shown="int16"),
            "attention_mask": Bits(length=3, shown="bool"),
        }
    )
    mask = torch.tensor([[0, 1, 1], [0, 0, 1], [1, 1, 1]])
    experts = torch.arange(18).reshape(3, 3, 2).to(torch.int16) * mask[..., None].to(torch.int16)
    batch = eager(
        {
            "prompts": torch.arange(9).reshape(3, 3).masked_fill(mask == 0, -1),
            "prompt_mask": mask,
            "routed_experts": experts,
            "attention_mask": mask.bool(),
            "index": np.arange(3),
        }
    )
    assert sorted_columns(schema.grow(schema.shrink(batch))) == sorted_columns(batch)


def test_the_batch_that_is_shrunk_stays_as_it_was() -> None:
    batch = rollout()
    SCHEMA.shrink(batch)
    assert frozen(batch) == frozen(rollout())


def test_padded_where_and_padded_agree() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    batch = eager({"x": jagged(torch.arange(2), torch.arange(1)), "mask": mask})
    derive_now(batch, {"a": PaddedWhere("x", "mask", value=9), "b": Padded("x", length=3, value=9)})
    assert torch.equal(batch.batch["a"], batch.batch["b"])
