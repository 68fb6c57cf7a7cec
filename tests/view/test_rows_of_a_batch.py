"""Picking, slicing, cutting, repeating and padding rows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from transferqueue.errors import BadRowIndex, NotDivisible, RowCountMismatch
from transferqueue.view import (
    DataProto,
    DataProtoConfig,
    DataProtoItem,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def rows_of(data: DataProto) -> list[int]:
    """Which rows of ``full_batch`` these are, asserting that every column says the same."""
    rows = data.non_tensor_batch["length"] // 10
    assert data.batch["ids"][:, 0].tolist() == (rows * 6).tolist()
    assert data.batch["score"].tolist() == rows.tolist()
    assert data.batch["mask"].tolist() == (rows % 2 == 0).tolist()
    assert [len(row) for row in data.batch["response"].unbind()] == (rows + 1).tolist()
    assert [row.tolist() for row in data.batch["response"].unbind()] == [
        [float(row)] * (row + 1) for row in rows
    ]
    assert [row.shape[1] for row in data.batch["positions"].unbind()] == (rows % 3 + 1).tolist()
    assert data.non_tensor_batch["uid"].tolist() == [f"u{row}" for row in rows]
    assert data.non_tensor_batch["name"].tolist() == [f"n{row}" for row in rows]
    assert data.non_tensor_batch["extra"].tolist() == [{"acc": r, "turns": [r]} for r in rows]
    assert data.non_tensor_batch["pair"].tolist() == [[2 * row, 2 * row + 1] for row in rows]
    assert len(data) == len(rows)
    return [int(row) for row in rows]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([2, 0], [2, 0]),
        ([1, 1, -1], [1, 1, 3]),
        ([-4], [0]),
        ([], []),
        ([True, False, True, False], [0, 2]),
        ([False] * 4, []),
        (np.array([3, 1]), [3, 1]),
        (np.array([3, 1], np.int8), [3, 1]),
        (np.array([3, 1], np.uint16), [3, 1]),
        (np.array([0, 1, 1, 0], bool), [1, 2]),
        (torch.tensor([3, 1]), [3, 1]),
        (torch.tensor([-1], dtype=torch.int32), [3]),
        (torch.tensor([False, True, True, True]), [1, 2, 3]),
        ([torch.tensor(2), np.int64(1)], [2, 1]),
        (np.zeros(0, np.int64), []),
    ],
)
def test_rows_are_picked_by_index_or_mask(batch: DataProto, rows: Any, expected: list[int]) -> None:
    assert rows_of(batch[rows]) == expected
    assert rows_of(batch.select_idxs(rows)) == expected
    assert batch.reorder(rows) is None
    assert rows_of(batch) == expected


@pytest.mark.parametrize(
    "rows",
    [
        [4],
        [-5],
        [0, 9],
        [0.0],
        [[0, 1]],
        [[0], [1, 2]],
        [True, False],
        [True] * 5,
        ["a"],
        [None],
        np.array([0.0]),
        np.zeros(0),
        np.array(1),
        np.array([0, 1], object),
        np.array([0, 1], np.uint8),
        np.array([[True] * 4]),
        torch.tensor(1),
        torch.tensor([1.0]),
        torch.tensor([[0, 1]]),
        torch.tensor([1, 0, 1, 0], dtype=torch.uint8),
        torch.tensor([True]),
    ],
)
def test_what_is_no_row_index_is_an_index_error(batch: DataProto, rows: Any) -> None:
    for pick in (batch.__getitem__, batch.select_idxs, batch.reorder):
        with pytest.raises(IndexError):
            pick(rows)
    assert rows_of(batch) == [0, 1, 2, 3]


def test_an_index_error_names_the_row_and_the_size(batch: DataProto) -> None:
    with pytest.raises(BadRowIndex, match="row 7 is out of range for 4 rows"):
        batch.select_idxs([1, 7])
    with pytest.raises(BadRowIndex, match="row -7 is out of range for 4 rows"):
        batch.select_idxs([1, -7])
    with pytest.raises(BadRowIndex, match="row 4 is out"):
        batch.select_idxs([0, 4])
    with pytest.raises(BadRowIndex, match="row -5 is out"):
        batch.select_idxs([3, -5])
    with pytest.raises(BadRowIndex, match=r"mask of 2 rows .* 4 rows"):
        batch.select_idxs([True, True])


@pytest.mark.parametrize("rows", ["a", (0, 1), None, 1.0, ..., True, False, np.bool_(True), {0}])
def test_what_names_no_rows_is_a_type_error(batch: DataProto, rows: Any) -> None:
    with pytest.raises(TypeError):
        batch[rows]


@pytest.mark.parametrize("rows", [(0, 1), None, 3, "a", {0}])
def test_select_idxs_and_reorder_take_three_containers(batch: DataProto, rows: Any) -> None:
    for pick in (batch.select_idxs, batch.reorder):
        with pytest.raises(TypeError):
            pick(rows)


def test_a_read_only_index_is_not_written_to(batch: DataProto) -> None:
    index = np.array([-1, 0])
    index.flags.writeable = False
    assert rows_of(batch[index]) == [3, 0]
    assert index.tolist() == [-1, 0]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_columns_are_picked_like_any_other(dtype: torch.dtype) -> None:
    jagged = torch.nested.nested_tensor(
        [torch.arange(n).to(dtype) for n in (2, 0, 3)], layout=torch.jagged
    )
    columns = {"flat": torch.arange(3).to(dtype), "ragged": jagged}
    batch = DataProto(TensorDict(columns, batch_size=[3]))
    for picked in (batch[[2, 0]], batch[[True, False, True]].select_idxs([1, 0])):
        assert picked.batch["flat"].dtype == dtype
        assert picked.batch["flat"].tolist() == [2, 0]
        assert [row.tolist() for row in picked.batch["ragged"].unbind()] == [[0, 1, 2], [0, 1]]
    batch.padding(1)
    assert batch.batch["flat"].tolist() == [0, 1, 2, 2]


def test_the_callers_index_is_not_written_to(batch: DataProto) -> None:
    index = np.array([-1, -2])
    batch[index], batch[torch.from_numpy(index)]
    assert index.tolist() == [-1, -2]


def test_picked_rows_are_copies(batch: DataProto) -> None:
    picked = batch[[0, 1, 2, 3]]
    picked.batch["ids"].zero_()
    picked.batch["response"].values().zero_()
    picked.non_tensor_batch["length"][:] = 0
    assert rows_of(batch) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("start", "end", "step", "expected"),
    [
        (None, None, None, [0, 1, 2, 3]),
        (1, 3, None, [1, 2]),
        (-2, None, None, [2, 3]),
        (None, -1, None, [0, 1, 2]),
        (0, 99, None, [0, 1, 2, 3]),
        (-99, 2, None, [0, 1]),
        (3, 1, None, []),
        (4, None, None, []),
        (None, None, 2, [0, 2]),
        (1, None, 2, [1, 3]),
        (0, 4, 9, [0]),
        (np.int64(1), np.int64(2), None, [1]),
    ],
)
def test_slices_clamp(batch: DataProto, start: Any, end: Any, step: Any, expected: Any) -> None:
    assert rows_of(batch.slice(start, end, step)) == expected
    assert rows_of(batch[start:end:step]) == expected


@pytest.mark.parametrize("step", [0, -1, -2])
def test_a_step_is_positive(batch: DataProto, step: int) -> None:
    for data in (batch, batch.select([])):
        with pytest.raises(ValueError, match="step"):
            data[::step]
    with pytest.raises(TypeError):
        batch.slice(0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", [1, 2])
def test_a_slice_is_a_view(batch: DataProto, step: int) -> None:
    view = batch[1::step]
    view.batch["ids"].fill_(-1)
    view.non_tensor_batch["length"][:] = -1
    assert batch.batch["ids"][1].tolist() == [-1] * 6
    assert batch.non_tensor_batch["length"][1] == -1


def test_a_slice_of_consecutive_jagged_rows_is_a_view(batch: DataProto) -> None:
    batch[1:3].batch["response"].values().fill_(-1)
    rows = [row.tolist() for row in batch.batch["response"].unbind()]
    assert rows == [[0.0], [-1.0] * 2, [-1.0] * 3, [3.0] * 4]


@pytest.mark.parametrize("row", [0, 3, -1, -4, np.int64(2), np.int32(-2)])
def test_an_int_gives_one_row(batch: DataProto, row: Any) -> None:
    item = batch[row]
    number = int(row) % 4
    assert isinstance(item, DataProtoItem)
    assert item.batch.batch_size == torch.Size([])
    assert item.batch["ids"].tolist() == [number * 6 + i for i in range(6)]
    assert item.batch["score"].shape == ()
    assert item.batch["response"].tolist() == [float(number)] * (number + 1)
    assert item.batch["positions"].shape == (4, number % 3 + 1)
    assert list(item.batch.keys()) == list(batch.batch.keys())
    assert item.non_tensor_batch["uid"] == f"u{number}"
    assert item.non_tensor_batch["pair"].tolist() == [2 * number, 2 * number + 1]
    assert item.meta_info == batch.meta_info
    item.meta_info["temperature"] = 0
    assert batch.meta_info["temperature"] == 0.7


def test_a_row_is_a_view(batch: DataProto) -> None:
    item = batch[1]
    item.batch["ids"].zero_()
    item.batch["response"].zero_()
    assert batch.batch["ids"][1].sum() == 0
    assert batch.batch["response"].unbind()[1].sum() == 0


@pytest.mark.parametrize("row", [4, -5])
def test_there_is_no_row_past_either_end(batch: DataProto, row: int) -> None:
    for data in (batch, batch.select([], []), DataProto(), batch.select([])):
        with pytest.raises(IndexError):
            data[row]


def test_iteration_ends(batch: DataProto) -> None:
    assert [item.non_tensor_batch["uid"] for item in batch] == ["u0", "u1", "u2", "u3"]
    assert len(list(batch.select([], []))) == 4
    assert list(DataProto()) == []


def test_a_row_of_arrays_alone_has_no_tensors(batch: DataProto) -> None:
    item = DataProto(None, {"o": np.arange(2)})[1]
    assert item.batch is None
    assert item.non_tensor_batch == {"o": 1}


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_chunks_are_equal_runs(batch: DataProto, parts: int) -> None:
    chunks = batch.chunk(parts)
    size = 4 // parts
    assert [rows_of(chunk) for chunk in chunks] == [
        list(range(part * size, (part + 1) * size)) for part in range(parts)
    ]


def test_chunks_are_views_with_meta_info_of_their_own(batch: DataProto) -> None:
    first, second = batch.chunk(2)
    first.batch["ids"].fill_(-1)
    first.non_tensor_batch["length"][:] = -1
    assert batch.batch["ids"][0, 0] == -1
    assert batch.non_tensor_batch["length"][1] == -1
    first.meta_info["temperature"] = 0
    assert (second.meta_info, batch.meta_info)[0] == (second.meta_info, batch.meta_info)[1]
    assert second.meta_info["temperature"] == 0.7


@pytest.mark.parametrize("parts", [3, 5, 8])
def test_chunks_that_do_not_divide_are_an_assertion(batch: DataProto, parts: int) -> None:
    for data in (batch, DataProto(None, {"o": np.arange(4)})):
        with pytest.raises(AssertionError, match=f"4 does not divide by {parts}"):
            data.chunk(parts)


@pytest.mark.parametrize(
    ("rows", "parts", "with_tensors", "without"),
    [
        (10, 4, [3, 3, 3, 1], [3, 3, 2, 2]),
        (124, 15, [9] * 4 + [8] * 11, [9] * 4 + [8] * 11),
        (5, 4, [2, 1, 1, 1], [2, 1, 1, 1]),
        (2, 4, [1, 1, 0, 0], [1, 1, 0, 0]),
        (7, 2, [4, 3], [4, 3]),
        (6, 4, [2, 2, 1, 1], [2, 2, 1, 1]),
        (8, 4, [2] * 4, [2] * 4),
    ],
)
def test_uneven_chunks_when_padding_is_enabled(
    rows: int, parts: int, with_tensors: list[int], without: list[int]
) -> None:
    meta = {DataProtoConfig.auto_padding_key: True}
    arrays = {"o": np.arange(rows)}
    bare = DataProto(None, arrays, meta)
    full = DataProto(TensorDict({"t": torch.arange(rows)}, [rows]), arrays, meta)
    assert [len(chunk) for chunk in bare.chunk(parts)] == without
    chunks = full.chunk(parts)
    assert [len(chunk) for chunk in chunks] == with_tensors
    for column in ("t", "o"):
        cells = [
            cell
            for chunk in chunks
            for cell in (chunk.batch["t"] if column == "t" else chunk.non_tensor_batch["o"])
        ]
        assert cells == list(range(rows))


@pytest.mark.usefixtures("auto_padding")
def test_padding_is_enabled_for_the_process() -> None:
    assert DataProto().is_padding_enabled()
    assert len(DataProto(None, {"o": np.arange(3)}).chunk(2)) == 2


ENABLING = [("1", True), ("true", True), ("TRUE", True), ("0", False), ("yes", False), ("", False)]


@pytest.mark.parametrize(("value", "enabled"), ENABLING)
def test_padding_is_enabled_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, value: str, *, enabled: bool
) -> None:
    monkeypatch.setenv("VERL_AUTO_PADDING", value)
    assert DataProto().is_padding_enabled() == DataProtoConfig.auto_padding == enabled


def test_one_batch_does_not_enable_padding_for_others() -> None:
    assert DataProto(meta_info={DataProtoConfig.auto_padding_key: True}).is_padding_enabled()
    assert not DataProto().is_padding_enabled()
    assert not DataProtoConfig.auto_padding


@pytest.mark.parametrize("value", [1, None, "true"])
def test_auto_padding_is_a_bool(value: Any) -> None:
    with pytest.raises(AssertionError, match="bool"):
        DataProtoConfig.auto_padding = value


@pytest.mark.parametrize("parts", [0, -1])
def test_there_is_at_least_one_chunk(batch: DataProto, parts: int) -> None:
    with pytest.raises(ValueError, match="chunks"):
        batch.chunk(parts)
    with pytest.raises(TypeError):
        batch.chunk(2.0)  # type: ignore[arg-type]


def test_no_rows_chunk_to_no_rows(batch: DataProto) -> None:
    assert [rows_of(chunk) for chunk in batch[:0].chunk(3)] == [[], [], []]


def test_splits_are_runs_of_a_size(batch: DataProto) -> None:
    assert [rows_of(part) for part in batch.split(3)] == [[0, 1, 2], [3]]
    assert [rows_of(part) for part in batch.split(2)] == [[0, 1], [2, 3]]
    assert [rows_of(part) for part in batch.split(9)] == [[0, 1, 2, 3]]
    assert batch[:0].split(2) == []
    first, second = batch.split(2)
    first.meta_info.clear()
    assert second.meta_info == batch.meta_info != {}


@pytest.mark.parametrize("size", [0, -1])
def test_a_split_size_is_positive(batch: DataProto, size: int) -> None:
    with pytest.raises(ValueError, match="split_size"):
        batch.split(size)
    with pytest.raises(TypeError):
        batch.split(1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_repeats_are_interleaved_or_not(batch: DataProto, times: int) -> None:
    assert rows_of(batch.repeat(times)) == [row for row in range(4) for _ in range(times)]
    assert rows_of(batch.repeat(times, interleave=False)) == list(range(4)) * times


def test_repeat_is_twice_interleaved_by_default(batch: DataProto) -> None:
    assert rows_of(batch.repeat()) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("interleave", [True, False])
def test_a_repeat_keeps_device_and_meta_info_and_copies(
    batch: DataProto, times: int, *, interleave: bool
) -> None:
    batch.to("cpu")
    repeated = batch.repeat(times, interleave)
    assert repeated.batch.device == torch.device("cpu")
    assert repeated.meta_info == batch.meta_info
    repeated.meta_info.clear()
    repeated.batch["ids"].fill_(-1)
    repeated.non_tensor_batch["length"][:] = -1
    assert rows_of(batch) == [0, 1, 2, 3]
    assert batch.meta_info


@pytest.mark.parametrize("interleave", [True, False])
def test_a_repeat_of_metrics_leaves_them_alone(*, interleave: bool) -> None:
    data = DataProto(None, {"o": np.arange(2)}, {"metrics": {"loss": 1}})
    assert data.repeat(2, interleave).meta_info == {"metrics": {"loss": 1}}


@pytest.mark.parametrize("times", [-1, -2])
def test_a_repeat_is_not_negative(batch: DataProto, times: int) -> None:
    for interleave in (True, False):
        with pytest.raises(ValueError, match="repeat_times"):
            batch.repeat(times, interleave)
        with pytest.raises(TypeError):
            batch.repeat(1.5, interleave)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor])
def test_rows_repeat_by_their_own_counts(batch: DataProto, form: Callable[..., Any]) -> None:
    assert rows_of(batch.sample_level_repeat(form([2, 0, 1, 3]))) == [0, 0, 2, 3, 3, 3]
    assert rows_of(batch.sample_level_repeat(form([0, 0, 0, 0]))) == []


@pytest.mark.parametrize(
    "counts", [3, "abcd", None, {1, 2, 3, 4}, [1], [1] * 5, [], [[1, 1, 1, 1]],
               np.ones((4, 1), int), torch.ones(2, 2, dtype=torch.int64), np.int64(2)],
)  # fmt: skip
def test_counts_are_one_a_row(batch: DataProto, counts: Any) -> None:
    with pytest.raises(AssertionError, match="repeat_times"):
        batch.sample_level_repeat(counts)
    if isinstance(counts, list) and counts == [1]:
        with pytest.raises(RowCountMismatch, match="expected 4 rows, got 1"):
            batch.sample_level_repeat(counts)


@pytest.mark.parametrize("counts", [[1.0] * 4, [1, 1, 1, -1], [True] * 4])
def test_counts_are_ints_from_zero(batch: DataProto, counts: Any) -> None:
    with pytest.raises(ValueError, match="repeat_times"):
        batch.sample_level_repeat(counts)


def test_no_rows_repeat_by_no_counts(batch: DataProto) -> None:
    assert rows_of(batch[:0].sample_level_repeat([])) == []
    assert rows_of(batch[:0].repeat(3)) == rows_of(batch[:0].repeat(3, interleave=False)) == []


@pytest.mark.parametrize(("candidate", "row"), [("first", 0), ("last", 3), ("", 3), ("other", 3)])
def test_padding_repeats_the_first_or_the_last_row(
    batch: DataProto, candidate: str, row: int
) -> None:
    assert batch.padding(2, candidate) is None
    assert rows_of(batch) == [0, 1, 2, 3, row, row]
    assert batch.meta_info == {"temperature": 0.7, "keys": ["acc"]}


def test_padding_by_none_changes_nothing(batch: DataProto) -> None:
    before = batch.batch
    batch.padding(0)
    assert batch.batch is before
    DataProto().padding(0)


def test_padding_needs_a_row_and_a_count(batch: DataProto) -> None:
    with pytest.raises(IndexError):
        batch[:0].padding(1)
    with pytest.raises(IndexError):
        batch[:0].padding(1, "first")
    with pytest.raises(ValueError, match="padding_size"):
        batch.padding(-1)
    assert rows_of(batch) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("rows", "divisor", "expected"),
    [
        (3, 2, [0, 1, 2, 0]),
        (4, 3, [0, 1, 2, 3, 0, 1]),
        (1, 4, [0, 0, 0, 0]),
        (2, 7, [0, 1, 0, 1, 0, 1, 0]),
        (3, 8, [0, 1, 2, 0, 1, 2, 0, 1]),
        (2, 4, [0, 1, 0, 1]),
    ],
)
def test_padding_to_a_divisor_cycles(
    make: Callable[[int], DataProto], rows: int, divisor: int, expected: list[int]
) -> None:
    batch = make(rows)
    batch.meta_info["metrics"] = {"loss": 1}
    padded, pad_size = pad_dataproto_to_divisor(batch, divisor)
    assert rows_of(padded) == expected
    assert pad_size == len(expected) - rows
    assert padded.meta_info == batch.meta_info
    assert padded.meta_info is not batch.meta_info
    assert len(batch) == rows
    assert rows_of(unpad_dataproto(padded, pad_size)) == list(range(rows))


def test_what_divides_is_not_touched(batch: DataProto) -> None:
    padded, pad_size = pad_dataproto_to_divisor(batch, 2)
    assert padded is batch
    assert pad_size == 0
    assert unpad_dataproto(batch, 0) is batch


def test_no_rows_cannot_be_padded(batch: DataProto, caplog: pytest.LogCaptureFixture) -> None:
    empty = batch[:0]
    with caplog.at_level(logging.WARNING, "transferqueue"):
        padded, pad_size = pad_dataproto_to_divisor(empty, 4)
    assert padded is empty
    assert pad_size == 0
    assert "without rows" in caplog.text
    caplog.clear()
    pad_dataproto_to_divisor(batch, 4)
    assert not caplog.records


def test_padding_functions_check_their_arguments(batch: DataProto) -> None:
    with pytest.raises(AssertionError, match="int"):
        pad_dataproto_to_divisor(3, 2)  # type: ignore[type-var]
    for divisor in (0, -2):
        with pytest.raises(ValueError, match="size_divisor"):
            pad_dataproto_to_divisor(batch, divisor)
    with pytest.raises(ValueError, match="pad_size"):
        unpad_dataproto(batch, -1)
    assert rows_of(unpad_dataproto(batch, 9)) == []


def test_a_forgotten_divisor_says_what_to_do(batch: DataProto) -> None:
    with pytest.raises(NotDivisible, match="pad_dataproto_to_divisor"):
        batch.chunk(3)


def test_every_row_operation_keeps_the_type_and_the_operand(make: Callable[..., Any]) -> None:
    class Mine(DataProto):
        pass

    batch = make()
    mine = Mine(batch.batch, batch.non_tensor_batch, batch.meta_info)
    results = [
        mine[:2],
        mine[[0]],
        mine.repeat(2),
        mine.repeat(2, interleave=False),
        mine.sample_level_repeat([1] * 4),
        *mine.chunk(2),
        *mine.split(3),
        pad_dataproto_to_divisor(mine, 3)[0],
        mine.select(["ids"]),
        mine.unfold_column_chunks(2, ["ids"]),
        DataProto.concat([mine, mine]),
        *mine.make_iterator(2, 1),
        mine.union(DataProto()),
    ]
    assert {type(result) for result in results} == {Mine}
    assert rows_of(mine) == [0, 1, 2, 3]
    assert mine.meta_info == {"temperature": 0.7, "keys": ["acc"]}


def test_rows_whose_keys_differ_stay_as_they_were(objects: Callable[..., np.ndarray]) -> None:
    images = [{}, {"pixel_values": torch.ones(2, 3)}, {"pixel_values": torch.zeros(1), "grid": 1}]
    extras = [{"acc": 1.0}, {"acc": 0.0, "pred": "x"}, None]
    data = DataProto.from_dict(
        {"ids": torch.arange(3)},
        {"multi_modal_inputs": objects(*images), "extra": objects(*extras)},
    )
    for result, rows in (
        (data[1:], [1, 2]),
        (data[[2, 0]], [2, 0]),
        (data.repeat(2, interleave=False), [0, 1, 2, 0, 1, 2]),
        (DataProto.concat(data.chunk(3)), [0, 1, 2]),
        (next(iter(data.make_iterator(3, 1))), [0, 1, 2]),
        (pad_dataproto_to_divisor(data, 2)[0], [0, 1, 2, 0]),
        (DataProto.from_tensordict(data.to_tensordict()), [0, 1, 2]),
    ):
        assert all(
            cell is images[row]
            for cell, row in zip(result.non_tensor_batch["multi_modal_inputs"], rows, strict=True)
        )
        assert result.non_tensor_batch["extra"].tolist() == [extras[row] for row in rows]
