"""Jagged columns keep their rows, their ragged dimension and their kinship."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from transferqueue.errors import FieldSpecMismatch, UnsupportedTensor
from transferqueue.view import DataProto, collate_fn, fold_batch_dim, unfold_batch_dim

Jagged = Callable[..., torch.Tensor]


def data_of(**columns: torch.Tensor) -> DataProto:
    rows = next(iter(columns.values())).shape[0]
    return DataProto(TensorDict(dict(columns), [rows]))


def rows_of(data: DataProto, name: str = "x") -> list[Any]:
    return [row.tolist() for row in data.batch[name].unbind()]


def make_column(lengths: list[int], shape: tuple[int, ...], dim: int) -> torch.Tensor:
    """[B, *shape] with ``shape[dim]`` replaced by each row's length; cells count up."""
    sizes = list(shape)
    sizes[dim] = sum(lengths)
    values = torch.arange(int(torch.tensor(sizes).prod())).view(sizes)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dim + 1)


LAYOUTS = [((0,), 0), ((0, 3), 0), ((3, 0), 1), ((2, 0, 3), 1), ((2, 3, 0), 2)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.data())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@pytest.mark.parametrize(("shape", "dim"), LAYOUTS)
def test_rows_are_picked_whatever_the_ragged_dimension(
    shape: tuple[int, ...], dim: int, lengths: list[int], data: st.DataObject
) -> None:
    column = make_column(lengths, shape, dim)
    rows = [row.tolist() for row in column.values().split(lengths, dim)]
    batch = data_of(x=column)
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    start = data.draw(st.integers(0, len(rows)))
    step = data.draw(st.integers(1, 3))
    results = {
        "index": (batch[picked], [rows[i] for i in picked]),
        "slice": (batch[start:], rows[start:]),
        "step": (batch[start::step], rows[start::step]),
        "twice": (batch[start:][: len(rows)], rows[start:]),
        "concat": (DataProto.concat([batch[start:], batch]), rows[start:] + rows),
        "repeat": (batch.repeat(2), [row for row in rows for _ in range(2)]),
        "tile": (batch.repeat(2, interleave=False), rows + rows),
        "pickle": (pickle.loads(pickle.dumps(batch[start:])), rows[start:]),
    }
    for name, (result, expected) in results.items():
        found = result.batch["x"]
        assert rows_of(result) == expected, name
        assert found._ragged_idx == dim + 1, name
        assert found.dim() == len(shape) + 1, name
        assert (found.layout, found.dtype) == (torch.jagged, torch.int64), name
        assert found.offsets()[0] == 0, name
    for number, row in enumerate(rows):
        assert batch[number].batch["x"].tolist() == row


def test_equal_lengths_stay_jagged(jagged_last: Jagged, jagged: Jagged) -> None:
    batch = data_of(x=jagged([1.0, 2.0], [3.0, 4.0]), m=jagged_last(2, 2))
    for result in (
        batch[:],
        batch[[0, 1]],
        batch.repeat(1),
        DataProto.concat(batch.split(1)),
        pickle.loads(pickle.dumps(batch)),
        next(iter(batch.make_iterator(2, 1))),
        batch[:1],
        batch[1:1],
    ):
        assert result.batch["x"].is_nested
        assert result.batch["m"]._ragged_idx == 2


def test_columns_that_share_offsets_still_do(jagged: Jagged) -> None:
    one = jagged([1.0], [2.0, 3.0], [4.0])
    batch = data_of(x=one, y=one * 10, z=jagged([1.0], [2.0, 3.0], [4.0]))
    for name, result in {
        "slice": batch[1:],
        "step": batch[::2],
        "index": batch[[2, 0]],
        "repeat": batch.repeat(2),
        "tile": batch.repeat(2, interleave=False),
        "concat": DataProto.concat([batch, batch[1:]]),
        "pickle": pickle.loads(pickle.dumps(batch)),
        "chunk": batch.chunk(3)[1],
        "copy": batch.select(deepcopy=True),
    }.items():
        x, y = result.batch["x"], result.batch["y"]
        assert x.offsets() is y.offsets(), name
        assert (x + y).values().tolist() == (x.values() * 11).tolist(), name
        if name not in {"copy"}:
            assert result.batch["z"].offsets() is not x.offsets(), name


