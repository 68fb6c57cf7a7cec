"""``view.batch`` is a TensorDict in good standing, and ``non_tensor_batch`` a dict.

What is relied on here of tensordict holds from 0.10 to the newest; see the test beside this one.
"""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from tests.view.lazy_fakes import FakeClient, example_columns, frozen, objects
from transferqueue.view.lazy_dict import UnmadeBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.view.lazy_dataproto import LazyDataProto

NAMES = ["ids", "mask", "score"]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def dense() -> dict[str, torch.Tensor]:
    return {name: example_columns()[name] for name in NAMES}


@pytest.fixture
def view(client: FakeClient) -> LazyDataProto:
    return client.view(client.put({**dense(), "uid": objects(*"abcdef"), "index": np.arange(6)}))


@pytest.fixture
def batch(view: LazyDataProto) -> TensorDict:
    return view.batch


def test_it_is_a_tensordict(batch: TensorDict) -> None:
    assert type(batch) is TensorDict
    assert isinstance(batch, TensorDictBase)


NOTHING: dict[str, Callable[[Any], Any]] = {
    "keys": lambda batch: sorted(batch.keys()) == NAMES,
    "in": lambda batch: "ids" in batch and "nothing" not in batch,
    "in keys": lambda batch: "ids" in batch.keys(),  # noqa: SIM118
    "iterated names": lambda batch: list(batch.keys()) == NAMES,
    "batch_size": lambda batch: batch.batch_size == torch.Size([6]),
    "shape": lambda batch: batch.shape == torch.Size([6]) and batch.batch_dims == 1,
    "len": lambda batch: len(batch) == 6,
    "device": lambda batch: batch.device is None,
    "is_locked": lambda batch: not batch.is_locked,
    "get with default": lambda batch: batch.get("nothing", None) is None,
    "set": lambda batch: "new" in batch.set("new", torch.zeros(6)),
    "assign": lambda batch: batch.__setitem__("new", torch.zeros(6)) is None,
    "update": lambda batch: "new" in batch.update({"new": torch.zeros(6)}),
    "del": lambda batch: "mask" not in batch.del_("mask"),
}


@pytest.mark.parametrize("read", NOTHING.values(), ids=NOTHING.keys())
def test_names_and_sizes_cost_nothing(
    read: Callable[[Any], Any], client: FakeClient, batch: TensorDict
) -> None:
    assert read(batch)
    assert client.gets == []


ONE: dict[str, Callable[[Any], Any]] = {
    "[]": lambda batch: batch["ids"],
    "get": lambda batch: batch.get("ids"),
    "select": lambda batch: batch.select("ids")["ids"],
    "pop": lambda batch: batch.pop("ids"),
    "setdefault": lambda batch: batch.setdefault("ids", torch.zeros(6)),
    "rename_key_": lambda batch: batch.rename_key_("ids", "other")["other"],
}


@pytest.mark.parametrize("read", ONE.values(), ids=ONE.keys())
def test_one_column_is_fetched_for_one(
    read: Callable[[Any], Any], client: FakeClient, batch: TensorDict
) -> None:
    assert torch.equal(read(batch), dense()["ids"])
    assert client.gets == [(6, ["ids"])]


