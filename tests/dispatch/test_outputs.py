"""What a method returned is sorted into columns and values, and held against its declaration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from transferqueue.dispatch import PADDING_KEY, Declaration
from transferqueue.dispatch.outputs import Returned, check, first_rows, take_apart
from transferqueue.errors import UndeclaredWrite, WriteMissing, WrongRowCount
from transferqueue.view import DataProto

VALUES = Declaration.of(writes=["values"])
NOTHING = Declaration()


def checked(returned: Returned, declaration: Declaration, num_rows: int = 2) -> None:
    check(returned, declaration, method="critic.compute", rank=3, num_rows=num_rows)


def test_a_dict_of_a_writing_method_is_columns_and_metrics() -> None:
    returned = take_apart({"values": torch.ones(2), "loss": torch.tensor(0.5)}, VALUES)
    assert list(returned.columns) == ["values"]
    assert returned.meta == {"metrics": {"loss": 0.5}}
    checked(returned, VALUES)


def test_metrics_may_stand_under_their_own_key() -> None:
    output = {"values": torch.ones(2), "metrics": {"a": np.float32(1.0)}, "b": 2}
    assert take_apart(output, VALUES).meta == {"metrics": {"a": 1.0, "b": 2}}


def test_a_dict_of_values_comes_back_as_it_is() -> None:
    returned = take_apart({"loss": 0.5, "lrs": [1e-6, 1e-5]}, NOTHING)
    assert returned == Returned(value={"loss": 0.5, "lrs": [1e-6, 1e-5]})
    checked(returned, NOTHING)


def test_a_dataproto_is_columns_and_meta_info() -> None:
    data = DataProto.from_single_dict(
        {"values": torch.ones(2), "text": np.array(["a", "b"], dtype=object)},
        meta_info={"metrics": {"mfu": np.float64(0.4)}, PADDING_KEY: 1},
    )
    returned = take_apart(data, VALUES)
    assert set(returned.columns) == {"values", "text"}
    assert returned.meta == {"metrics": {"mfu": 0.4}}
    assert type(returned.meta["metrics"]["mfu"]) is float


def test_a_tensordict_is_columns_and_its_plain_data_is_meta_info() -> None:
    data = TensorDict(
        {"values": torch.ones(2), "text": NonTensorStack("a", "b"), "lr": NonTensorData(0.1)},
        batch_size=[2],
    )
    returned = take_apart(data, VALUES)
    assert set(returned.columns) == {"values", "text"}
    assert returned.meta == {"lr": 0.1}


def test_a_column_that_is_not_declared_is_named_with_method_and_rank() -> None:
    returned = take_apart({"value": torch.ones(2)}, VALUES)
    with pytest.raises(UndeclaredWrite, match=r"critic.compute on rank 3 .*'value'.*'values'"):
        checked(returned, VALUES)


def test_a_list_beside_declared_columns_is_taken_for_a_column() -> None:
    with pytest.raises(UndeclaredWrite, match="'texts'"):
        checked(take_apart({"values": torch.ones(2), "texts": ["a", "b"]}, VALUES), VALUES)


def test_a_method_that_declares_no_writes_must_return_no_column() -> None:
    for output in ({"x": torch.ones(2)}, DataProto.from_single_dict({"x": torch.ones(2)})):
        with pytest.raises(UndeclaredWrite, match="'x'"):
            checked(take_apart(output, NOTHING), NOTHING)
    with pytest.raises(UndeclaredWrite, match="Tensor"):
        checked(take_apart(torch.ones(2), NOTHING), NOTHING)


@pytest.mark.parametrize("output", [None, 0.5, "text", {}, {"loss": 1.0}])
def test_a_declared_column_that_is_missing_is_named(output: Any) -> None:
    with pytest.raises(WriteMissing, match=r"critic.compute on rank 3 returned no 'values'"):
        checked(take_apart(output, VALUES), VALUES)


@pytest.mark.parametrize(
    ("column", "got"),
    [
        (torch.ones(3), 3),
        (np.ones(1), 1),
        (["a"], 1),
        (torch.tensor(1.0), 1),
        (0.5, 1),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2), torch.ones(3)],
                                    layout=torch.jagged), 3),
    ],
)  # fmt: skip
def test_a_column_with_another_number_of_rows_is_named(column: Any, got: int) -> None:
    with pytest.raises(WrongRowCount, match=f"given 2 rows and returned {got} of 'values'"):
        checked(take_apart({"values": column}, VALUES), VALUES)


def test_first_rows_of_every_kind_of_column() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    assert first_rows(jagged, 1).size(0) == 1
    assert first_rows(torch.arange(3), 2).tolist() == [0, 1]
    assert first_rows(["a", "b"], 1) == ["a"]
    assert first_rows(np.array(["a", "b"], dtype=object), 1).tolist() == ["a"]