def test_gaps_between_rows_close(jagged: Jagged) -> None:
    """A narrowed column holds more than its rows: lengths say how much of each."""
    values, offsets = torch.arange(10.0), torch.tensor([0, 4, 8, 10])
    lengths = torch.tensor([2, 0, 2])
    column = torch.nested.nested_tensor_from_jagged(values, offsets, lengths)
    batch = data_of(x=column)
    rows = [[0.0, 1.0], [], [8.0, 9.0]]
    assert rows_of(batch[[2, 1, 0]]) == rows[::-1]
    assert rows_of(batch[0:2]) == rows[:2]
    assert rows_of(batch[1:]) == rows[1:]
    assert batch[0].batch["x"].tolist() == rows[0]
    assert rows_of(DataProto.concat([batch, batch])) == rows + rows
    back = pickle.loads(pickle.dumps(batch))
    assert rows_of(back) == rows
    assert back.batch["x"].values().shape == (4,)
    batch.union(data_of(x=jagged(*rows)))


def test_values_beyond_the_last_row_are_left_behind() -> None:
    column = torch.nested.nested_tensor_from_jagged(torch.arange(9.0), torch.tensor([2, 4, 5]))
    batch = data_of(x=column)
    rows = [[2.0, 3.0], [4.0]]
    assert rows_of(batch[:]) == rows
    assert rows_of(DataProto.concat([batch, batch])) == rows + rows
    back = pickle.loads(pickle.dumps(batch)).batch["x"]
    assert back.values().tolist() == [2.0, 3.0, 4.0]
    assert back.offsets().tolist() == [0, 2, 3]


def test_verls_own_mark_of_the_ragged_dimension_is_read() -> None:
    """verl sets ``_ragged_idx`` on a tensor that was made for dimension 1."""
    column = torch.nested.nested_tensor_from_jagged(
        torch.arange(8).view(2, 4), torch.tensor([0, 1, 4])
    )
    column._ragged_idx = 2
    assert rows_of(data_of(x=column)[[1]]) == [[[1, 2, 3], [5, 6, 7]]]


def test_ragged_dimensions_do_not_mix() -> None:
    first, last = make_column([2, 2], (0, 2), 0), make_column([2, 2], (2, 0), 1)
    with pytest.raises(FieldSpecMismatch, match=r"ragged in dimension 0.*in 1"):
        DataProto.concat([data_of(x=first), data_of(x=last)])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_old_nested_layout_is_refused_but_pickles() -> None:
    column = torch.nested.nested_tensor([torch.zeros(1), torch.ones(2)])
    batch = DataProto(TensorDict({"x": column}, [2]))
    for operation in (
        lambda: batch[[0]],
        lambda: batch[:1],
        lambda: batch.repeat(2),
        lambda: DataProto.concat([batch, batch]),
    ):
        with pytest.raises(UnsupportedTensor, match=r"'x'.*jagged"):
            operation()
    back = pickle.loads(pickle.dumps(batch))
    assert rows_of(back) == [[0.0], [1.0, 1.0]]
    assert back.batch["x"].layout == torch.strided
    batch.union(back)


def test_what_needs_a_common_length_is_refused(batch: DataProto) -> None:
    for operation in (
        lambda: fold_batch_dim(batch, 2),
        lambda: unfold_batch_dim(batch),
        lambda: batch.unfold_column_chunks(2, ["response"]),
    ):
        with pytest.raises((UnsupportedTensor, AssertionError)):
            operation()


def test_columns_not_split_may_be_jagged(batch: DataProto) -> None:
    unfolded = batch.select(["ids", "response"]).unfold_column_chunks(2, ["ids"])
    assert unfolded.batch["ids"].shape == (8, 3)
    assert [len(row) for row in unfolded.batch["response"].unbind()] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_rows_of_one_length_collate() -> None:
    batch = data_of(x=make_column([2, 2], (0,), 0))
    assert collate_fn(list(batch)).batch["x"].tolist() == [[0, 1], [2, 3]]


def test_gradients_flow_through_picked_rows() -> None:
    values = torch.arange(3.0, requires_grad=True)
    column = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 1, 3]))
    data_of(x=column)[[1, 1]].batch["x"].values().sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, 2.0, 2.0]
