"""Joining batches row by row, and what becomes of their ``meta_info``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from transferqueue.errors import ColumnsDiffer, FieldSpecMismatch, MetaConflict, NothingToConcat
from transferqueue.view import DataProto

Make = Callable[..., DataProto]


def meta_of(*metas: dict[str, Any]) -> dict[str, Any]:
    return DataProto.concat([DataProto(meta_info=meta) for meta in metas]).meta_info


def arrays_of(**columns: Any) -> DataProto:
    return DataProto.from_dict(non_tensors=columns)


def test_parts_come_one_after_the_other(batch: DataProto) -> None:
    for parts in (batch.chunk(4), batch.chunk(2), [batch], [batch[:1], batch[1:1], batch[1:]]):
        assert DataProto.concat(parts) == batch
    order = [batch[[2]], batch[[0, 0]]]
    assert DataProto.concat(order) == batch[[2, 0, 0]]
    assert DataProto.concat(tuple(order)) == batch[[2, 0, 0]]
    assert DataProto.concat(iter(order)) == batch[[2, 0, 0]]  # type: ignore[arg-type]


def test_the_result_shares_nothing(batch: DataProto, make: Make) -> None:
    joined = DataProto.concat([batch])
    joined.batch["ids"].zero_()
    joined.batch["response"].values().zero_()
    joined.non_tensor_batch["length"][:] = 0
    joined.meta_info["new"] = 1
    assert batch == make()


def test_columns_keep_the_first_parts_order(batch: DataProto) -> None:
    shuffled = batch.select(list(reversed(list(batch.batch.keys()))))
    assert list(DataProto.concat([batch, shuffled]).batch.keys()) == list(batch.batch.keys())


def test_no_parts_cannot_be_joined() -> None:
    for error in (NothingToConcat, IndexError, ValueError):
        with pytest.raises(error, match="empty"):
            DataProto.concat([])


@pytest.mark.parametrize("parts", [[1], [DataProto(), None], [TensorDict({}, [1])]])
def test_parts_are_batches(parts: Any) -> None:
    with pytest.raises(TypeError, match="concat takes"):
        DataProto.concat(parts)


@pytest.mark.parametrize(
    ("keep", "names"),
    [
        ((["ids"],), "mask"),
        ((None, ["uid"]), "extra"),
        (([], []), "ids"),
        ((["ids", "mask"],), "score"),
    ],
)
def test_parts_have_the_same_columns(batch: DataProto, keep: Any, names: str) -> None:
    fewer = batch.select(*keep)
    for error in (KeyError, AssertionError):
        with pytest.raises(error, match=f"part 1 lacks .*'{names}'"):
            DataProto.concat([batch, fewer])
    with pytest.raises(ColumnsDiffer, match=f"part 2 adds .*'{names}'"):
        DataProto.concat([fewer, fewer, batch])


def test_no_tensors_are_dropped_in_silence(batch: DataProto) -> None:
    bare = DataProto(None, batch.non_tensor_batch)
    for parts in ([bare, batch], [batch, bare]):
        with pytest.raises(ColumnsDiffer):
            DataProto.concat(parts)


def test_batches_without_columns_keep_their_length(batch: DataProto) -> None:
    empty = batch.select([], [])
    assert len(DataProto.concat([empty, empty])) == 8
    assert len(DataProto.concat([DataProto(), empty])) == 4
    bare, with_batch = arrays_of(o=[1, 2]), empty.union(arrays_of(o=[1] * 4))
    assert len(DataProto.concat([bare, with_batch])) == 6
    assert DataProto.concat([DataProto(), DataProto()]).batch is None


def test_the_device_stays_if_it_is_one() -> None:
    on_cpu, nowhere = (
        DataProto(TensorDict({"t": torch.zeros(1)}, [1], device=device)) for device in ("cpu", None)
    )
    assert DataProto.concat([on_cpu, on_cpu]).batch.device == torch.device("cpu")
    assert DataProto.concat([on_cpu, nowhere]).batch.device is None


def test_rows_of_other_shapes_name_the_column_and_the_part() -> None:
    narrow, wide = (DataProto.from_dict({"x": torch.zeros(1, n)}) for n in (2, 3))
    with pytest.raises(FieldSpecMismatch, match=r"'x'.*\(1, 2\) in part 0.*\(1, 3\) in part 2"):
        DataProto.concat([narrow, narrow, wide])
    with pytest.raises(ValueError, match="'x'"):
        DataProto.concat([arrays_of(x=np.zeros((1, 2))), arrays_of(x=np.zeros(1))])


def test_strings_widen() -> None:
    joined = DataProto.concat([arrays_of(x=np.array(["a"])), arrays_of(x=np.array(["abc"]))])
    assert joined.non_tensor_batch["x"].tolist() == ["a", "abc"]


def test_other_failures_of_torch_are_not_hidden() -> None:
    here, there = (DataProto.from_dict({"x": torch.zeros(1, device=d)}) for d in ("cpu", "meta"))
    with pytest.raises(RuntimeError):
        DataProto.concat([here, there])


def test_ragged_and_dense_do_not_mix(jagged: Callable[..., torch.Tensor]) -> None:
    ragged = DataProto(TensorDict({"x": jagged([1.0, 2.0])}, [1]))
    dense = DataProto.from_dict({"x": torch.zeros(1, 2)})
    for parts in ([ragged, dense], [dense, ragged]):
        with pytest.raises(FieldSpecMismatch, match="ragged in some parts"):
            DataProto.concat(parts)


def test_the_most_derived_type_wins(batch: DataProto) -> None:
    class Mine(DataProto):
        pass

    mine = Mine(batch.batch, batch.non_tensor_batch)
    for parts in ([mine, batch], [batch, mine], [batch, mine, batch]):
        assert type(DataProto.concat(parts)) is Mine


def test_objects_of_a_tensordict_are_joined() -> None:
    def data(one: Any, *cells: Any) -> DataProto:
        stack = NonTensorStack.from_list([NonTensorData(cell) for cell in cells])
        columns = {"one": NonTensorData(one), "cells": stack}
        return DataProto(TensorDict(columns, [len(cells)]))

    same = DataProto.concat([data("a", 1, [2]), data("a", 3)])
    assert isinstance(same.batch.get("one"), NonTensorData)
    assert same.batch.get("one").data == "a"
    assert same.batch.get("one").batch_size == torch.Size([3])
    assert same.batch.get("cells").tolist() == [1, [2], 3]
    different = DataProto.concat([data("a", 1, 2), data("b", 3)])
    assert different.batch.get("one").tolist() == ["a", "a", "b"]


# ---- meta_info


def test_every_key_of_any_part_is_there() -> None:
    assert meta_of({"a": 1}, {"b": 2}, {}) == {"a": 1, "b": 2}
    assert meta_of({"a": [1, {"x": np.arange(2)}]}, {"a": [1, {"x": np.arange(2)}]}).keys() == {"a"}
    assert meta_of({"a": float("nan")}, {"a": float("nan")}).keys() == {"a"}


def test_parts_keep_their_own_meta_info() -> None:
    parts = [DataProto(meta_info={"a": 1, "metrics": {"x": 1}}), DataProto(meta_info={"b": 2})]
    before = copy.deepcopy([part.meta_info for part in parts])
    joined = DataProto.concat(parts)
    joined.meta_info["c"] = 3
    assert [part.meta_info for part in parts] == before


def test_a_conflict_names_the_key_and_both_values() -> None:
    with pytest.raises(MetaConflict, match=r"'reward_extra_keys'\] is \[\] on .* \['acc'\]"):
        meta_of({"reward_extra_keys": []}, {"reward_extra_keys": ["acc"]})
    with pytest.raises(AssertionError):
        meta_of({"a": 1}, {}, {"a": 2})


def test_timing_never_fails_a_step() -> None:
    times = [{"timing": {"gen": 73.94637}}, {"timing": {"gen": 73.94638, "wait": 1}}, {}]
    assert meta_of(*times) == {"timing": {"gen": 73.94638, "wait": 1}}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ([{"x": 1}, {"x": 2}], {"x": [1, 2]}),
        ([{"x": 1}], {"x": [1]}),
        ([{"x": 1}, None, {"x": 2}], {"x": [1, 2]}),
        ([[{"x": 1}, {"x": 2}], {"x": 3}], {"x": [1, 2, 3]}),
        ([{"x": [1, 2]}, {"x": [3]}], {"x": [[1, 2], [3]]}),
        ([{"x": 1, "y": 2}, {"x": 3}], {"x": [1, 3], "y": [2, None]}),
        ([{"x": 1}, {"x": 2, "y": 3}], {"x": [1, 2], "y": [None, 3]}),
        ([{"x": 1}, {}, {"y": 3}], {"x": [1, None, None], "y": [None, None, 3]}),
        ([{}, {}], {}),
    ],
)
def test_metrics_are_collected(metrics: list[Any], expected: dict[str, Any]) -> None:
    metas = [{"metrics": one, "a": 1} for one in metrics]
    assert meta_of(*metas) == {"a": 1, "metrics": expected}


@pytest.mark.parametrize("metrics", [[None, None], [[], []], [None]])
def test_no_metrics_are_no_key(metrics: list[Any]) -> None:
    assert meta_of(*[{"metrics": one} for one in metrics]) == {}


@pytest.mark.parametrize("metrics", [1.0, "x", [1], ({"x": 1},)])
def test_metrics_are_dicts(metrics: Any) -> None:
    with pytest.raises(TypeError, match="metrics"):
        meta_of({"metrics": metrics})


def test_four_workers_give_four_metrics(batch: DataProto) -> None:
    parts = batch.chunk(4)
    for rank, part in enumerate(parts):
        part.meta_info["metrics"] = {"loss": float(rank)}
    joined = DataProto.concat(parts)
    assert joined.meta_info["metrics"] == {"loss": [0.0, 1.0, 2.0, 3.0]}
    assert "metrics" not in batch.meta_info
