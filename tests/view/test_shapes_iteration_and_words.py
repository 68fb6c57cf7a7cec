"""Folding, mini-batches, collating, descriptions and sizes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from transferqueue.errors import BatchInconsistent, ColumnsDiffer, NotDivisible, NothingToConcat
from transferqueue.view import DataProto, collate_fn, fold_batch_dim, unfold_batch_dim

Make = Callable[..., DataProto]


def dense(batch: DataProto) -> DataProto:
    return batch.select(["ids", "score", "mask"])


# ---- folding


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_rows_fold_to_groups_and_back(batch: DataProto, groups: int) -> None:
    data = dense(batch)
    before = copy.deepcopy(data)
    folded = fold_batch_dim(data, groups)
    size = 4 // groups
    assert len(folded) == groups
    assert folded.batch.batch_size == torch.Size([groups])
    assert folded.batch["ids"].shape == (groups, size, 6)
    assert folded.batch["score"].shape == (groups, size)
    assert folded.non_tensor_batch["uid"].shape == (groups, size)
    assert folded.non_tensor_batch["pair"].shape == (groups, size, 2)
    assert folded.batch["ids"][-1, -1, 0] == 18
    assert folded.meta_info == data.meta_info
    folded.meta_info.clear()
    again = copy.deepcopy(folded)
    unfolded = unfold_batch_dim(folded)
    assert folded == again
    unfolded.meta_info.update(data.meta_info)
    assert unfolded == data == before


@pytest.mark.parametrize("groups", [3, 8])
def test_groups_must_divide_the_rows(batch: DataProto, groups: int) -> None:
    with pytest.raises(AssertionError, match=f"4 does not divide by {groups}"):
        fold_batch_dim(dense(batch), groups)


@pytest.mark.parametrize("count", [0, -1])
def test_counts_of_dims_are_positive(batch: DataProto, count: int) -> None:
    with pytest.raises(ValueError, match="new_batch_size"):
        fold_batch_dim(dense(batch), count)
    with pytest.raises(ValueError, match="batch_dims"):
        unfold_batch_dim(dense(batch), count)
    with pytest.raises(ValueError, match="n_split"):
        batch.unfold_column_chunks(count)


def test_arrays_alone_fold() -> None:
    data = DataProto(None, {"o": np.arange(4)})
    folded = fold_batch_dim(data, 2)
    assert folded.batch is None
    assert folded.non_tensor_batch["o"].tolist() == [[0, 1], [2, 3]]
    assert unfold_batch_dim(folded) == data


def test_more_dims_unfold() -> None:
    data = DataProto.from_dict({"x": torch.arange(24).view(2, 3, 2, 2)})
    assert unfold_batch_dim(data, 3).batch["x"].shape == (12, 2)
    assert unfold_batch_dim(data, 1).batch["x"].shape == (2, 3, 2, 2)
    assert unfold_batch_dim(data).batch["x"].tolist() == data.batch["x"].view(6, 2, 2).tolist()


def test_columns_unfold_together(batch: DataProto) -> None:
    with pytest.raises(BatchInconsistent, match=r"'score' has \(4,\).*\(4, 6\)"):
        unfold_batch_dim(dense(batch))
    wide = DataProto.from_dict({"x": torch.zeros(2, 3)}, {"o": np.zeros((2, 4))})
    with pytest.raises(AssertionError, match="'o'"):
        unfold_batch_dim(wide)
    flat = DataProto.from_dict({"x": torch.zeros(2)})
    with pytest.raises(AssertionError, match="'x'"):
        unfold_batch_dim(flat)


def test_column_chunks_become_rows(batch: DataProto) -> None:
    before = copy.deepcopy(batch)
    unfolded = batch.unfold_column_chunks(2, ["ids", "pair"])
    assert batch == before
    assert list(unfolded.batch.keys()) == list(batch.batch.keys())
    assert list(unfolded.non_tensor_batch) == list(batch.non_tensor_batch)
    assert unfolded.batch["ids"].tolist() == torch.arange(24).view(8, 3).tolist()
    assert unfolded.non_tensor_batch["pair"].tolist() == [[cell] for cell in range(8)]
    assert unfolded.batch["score"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert unfolded.non_tensor_batch["uid"].tolist()[:3] == ["u0", "u0", "u1"]
    assert [len(row) for row in unfolded.batch["response"].unbind()] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert unfolded.meta_info == batch.meta_info
    assert unfolded.meta_info is not batch.meta_info


def test_without_keys_all_columns_repeat(batch: DataProto) -> None:
    for keys in (None, [], ["nowhere"]):
        assert batch.unfold_column_chunks(2, keys) == batch.repeat(2)
    assert batch.unfold_column_chunks(3, "ids").batch["ids"].shape == (12, 2)


def test_further_dims_stay() -> None:
    data = DataProto.from_dict({"x": torch.arange(24).view(2, 4, 3)})
    unfolded = data.unfold_column_chunks(2, ["x"])
    assert unfolded.batch["x"].tolist() == torch.arange(24).view(4, 2, 3).tolist()


def test_column_chunks_must_divide(batch: DataProto) -> None:
    with pytest.raises(NotDivisible, match="'ids': 6 does not divide by 4"):
        batch.unfold_column_chunks(4, ["ids"])
    with pytest.raises(AssertionError, match="'pair'"):
        batch.unfold_column_chunks(3, ["pair"])
    for keys in (["score"], ["uid"]):
        with pytest.raises(AssertionError, match="no second dimension"):
            batch.unfold_column_chunks(2, keys)


# ---- mini-batches


def test_mini_batches_come_in_order(batch: DataProto) -> None:
    batches = list(batch.make_iterator(2, epochs=2))
    assert len(batches) == 4
    assert DataProto.concat(batches[:2]) == batch
    assert DataProto.concat(batches[2:]) == batch


def test_mini_batches_have_meta_info_of_their_own(batch: DataProto) -> None:
    first, second = batch.make_iterator(2, 1)
    assert first.meta_info == batch.meta_info
    first.meta_info.clear()
    assert second.meta_info == batch.meta_info != {}


def test_one_seed_is_one_order(make: Make) -> None:
    batch = make(12)

    def order(seed: int | None) -> list[int]:
        batches = batch.make_iterator(3, 2, seed=seed, dataloader_kwargs={"shuffle": True})
        return [int(row) for one in batches for row in one.batch["score"]]

    first = order(7)
    assert order(7) == first
    assert order(8) != first
    assert sorted(first[:12]) == sorted(first[12:]) == list(range(12))
    assert first[:12] != first[12:]
    torch.manual_seed(0)
    unseeded = order(None)
    torch.manual_seed(0)
    assert order(None) == unseeded


@pytest.mark.parametrize("size", [3, 8])
def test_mini_batches_must_divide(batch: DataProto, size: int) -> None:
    for data in (batch, DataProto(None, {"o": np.arange(4)})):
        with pytest.raises(AssertionError, match=f"4 does not divide by {size}"):
            data.make_iterator(size, 1)


def test_bad_arguments_show_before_the_first_batch(batch: DataProto) -> None:
    with pytest.raises(ValueError, match="mini_batch_size"):
        batch.make_iterator(0, 1)
    with pytest.raises(AssertionError, match="dataloader_kwargs"):
        batch.make_iterator(2, 1, dataloader_kwargs=[1])  # type: ignore[arg-type]


def test_arrays_alone_iterate() -> None:
    data = DataProto(None, {"o": np.arange(4)})
    assert [one.non_tensor_batch["o"].tolist() for one in data.make_iterator(2, 1)] == [
        [0, 1],
        [2, 3],
    ]


def test_no_epochs_and_no_rows_give_no_batches(batch: DataProto) -> None:
    assert list(batch.make_iterator(2, 0)) == []
    assert list(batch[:0].make_iterator(2, 1)) == []


def test_a_sampler_may_ask_for_one_row_at_a_time(batch: DataProto) -> None:
    from transferqueue.view.minibatches import _MiniBatches

    rows = _MiniBatches(batch)
    assert len(rows) == 4
    assert rows[2] == batch[[2]]


# ---- collating


def test_rows_collate(batch: DataProto) -> None:
    data = dense(batch)
    collated = collate_fn([data[2], data[0]])
    assert collated.batch["ids"].tolist() == data[[2, 0]].batch["ids"].tolist()
    assert collated.batch.batch_size == torch.Size([2])
    assert collated.non_tensor_batch["uid"].tolist() == ["u2", "u0"]
    assert {column.dtype for column in collated.non_tensor_batch.values()} == {np.dtype(object)}
    assert {column.shape for column in collated.non_tensor_batch.values()} == {(2,)}
    assert collated.non_tensor_batch["pair"][0].tolist() == [4, 5]
    assert collated.meta_info == {}


def test_rows_of_arrays_alone_collate() -> None:
    data = DataProto(None, {"o": np.arange(3)})
    collated = collate_fn(list(data))
    assert collated.batch is None
    assert collated.non_tensor_batch["o"].tolist() == [0, 1, 2]


def test_rows_that_collate_have_the_same_columns(batch: DataProto) -> None:
    data = dense(batch)
    for other in (data.select(["ids"]), data.select(None, ["uid"]), data.select([])):
        with pytest.raises(ColumnsDiffer):
            collate_fn([data[0], other[0]])
    with pytest.raises(NothingToConcat):
        collate_fn([])


# ---- words and sizes


def test_a_batch_describes_itself(batch: DataProto) -> None:
    batch.meta_info = {
        "one": 1,
        "list": [1, "x", 2.0, None],
        "none": [],
        "tuple": (1, [2]),
        "dict": {"k": [1]},
        "empty": {},
        "array": np.zeros((2, 3)),
        "same": [1, 2, 3],
    }
    data = dense(batch)
    data.batch["inner"] = TensorDict({}, [4])
    assert data.get_data_info() == "\n".join(
        [
            "batch",
            "  ids: (4, 6) (torch.int64) cpu",
            "  score: (4,) (torch.bfloat16) cpu",
            "  mask: (4,) (torch.bool) cpu",
            "  inner: (4,) (None) None",
            "non_tensor_batch",
            "  uid: ndarray(4,) (object)",
            "  extra: ndarray(4,) (object)",
            "  length: ndarray(4,) (int64)",
            "  name: ndarray(4,) (<U2)",
            "  pair: ndarray(4, 2) (int64)",
            "meta_info",
            "  one: int",
            "  list: list[int|str|float]",
            "  none: list[...]",
            "  tuple: tuple(int, list[int])",
            "  dict: dict[str: list[int]]",
            "  empty: dict",
            "  array: ndarray(2, 3) (float64)",
            "  same: list[int]",
        ]
    )
    assert repr(data).startswith("DataProto of 4 rows\nbatch\n  ids")
    assert DataProto().get_data_info() == "batch\nnon_tensor_batch\nmeta_info"


def size_bytes(data: DataProto, capsys: pytest.CaptureFixture[str]) -> tuple[float, float]:
    data.print_size()
    words = capsys.readouterr().out.split()
    assert words[:3] == ["Size", "of", "tensordict:"]
    return float(words[3]) * 2**30, float(words[-2]) * 2**30


def test_sizes_are_printed(batch: DataProto, capsys: pytest.CaptureFixture[str]) -> None:
    batch.print_size("here")
    out = capsys.readouterr().out
    assert out.startswith("here, Size of tensordict: ")
    assert out.endswith(" GB\n")
    assert size_bytes(DataProto(), capsys) == (0, 0)


def test_sizes_count_cells(
    batch: DataProto, jagged: Callable[..., torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    data = DataProto.from_dict({"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.bool)},
                               {"a": np.zeros((2, 4)), "s": np.array(["ab", "c"])})  # fmt: skip
    assert size_bytes(data, capsys) == (26, 64 + 16)
    assert size_bytes(data[:1], capsys) == (13, 32 + 8)
    ragged = DataProto(TensorDict({"j": jagged([1.0], [2.0, 3.0])}, [2]))
    assert size_bytes(ragged, capsys)[0] == 12
    assert size_bytes(ragged[1:], capsys)[0] == 8
    inner = DataProto(TensorDict({"t": TensorDict({"x": torch.zeros(2, 3)}, [2])}, [2]))
    assert 24 <= size_bytes(inner, capsys)[0] < 1000


def test_sizes_count_what_objects_refer_to(
    objects: Callable[..., np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    def arrays_bytes(*cells: Any) -> float:
        return size_bytes(DataProto(None, {"o": objects(*cells)}), capsys)[1]

    assert 8000 < arrays_bytes(torch.zeros(1000, dtype=torch.float64)) < 8300
    assert 8000 < arrays_bytes({"k": [(np.zeros(1000), 1)]}) < 9000
    assert 8000 < arrays_bytes({"k": {"x" * 8000}}) < 9000
    assert 8000 < arrays_bytes({"x" * 8000: 1}) < 9000
    assert 4000 < arrays_bytes(objects(b"x" * 4000)) < 4500
    shared = np.zeros(1000)
    assert 8000 < arrays_bytes(shared, shared, [shared]) < 9000
    two = DataProto(None, {"o": objects(shared), "p": objects(shared)})
    assert size_bytes(two, capsys)[1] < 9000
    loop: list[Any] = []
    loop.append(loop)
    assert arrays_bytes(loop) < 1000


def test_objects_of_a_tensordict_are_described() -> None:
    data = DataProto(TensorDict({"one": NonTensorData("x")}, [2]))
    assert "one: " in data.get_data_info()