WHOLE: dict[str, Callable[[Any], Any]] = {
    "items": lambda batch: dict(batch.items()),
    "values": lambda batch: list(batch.values()),
    "[int]": lambda batch: batch[1],
    "[slice]": lambda batch: batch[1:3],
    "[index]": lambda batch: batch[torch.tensor([3, 0])],
    "[list]": lambda batch: batch[[3, 0]],
    "[mask]": lambda batch: batch[torch.tensor([True, False] * 3)],
    "clone": lambda batch: batch.clone(),
    "copy": lambda batch: batch.copy(),
    "contiguous": lambda batch: batch.contiguous(),
    "to device": lambda batch: batch.to("cpu"),
    "to dtype": lambda batch: batch.to(torch.float64),
    "cpu": lambda batch: batch.cpu(),
    "split": lambda batch: list(batch.split(4)),
    "torch.split": lambda batch: list(torch.split(batch, [2, 4])),
    "chunk": lambda batch: list(batch.chunk(3)),
    "unbind": lambda batch: list(batch.unbind(0)),
    "iteration": list,
    "reshape": lambda batch: batch.reshape(2, 3),
    "expand": lambda batch: batch.expand(2, 6),
    "apply": lambda batch: batch.apply(lambda column: column * 2),
    "flatten_keys": lambda batch: batch.flatten_keys(),
    "to_dict": lambda batch: batch.to_dict(),
    "consolidate": lambda batch: batch.consolidate(),
    "repr": lambda batch: len(repr(batch)) > 10,
    "lock": lambda batch: batch.lock_().unlock_(),
    "pickle": lambda batch: pickle.loads(pickle.dumps(batch)),
    "deepcopy": copy.deepcopy,
    "equality": lambda batch: (batch == TensorDict(dense(), batch_size=[6])).all(),
    "exclude": lambda batch: batch.exclude("mask"),
    "stack": lambda batch: torch.stack([batch, batch]),
    "cat": lambda batch: torch.cat([batch, batch]),
    "stack rows": lambda batch: torch.stack([batch[0], batch[5]]),
    "DataLoader": lambda batch: list(
        torch.utils.data.DataLoader(batch, batch_size=2, collate_fn=lambda rows: rows)
    ),
    "map names": lambda batch: batch.named_apply(lambda name, column: column),
    "where": lambda batch: batch.where(torch.ones(6, dtype=torch.bool), batch),
    "zero_": lambda batch: batch.zero_(),
    "gather": lambda batch: batch.gather(0, torch.tensor([1, 2])),
    "is_empty": lambda batch: batch.is_empty(),
    "bytes": lambda batch: batch.bytes(),
}


def plain(value: Any) -> Any:
    if isinstance(value, TensorDictBase):
        return (tuple(value.batch_size), str(value.device), frozen(value.to_dict()))
    return [plain(one) for one in value] if isinstance(value, list | tuple) else frozen(value)


@pytest.mark.parametrize("operation", WHOLE.values(), ids=WHOLE.keys())
def test_what_tensordict_does_with_all_columns_is_right(
    operation: Callable[[Any], Any], client: FakeClient, batch: TensorDict
) -> None:
    expected = operation(TensorDict(dense(), batch_size=[6]))
    assert plain(operation(batch)) == plain(expected)
    assert sorted(client.fields_got) <= sorted(NAMES)  # each at most once


def test_all_columns_come_in_one_request_when_all_are_asked_for(
    client: FakeClient, batch: TensorDict
) -> None:
    batch[1:3]
    batch.clone()
    assert client.gets == [(6, NAMES)]


def test_rows_of_a_view_stack_to_its_columns(client: FakeClient, view: LazyDataProto) -> None:
    stacked = torch.stack([row.batch for row in view])
    assert plain(stacked.select(*NAMES)) == plain(TensorDict(dense(), batch_size=[6]))
    assert [rows for rows, _ in client.gets] == [6, 6, 6]


def test_what_is_set_is_read_back_and_local(view: LazyDataProto) -> None:
    view.batch["values"] = torch.arange(6)
    view.batch.update({"returns": torch.ones(6)})
    assert view.local_fields == ["values", "returns"]
    assert view.batch.pop("returns").sum() == 6
    assert view.local_fields == ["values"]


def test_a_column_of_other_rows_is_refused(batch: TensorDict) -> None:
    with pytest.raises(RuntimeError, match="batch"):
        batch["bad"] = torch.zeros(5)


def test_a_missing_column_is_a_key_error(client: FakeClient, batch: TensorDict) -> None:
    with pytest.raises(KeyError):
        batch["nothing"]
    assert client.gets == []


def test_an_edit_through_the_tensordict_stays(view: LazyDataProto) -> None:
    view.batch["ids"].zero_()
    view.batch.set_("mask", torch.zeros(6, 4, dtype=torch.bool))
    view.batch[0:2]["score"].fill_(9)
    assert view.batch["ids"].sum() == view.batch["mask"].sum() == 0
    assert view[1:2].batch["score"].tolist() == [9]


def test_a_device_is_where_later_columns_come_to(client: FakeClient, view: LazyDataProto) -> None:
    view.batch["mask"]
    assert view.to("meta") is view
    assert view.batch.device == torch.device("meta")
    assert view.batch["mask"].device.type == view.batch["ids"].device.type == "meta"
    assert view[:2].batch["score"].device.type == "meta"
    assert view.repeat(2).batch.device == torch.device("meta")


