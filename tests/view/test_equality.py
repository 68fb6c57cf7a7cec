"""What counts as the same content."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from transferqueue.view.equality import same_array, same_content, same_tensor

NAN = float("nan")


@dataclass
class Sample:
    pixels: torch.Tensor
    note: str = ""
    cache: Any = field(default=None, compare=False)


@dataclass
class Other:
    pixels: torch.Tensor
    note: str = ""


def stack(*cells: Any) -> NonTensorStack:
    return NonTensorStack.from_list([NonTensorData(cell) for cell in cells])


class Table:
    """Answers == cell by cell, as a data frame does."""

    def __init__(self, *cells: int) -> None:
        self.cells = np.array(cells)

    def __eq__(self, other: object) -> Any:
        return self.cells == other.cells if isinstance(other, Table) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


SAME: list[tuple[Any, Any]] = [
    (1, 1), (1, 1.0), (True, 1), (np.float64(1), 1.0), ("a", "a"), (None, None), (NAN, NAN),
    (np.float32("nan"), np.float32("nan")), (complex(0, NAN), complex(0, NAN)),
    (np.datetime64("NaT"), np.datetime64("NaT")),
    ([1, [NAN]], [1, [NAN]]), ((1, NAN), (1, NAN)), ({"a": NAN}, {"a": NAN}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}), (OrderedDict(a=1), {"a": 1}), ({1, 2}, {2, 1}),
    (torch.ones(2), torch.ones(2)), (torch.tensor([NAN]), torch.tensor([NAN])),
    (torch.zeros(0), torch.zeros(0)), (torch.tensor(0.0), torch.tensor(-0.0)),
    (torch.eye(2).to_sparse(), torch.eye(2).to_sparse()),
    (np.ones(2), np.ones(2)), (np.array([NAN, 1]), np.array([NAN, 1])),
    (np.array(["a"]), np.array(["a"])), (np.array([b"a"]), np.array([b"a"])),
    (TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"a": torch.ones(2)}, [2])),
    (stack("a", [NAN]), stack("a", [NAN])),
    (NonTensorData({"k": NAN}), NonTensorData({"k": NAN})),
    (Sample(torch.ones(2), "x", 1), Sample(torch.ones(2), "x", 2)),
    (Table(1, 2), Table(1, 2)), (Sample, Sample), (len, len),
]  # fmt: skip

DIFFERENT: list[tuple[Any, Any]] = [
    (1, 2), (1, "1"), (NAN, 1.0), (None, 0), ([1], (1,)), ([1], [1, 1]), ([1, 2], [2, 1]),
    ({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ({"a": 1}, {}), ({"a": 1}, [("a", 1)]),
    (torch.ones(2), torch.zeros(2)), (torch.ones(2), torch.ones(3)),
    (torch.ones(2), torch.ones(2, 1)),
    (torch.ones(2), torch.ones(2).double()), (torch.ones(2), np.ones(2, "f")),
    (torch.ones(2), [1.0, 1.0]), (torch.tensor([NAN, 1]), torch.tensor([1, NAN])),
    (torch.tensor([NAN, 1]), torch.tensor([NAN, 2])), (torch.tensor([1, 2]), torch.tensor([1, 3])),
    (torch.tensor([True]), torch.tensor([False])), (torch.eye(2).to_sparse(), torch.eye(2)),
    (torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse()),
    (np.ones(2), np.zeros(2)), (np.ones(2), np.ones(2, "f4")), (np.ones(2), np.ones((2, 1))),
    (np.array([NAN, 1]), np.array([NAN, 2])), (np.array(["a"]), np.array(["b"])),
    (TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"a": torch.ones(2)}, [])),
    (TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"b": torch.ones(2)}, [2])),
    (TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"a": torch.zeros(2)}, [2])),
    (TensorDict({}, [2]), stack("a", "b")), (stack("a", "b"), TensorDict({}, [2])),
    (stack("a", "b"), stack("a", "c")), (stack("a"), stack("a", "a")),
    (NonTensorData("a"), NonTensorData("b")),
    (Sample(torch.ones(2)), Sample(torch.zeros(2))), (Sample(torch.ones(2)), Other(torch.ones(2))),
    (Sample(torch.ones(2), "x"), Sample(torch.ones(2), "y")),
    (Table(1, 2), Table(1, 3)), (Table(1), 1), (Sample, Other), (object(), object()),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SAME)
def test_these_are_the_same(left: Any, right: Any) -> None:
    assert same_content(left, right)
    assert same_content(right, left)
    assert same_content({"k": [left]}, {"k": [right]})


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_these_are_not(left: Any, right: Any) -> None:
    assert not same_content(left, right)
    assert not same_content(right, left)
    assert not same_content([1, (left,)], [1, (right,)])


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    "name",
    ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "complex32", "uint16", "uint64", "int16",
     "bits8", "bits16", "float4_e2m1fn_x2", "uint4", "int1"],
)  # fmt: skip
def test_dtypes_that_torch_does_not_compare(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"no torch.{name}")
    dtype = getattr(torch, name)

    def tensor(*cells: int) -> torch.Tensor:
        return torch.tensor(cells, dtype=torch.uint8).repeat_interleave(dtype.itemsize).view(dtype)

    assert same_tensor(tensor(1, 2), tensor(1, 2))
    assert not same_tensor(tensor(1, 2), tensor(1, 3))


def test_a_nan_of_float8_is_equal() -> None:
    column = torch.tensor([NAN, 1.0]).to(torch.float8_e5m2)
    assert same_tensor(column, column.clone())


def test_where_a_tensor_lives_does_not_matter() -> None:
    """Two views of one memory are equal without a look at the cells, but only with one layout."""
    square = torch.arange(4.0).view(2, 2)
    assert same_tensor(square, square[:])
    assert not same_tensor(square, square.t())
    assert same_tensor(square.t(), square.t().contiguous())
    assert same_tensor(square[0], square.clone()[0])
    nans = torch.tensor([NAN])
    assert same_tensor(nans, nans[:])


def test_cells_of_object_arrays_have_one_type() -> None:
    def column(*cells: Any) -> np.ndarray:
        return np.fromiter(cells, dtype=object, count=len(cells))

    assert same_array(column(1, "a", NAN), column(1, "a", NAN))
    assert not same_array(column(1), column(1.0))
    assert not same_array(column(True), column(1))
    assert not same_array(column(1, 2), column(1, 3))
    assert not same_array(column(1), column(1, 1))


def test_values_that_contain_themselves() -> None:
    def loop(last: int) -> list[Any]:
        made: list[Any] = [1]
        made += [made, last]
        return made

    assert same_content(loop(1), loop(1))
    assert not same_content(loop(1), loop(2))
    left, right = np.empty(2, object), np.empty(2, object)
    left[:] = [left, 1]
    right[:] = [right, 1]
    assert same_array(left, right)
    right[1] = 2
    assert not same_array(left, right)
