"""What can be a batch, and what is done with what was given."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

import transferqueue.view as view
from transferqueue.errors import BatchInconsistent
from transferqueue.view import DataProto, DataProtoConfig


def test_an_empty_batch_has_no_rows_and_dicts_of_its_own() -> None:
    one, other = DataProto(), DataProto(None, None, None)
    assert len(one) == len(other) == 0
    assert (one.batch, one.non_tensor_batch, one.meta_info) == (None, {}, {})
    assert one.non_tensor_batch is not other.non_tensor_batch


def test_what_is_given_is_kept_not_copied() -> None:
    batch, arrays, meta = TensorDict({"a": torch.zeros(2)}, [2]), {"o": np.arange(2)}, {"m": 1}
    data = DataProto(batch, arrays, meta)
    assert data.batch is batch
    assert data.non_tensor_batch is arrays
    assert data.meta_info is meta


@pytest.mark.parametrize("size", [[], [2, 3]])
def test_there_is_exactly_one_batch_dim(size: list[int]) -> None:
    with pytest.raises(AssertionError, match="one batch dim"):
        DataProto(batch=TensorDict({}, size))


def test_a_batch_is_a_tensordict() -> None:
    with pytest.raises(TypeError, match="dict"):
        DataProto(batch={"a": torch.zeros(2)})  # type: ignore[arg-type]


@pytest.mark.parametrize("column", [[1, 2], np.array(1), torch.zeros(2), "ab", None])
@pytest.mark.parametrize("batch", [None, TensorDict({}, [2])])
def test_every_non_tensor_is_an_array_with_a_cell_a_row(column: Any, batch: Any) -> None:
    with pytest.raises(AssertionError, match="'o'"):
        DataProto(batch, {"o": column})


@pytest.mark.parametrize("rows", [1, 3])
def test_arrays_are_as_long_as_the_batch(rows: int) -> None:
    with pytest.raises(BatchInconsistent, match=f"{rows} rows"):
        DataProto(TensorDict({}, [2]), {"o": np.arange(rows)})


def test_arrays_are_as_long_as_one_another() -> None:
    with pytest.raises(BatchInconsistent, match=r"'b'.*3 rows.*2"):
        DataProto(None, {"a": np.arange(2), "b": np.arange(3)})


def test_consistency_can_be_checked_again() -> None:
    data = DataProto(TensorDict({}, [2]))
    data.check_consistency()
    data.non_tensor_batch["o"] = np.arange(3)
    with pytest.raises(AssertionError):
        data.check_consistency()


def test_the_length_is_the_batchs_then_the_arrays() -> None:
    assert len(DataProto(TensorDict({}, [5]))) == 5
    assert len(DataProto(None, {"o": np.zeros((3, 2))})) == 3
    assert len(DataProto(TensorDict({}, [0]))) == 0


def test_a_dict_is_split_by_kind() -> None:
    data = DataProto.from_single_dict({"t": torch.zeros(2), "o": np.arange(2)}, {"m": 1})
    assert list(data.batch.keys()) == ["t"]
    assert list(data.non_tensor_batch) == ["o"]
    assert data.meta_info == {"m": 1}


@pytest.mark.parametrize("column", [[1, 2], 3, None, "text"])
def test_a_dict_holds_tensors_and_arrays_only(column: Any) -> None:
    with pytest.raises(ValueError, match="'x'"):
        DataProto.from_single_dict({"t": torch.zeros(2), "x": column})


def test_only_arrays_make_no_batch() -> None:
    data = DataProto.from_single_dict({"o": np.arange(2)})
    assert data.batch is None
    assert len(data) == 2


def test_auto_padding_is_noted_in_meta_info_of_its_own() -> None:
    meta: dict[str, Any] = {"m": 1}
    for data in (
        DataProto.from_single_dict({"o": np.arange(2)}, meta, auto_padding=True),
        DataProto.from_dict({}, {"o": np.arange(2)}, meta, auto_padding=True),
    ):
        assert data.meta_info == {"m": 1, DataProtoConfig.auto_padding_key: True}
        assert data.is_padding_enabled()
    assert meta == {"m": 1}
    assert not DataProto.from_dict({}, {"o": np.arange(2)}, meta).is_padding_enabled()


def test_lists_become_one_cell_a_row() -> None:
    given: dict[str, Any] = {
        "turns": [[1, 2], [3, 4]],
        "arrays": [np.zeros(2), np.ones(2)],
        "tensors": [torch.zeros(2, dtype=torch.bfloat16)] * 2,
        "tuple": ((1, 2), (3, 4)),
        "none": [None, None],
    }
    before = dict(given)
    data = DataProto.from_dict(non_tensors=given)
    assert given == before
    for name, column in data.non_tensor_batch.items():
        assert (column.dtype, column.shape) == (object, (2,)), name
        assert all(a is b for a, b in zip(column, given[name], strict=True))


def test_arrays_stay_as_they_are() -> None:
    column = np.arange(4).reshape(2, 2)
    assert DataProto.from_dict(non_tensors={"x": column}).non_tensor_batch["x"] is column


@pytest.mark.parametrize("column", ["xy", b"xy", {"a": 1, "b": 2}, 7, None])
def test_what_has_no_cell_a_row_is_refused(column: Any) -> None:
    with pytest.raises(AssertionError, match="'x'"):
        DataProto.from_dict({"t": torch.zeros(2)}, {"x": column})


def test_tensors_share_their_first_dim() -> None:
    with pytest.raises(AssertionError, match=r"'a' has \(2,\) and 'b' has \(3,\)"):
        DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})


@pytest.mark.parametrize("dims", [0, -1, 2])
def test_the_batch_has_one_dim(dims: int) -> None:
    with pytest.raises(AssertionError, match="batch"):
        DataProto.from_dict({"a": torch.zeros(2, 2)}, num_batch_dims=dims)


def test_a_scalar_tensor_is_no_column() -> None:
    with pytest.raises(AssertionError):
        DataProto.from_dict({"a": torch.tensor(1.0)})


@pytest.mark.parametrize("non_tensors", [[1], "ab", ("a",)])
def test_non_tensors_is_a_dict(non_tensors: Any) -> None:
    with pytest.raises(AssertionError, match="dict"):
        DataProto.from_dict({}, non_tensors)


def test_a_scalar_a_row_keeps_its_shape() -> None:
    data = DataProto.from_dict({"reward": torch.arange(3.0)})
    assert data.batch["reward"].shape == (3,)
    assert data.repeat(2).batch["reward"].shape == (6,)


def source() -> TensorDict:
    stack = NonTensorStack.from_list([NonTensorData(cell) for cell in ([1], [2], [3])])
    return TensorDict(
        {
            "t": torch.arange(3),
            "cells": stack,
            "one": NonTensorData({"k": 1}),
            "inner": TensorDict({"x": torch.ones(3, 2)}, [3]),
        },
        [3],
        device="cpu",
    )


def test_a_tensordict_is_taken_apart_by_kind() -> None:
    td, meta = source(), {"m": 1}
    data = DataProto.from_tensordict(td, meta)
    assert set(data.batch.keys()) == {"t", "inner"}
    assert data.batch["inner"]["x"].shape == (3, 2)
    assert data.batch.device == torch.device("cpu")
    assert data.non_tensor_batch["cells"].tolist() == [[1], [2], [3]]
    assert data.non_tensor_batch["cells"].shape == (3,)
    assert data.meta_info == {"m": 1, "one": {"k": 1}}
    assert meta == {"m": 1}
    assert set(td.keys()) == {"t", "cells", "one", "inner"}


def test_a_tensordict_without_a_device_gives_a_batch_without_one() -> None:
    assert DataProto.from_tensordict(TensorDict({"t": torch.zeros(2)}, [2])).batch.device is None


@pytest.mark.parametrize("dims", [0, 2])
def test_a_tensordict_gives_one_batch_dim(dims: int) -> None:
    with pytest.raises(AssertionError):
        DataProto.from_tensordict(TensorDict({"t": torch.zeros(2, 2)}, [2]), num_batch_dims=dims)


def test_columns_of_a_tensordict_are_shared() -> None:
    td = source()
    data = DataProto.from_tensordict(td)
    assert data.batch["t"].data_ptr() == td["t"].data_ptr()
    data.batch["new"] = torch.zeros(3)
    assert "new" not in set(td.keys())


def test_a_batch_goes_to_a_tensordict_and_back(batch: DataProto) -> None:
    batch.batch["inner"] = TensorDict({"x": torch.ones(4, 2)}, [4])
    td = batch.to_tensordict()
    assert set(td.keys()) == {*batch.batch.keys(), *batch.non_tensor_batch, *batch.meta_info}
    back = DataProto.from_tensordict(td)
    assert dict(back.batch.items()).keys() == dict(batch.batch.items()).keys()
    assert back.meta_info == batch.meta_info
    for name, column in batch.non_tensor_batch.items():
        assert all(
            np.array_equal(a, b) for a, b in zip(back.non_tensor_batch[name], column, strict=False)
        )
    assert (back.batch["ids"] == batch.batch["ids"]).all()
    assert back.batch["response"].is_nested


def test_a_tensordict_keeps_rows_and_device_without_columns() -> None:
    td = DataProto(TensorDict({}, [3], device="cpu")).to_tensordict()
    assert td.batch_size == torch.Size([3])
    assert td.device == torch.device("cpu")


def test_meta_info_alone_has_no_batch_dim() -> None:
    td = DataProto(meta_info={"m": [1]}).to_tensordict()
    assert td.batch_size == torch.Size([])
    back = DataProto.from_tensordict(td)
    assert (back.batch, back.meta_info) == (None, {"m": [1]})


def test_no_rows_go_to_a_tensordict_and_back() -> None:
    empty = DataProto(
        TensorDict({"t": torch.zeros(0, 2)}, [0]), {"o": np.zeros((0, 3), "<i4")}, {"m": 1}
    )
    back = DataProto.from_tensordict(empty.to_tensordict())
    assert back == empty


def test_an_empty_array_of_meta_info_stays_meta_info() -> None:
    data = DataProto(TensorDict({"t": torch.zeros(2)}, [2]), {}, {"none": np.zeros(0)})
    back = DataProto.from_tensordict(data.to_tensordict())
    assert list(back.meta_info) == ["none"]
    assert not back.non_tensor_batch


@pytest.mark.parametrize(
    ("arrays", "meta"), [({"t": np.arange(2)}, {}), ({}, {"t": 1}), ({"x": np.arange(2)}, {"x": 1})]
)
def test_a_tensordict_has_one_value_a_name(arrays: Any, meta: Any) -> None:
    data = DataProto(TensorDict({"t": torch.zeros(2)}, [2]), arrays, meta)
    with pytest.raises(AssertionError, match="more than one"):
        data.to_tensordict()


def test_verls_batch_is_taken_over_with_containers_of_its_own() -> None:
    theirs = SimpleNamespace(
        batch=TensorDict({"t": torch.zeros(2)}, [2]),
        non_tensor_batch={"o": np.arange(2)},
        meta_info={"m": 1},
    )
    ours = DataProto.from_verl(theirs)
    ours.batch["new"] = torch.zeros(2)
    ours.non_tensor_batch["new"] = np.arange(2)
    ours.meta_info["m"] = 2
    assert list(theirs.batch.keys()) == ["t"]
    assert list(theirs.non_tensor_batch) == ["o"]
    assert theirs.meta_info == {"m": 1}
    assert ours.batch["t"].data_ptr() == theirs.batch["t"].data_ptr()


def test_verls_batch_may_lack_everything() -> None:
    theirs = SimpleNamespace(batch=None, non_tensor_batch=None, meta_info=None)
    assert DataProto.from_verl(theirs) == DataProto()


def test_what_is_no_batch_of_verls_is_refused() -> None:
    with pytest.raises(TypeError, match="dict"):
        DataProto.from_verl({"batch": None})


def test_the_public_names_are_sorted_and_there() -> None:
    assert sorted(view.__all__) == list(view.__all__)
    assert all(hasattr(view, name) for name in view.__all__)
    assert len(view.__all__) == 17


def test_importing_the_view_imports_neither_ray_nor_zmq() -> None:
    code = (
        "import sys, transferqueue.view; sys.exit(bool({'ray', 'zmq', 'verl'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code]).returncode == 0