def test_a_locked_batch_can_be_renamed_and_popped_from_all_the_same(view: LazyDataProto) -> None:
    view.batch.lock_()
    view.rename("ids", "input_ids").pop(["mask"])
    assert list(view.batch.keys()) == ["score", "input_ids"]


def test_microbatches_of_a_selection_are_as_verl_makes_them(
    client: FakeClient, view: LazyDataProto
) -> None:
    selected = view.select(batch_keys=["ids", "mask"]).batch
    for micro in selected.split(2):
        assert micro["ids"].shape == (2, 4)
    assert client.gets == [(6, ["ids", "mask"])]


# ---- non_tensor_batch


def test_arrays_are_a_dict_of_arrays(client: FakeClient, view: LazyDataProto) -> None:
    arrays = view.non_tensor_batch
    assert isinstance(arrays, dict)
    assert list(arrays) == list(arrays.keys()) == ["uid", "index"]
    assert len(arrays) == 2
    assert "uid" in arrays
    assert arrays.get("nothing") is None
    assert "<not fetched>" in repr(arrays)
    assert client.gets == []
    assert isinstance(arrays["uid"], np.ndarray)
    assert arrays.get("uid") is arrays["uid"]
    assert client.gets == [(6, ["uid"])]


COPIES: dict[str, Callable[[Any], Any]] = {
    "dict()": dict,
    "**": lambda arrays: {**arrays},
    "|": lambda arrays: arrays | {},
    "| from the right": lambda arrays: {} | arrays,
    "update": lambda arrays: [found := {}, found.update(arrays)][0],
    "items": lambda arrays: dict(arrays.items()),
    "comprehension": lambda arrays: {name: arrays[name] for name in arrays},
    "copy": lambda arrays: dict(arrays.copy()),
    "copy.copy": lambda arrays: dict(copy.copy(arrays)),
    "deepcopy": copy.deepcopy,
    "pickle": lambda arrays: pickle.loads(pickle.dumps(arrays)),
    "keyword arguments": lambda arrays: (lambda **columns: columns)(**arrays),
    "zip": lambda arrays: dict(zip(arrays.keys(), arrays.values(), strict=True)),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_a_copy_of_the_dict_is_of_arrays(copied: Callable[[Any], Any], view: LazyDataProto) -> None:
    found = copied(view.non_tensor_batch)
    assert type(found) is dict
    assert frozen(found) == frozen({"uid": objects(*"abcdef"), "index": np.arange(6)})


def test_arrays_are_set_popped_and_merged_as_in_any_dict(view: LazyDataProto) -> None:
    arrays = view.non_tensor_batch
    arrays["new"] = np.arange(6)
    arrays.update(more=np.zeros(6))
    arrays |= {"even": np.ones(6)}
    assert arrays.setdefault("new", None).tolist() == list(range(6))
    assert arrays.pop("index").tolist() == list(range(6))
    assert arrays.pop("index", "gone") == "gone"
    with pytest.raises(KeyError):
        arrays.pop("index")
    assert arrays.popitem()[0] == "even"
    assert list(view.non_tensor_batch) == ["uid", "new", "more"]
    assert view.local_fields == ["new", "more"]
    arrays.clear()
    assert not arrays


def test_what_moves_no_bytes_makes_no_tensordict_either(
    view: LazyDataProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[UnmadeBatch] = []
    make = UnmadeBatch.made

    def counted(batch: UnmadeBatch) -> TensorDict:
        made.append(batch)
        return make(batch)

    monkeypatch.setattr(UnmadeBatch, "made", counted)
    parts = [part.select(["ids", "mask"]).repeat(2) for part in view.chunk(2)]
    joined = type(view).concat(parts).union(type(view).concat([p.select(["ids"]) for p in parts]))
    joined.rename("mask", "filter")
    joined.prefetch()
    assert len(joined) == len(joined.handle) == 12
    assert not made
    assert joined.batch is joined.batch
    assert len(made) == 1
    assert set(joined.batch.keys()) == {"ids", "filter"}
