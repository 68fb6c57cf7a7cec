"""Splitting and joining whatever a dispatcher is given."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from transferqueue.errors import BatchInconsistent, ColumnsDiffer, NotDivisible, NothingToConcat
from transferqueue.handle import BatchHandle
from transferqueue.view import BatchData, DataProto, DataProtoFuture

if TYPE_CHECKING:
    from collections.abc import Callable


def handle(rows: int = 4) -> BatchHandle:
    return BatchHandle(service_id="s", partition="train", uids=np.arange(rows))


def bare(rows: int = 4) -> TensorDict:
    stack = NonTensorStack.from_list([NonTensorData([row]) for row in range(rows)])
    columns = {"x": torch.arange(rows * 2).view(rows, 2), "cells": stack, "one": NonTensorData("k")}
    return TensorDict(columns, [rows])


def future() -> DataProtoFuture:
    return DataProtoFuture.concat(["ref"])


@pytest.mark.parametrize("make", [lambda: DataProto(), bare, handle, future])
def test_these_can_be_chunked(make: Callable[[], Any]) -> None:
    assert BatchData(make()).is_chunkable()


@pytest.mark.parametrize("data", [None, 3, [], {}, "ab", torch.zeros(2), [DataProto()]])
def test_others_cannot_be_chunked(data: Any) -> None:
    assert not BatchData(data).is_chunkable()
    with pytest.raises(TypeError, match="cannot chunk"):
        BatchData(data).chunk(2)


@pytest.mark.parametrize("make", [lambda: DataProto(), bare, handle])
def test_lists_of_these_can_be_joined(make: Callable[[], Any]) -> None:
    assert BatchData([make()]).is_concatable()
    assert BatchData((make(), make())).is_concatable()


@pytest.mark.parametrize("data", [None, [], (), 3, [3], "ab", {"a": 1}, [3, DataProto()], future()])
def test_others_cannot_be_joined(data: Any) -> None:
    assert not BatchData(data).is_concatable()
    with pytest.raises((TypeError, NothingToConcat)):
        BatchData(data).concat()


def test_an_empty_list_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="empty"):
        BatchData([]).concat()


def test_a_batch_is_split_and_joined(batch: DataProto) -> None:
    chunks = BatchData(batch).chunk(2)
    assert [type(chunk) for chunk in chunks] == [DataProto] * 2
    assert BatchData(chunks).concat() == batch


def test_a_handle_is_split_and_joined_unevenly() -> None:
    chunks = BatchData(handle(10)).chunk(4)
    assert [len(chunk) for chunk in chunks] == [3, 3, 2, 2]
    assert BatchData(chunks).concat() == handle(10)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_a_tensordict_is_split_and_joined(parts: int) -> None:
    chunks = BatchData(bare()).chunk(parts)
    assert isinstance(chunks, tuple)
    assert [chunk.batch_size[0] for chunk in chunks] == [4 // parts] * parts
    assert [chunk.get("one").data for chunk in chunks] == ["k"] * parts
    joined = BatchData(list(chunks)).concat()
    assert joined["x"].tolist() == bare()["x"].tolist()
    assert joined.get("cells").tolist() == [[0], [1], [2], [3]]
    assert joined.get("one").data == "k"


def test_chunks_of_a_tensordict_carry_their_own_rows_only() -> None:
    chunks = BatchData(TensorDict({"x": torch.zeros(100, 1000)}, [100])).chunk(100)
    assert len(pickle.dumps(chunks[0])) < 20_000


def test_jagged_columns_of_a_tensordict_are_split_and_joined(
    jagged: Callable[..., torch.Tensor],
) -> None:
    batch = TensorDict({"x": jagged([1.0], [2.0, 3.0]), "y": torch.zeros(2)}, [2])
    chunks = BatchData(batch).chunk(2)
    assert list(chunks[0].keys()) == ["x", "y"]
    joined = BatchData(chunks).concat()
    assert [row.tolist() for row in joined["x"].unbind()] == [[1.0], [2.0, 3.0]]


def test_a_tensordict_without_rows_is_joined_not_split() -> None:
    meta = TensorDict({"one": NonTensorData("k")}, [])
    assert BatchData([meta, meta]).concat() is meta
    with pytest.raises(BatchInconsistent, match="no rows"):
        BatchData(meta).chunk(2)


def test_tensordicts_must_divide_and_match() -> None:
    with pytest.raises(NotDivisible, match="4 does not divide by 3"):
        BatchData(bare()).chunk(3)
    with pytest.raises(ColumnsDiffer, match="'x'"):
        BatchData([bare(), bare().exclude("x")]).concat()


@pytest.mark.parametrize("make", [lambda: DataProto(), bare, handle, future])
@pytest.mark.parametrize("parts", [0, -1])
def test_there_is_at_least_one_part(make: Callable[[], Any], parts: int) -> None:
    with pytest.raises(ValueError, match="chunks"):
        BatchData(make()).chunk(parts)
