"""Selecting, popping, renaming and joining columns."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from transferqueue.errors import (
    BatchInconsistent,
    ColumnConflict,
    FieldSpecMismatch,
    MetaConflict,
    NameTaken,
    RowCountMismatch,
    UnknownColumn,
)
from transferqueue.view import DataProto, union_numpy_dict, union_tensor_dict

if TYPE_CHECKING:
    from collections.abc import Callable

NAN = float("nan")


def names(data: DataProto) -> tuple[list[str], list[str], list[str]]:
    tensors = [] if data.batch is None else list(data.batch.keys())
    return tensors, list(data.non_tensor_batch), list(data.meta_info)


def tensors_of(**columns: Any) -> DataProto:
    return DataProto.from_dict({name: torch.as_tensor(c) for name, c in columns.items()})


def arrays_of(**columns: Any) -> DataProto:
    return DataProto.from_dict(non_tensors=columns)


# ---- select


def test_none_selects_all_and_a_list_what_it_names(batch: DataProto) -> None:
    assert names(batch.select()) == names(batch)
    assert names(batch.select(["score", "ids"], ["uid"], ["keys"])) == (
        ["score", "ids"],
        ["uid"],
        ["keys"],
    )
    assert names(batch.select("ids", "uid", "keys")) == (["ids"], ["uid"], ["keys"])
    assert names(batch.select(("ids",), {"uid"}, {"keys": 0})) == (["ids"], ["uid"], ["keys"])
    assert names(batch.select(["ids", "ids"]))[0] == ["ids"]
    assert names(batch.select(iter(["ids", "score"])))[0] == ["ids", "score"]


def test_an_empty_selection_keeps_its_length(batch: DataProto) -> None:
    empty = batch.select([], [], [])
    assert names(empty) == ([], [], [])
    assert len(empty) == 4
    assert len(batch.select([], ["uid"])) == 4
    assert len(arrays_of(o=[1, 2]).select([], ["o"])) == 2


MISSING_NAMES = [(["nowhere"],), (["ids", "no"], []), ([], ["id"]), ([], [], ["no"])]


@pytest.mark.parametrize("keys", MISSING_NAMES)
def test_a_missing_name_is_a_key_error(batch: DataProto, keys: Any) -> None:
    with pytest.raises(KeyError):
        batch.select(*keys)
    with pytest.raises(KeyError):
        arrays_of(o=[1]).select(["ids"])


def test_a_missing_name_says_where_and_what_is_near(batch: DataProto) -> None:
    with pytest.raises(UnknownColumn, match="'scores' in batch; did you mean 'score'"):
        batch.select(["scores"])
    with pytest.raises(UnknownColumn, match="'uidd' in non_tensor_batch; did you mean 'uid'"):
        batch.select([], ["uidd"])
    with pytest.raises(UnknownColumn, match="'key' in meta_info; did you mean 'keys'"):
        batch.select([], [], ["key"])


def test_a_selection_shares_columns_not_containers(batch: DataProto) -> None:
    for selected in (batch.select(), batch.select(["ids"], ["length"])):
        selected.batch["ids"][0] = -1
        selected.non_tensor_batch["length"][0] = -1
        assert batch.batch["ids"][0].tolist() == [-1] * 6
        assert batch.non_tensor_batch["length"][0] == -1
        selected.batch["new"] = torch.zeros(4)
        selected.non_tensor_batch["new"] = np.zeros(4)
        selected.meta_info["new"] = 0
        assert "new" not in {*names(batch)[0], *names(batch)[1], *names(batch)[2]}


def test_a_deep_copy_shares_nothing(batch: DataProto) -> None:
    selected = batch.select(deepcopy=True)
    assert selected == batch
    selected.batch["ids"].zero_()
    selected.batch["response"].values().zero_()
    selected.non_tensor_batch["extra"][0]["turns"].append(1)
    selected.meta_info["keys"].append("x")
    assert batch.batch["ids"].sum() > 0
    assert batch.batch["response"].values().sum() > 0
    assert batch.non_tensor_batch["extra"][0]["turns"] == [0]
    assert batch.meta_info["keys"] == ["acc"]
    assert names(batch.select(["ids"], [], [], deepcopy=True)) == (["ids"], [], [])


# ---- pop


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e5m2])
def test_a_deep_copy_on_a_device_takes_any_dtype_bit_for_bit(dtype: torch.dtype) -> None:
    tensors = {"x": torch.ones(2).to(dtype), "zero": torch.tensor([-0.0, 0.0])}
    batch = DataProto(TensorDict(tensors, batch_size=[2], device="cpu"))
    for copied in (batch.select(deepcopy=True), copy.deepcopy(batch)):
        assert copied == batch
        assert copied.batch.device == batch.batch.device
        assert copied.batch["zero"].signbit().tolist() == [True, False]


def test_pop_moves_columns(batch: DataProto) -> None:
    ids = batch.batch["ids"]
    popped = batch.pop(["ids"], ["uid", "extra"], ["keys"])
    assert names(popped) == (["ids"], ["uid", "extra"], ["keys"])
    assert popped.batch["ids"] is ids
    assert popped.meta_info == {"keys": ["acc"]}
    assert names(batch) == (
        ["score", "mask", "response", "positions"],
        ["length", "name", "pair"],
        ["temperature"],
    )


def test_pop_changes_the_containers_in_place(batch: DataProto) -> None:
    td, arrays, meta = batch.batch, batch.non_tensor_batch, batch.meta_info
    batch.pop(["ids"], ["uid"], ["keys"])
    assert batch.batch is td
    assert batch.non_tensor_batch is arrays
    assert batch.meta_info is meta


def test_pop_takes_a_name_as_it_is(batch: DataProto) -> None:
    assert names(batch.pop("ids", "uid", "keys")) == (["ids"], ["uid"], ["keys"])


def test_pop_moves_nothing_by_default(batch: DataProto) -> None:
    before = names(batch)
    for popped in (batch.pop(), batch.pop([], [], [])):
        assert names(popped) == ([], [], [])
        assert popped.batch is None
        assert len(popped) == 0
    assert names(batch) == before


def test_popping_every_column_keeps_the_length(batch: DataProto) -> None:
    batch.pop(list(batch.batch.keys()))
    assert len(batch) == 4
    assert names(batch)[0] == []
    assert len(batch.pop([], ["uid"])) == 4


@pytest.mark.parametrize(
    "keys", [(["ids", "nowhere"],), (["ids"], ["uid", "no"]), (["ids"], ["uid"], ["keys", "no"]),
             (["ids", "ids"],), ([], ["uid", "uid"]), (["uid"],)],
)  # fmt: skip
def test_pop_is_all_or_nothing(batch: DataProto, keys: Any) -> None:
    before = names(batch)
    for error in (AssertionError, KeyError):
        with pytest.raises(error):
            batch.pop(*keys)
    assert names(batch) == before


def test_a_batch_that_is_locked_is_not_in_the_way(batch: DataProto) -> None:
    batch.batch.lock_()
    batch.pop(["ids"])
    assert "ids" not in names(batch)[0]
    batch.batch.lock_()
    batch.rename("score", "points")
    assert "points" in names(batch)[0]
    batch.batch.lock_()
    batch.union(tensors_of(new=[1, 2, 3, 4]))
    assert "new" in names(batch)[0]


# ---- rename


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("ids", "tokens", {"ids": "tokens"}),
        (["ids"], ["tokens"], {"ids": "tokens"}),
        (["ids", "score"], ["a", "b"], {"ids": "a", "score": "b"}),
        (["ids", "score"], ["score", "ids"], {"ids": "score", "score": "ids"}),
        (["ids", "score", "mask"], ["score", "mask", "ids"],
         {"ids": "score", "score": "mask", "mask": "ids"}),
        ("uid", "prompt_id", {"uid": "prompt_id"}),
        (["uid", "name"], ["name", "uid"], {"uid": "name", "name": "uid"}),
        (["uid", "ids"], ["u", "i"], {"uid": "u", "ids": "i"}),
        ("ids", "ids", {}),
        (["ids", "score"], ["ids", "s"], {"score": "s"}),
        ([], [], {}),
    ],
)  # fmt: skip
def test_columns_are_renamed_at_once(
    batch: DataProto, old: Any, new: Any, expected: dict[str, str]
) -> None:
    before = dict(batch._columns())
    td = batch.batch
    assert batch.rename(old, new) is batch
    assert batch.batch is td
    after = dict(batch._columns())
    assert {expected.get(name, name) for name in before} == set(after)
    for name, column in before.items():
        assert after[expected.get(name, name)] is column


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("nowhere", "x", KeyError),
        (["ids", "nowhere"], ["x", "y"], KeyError),
        ("ids", "score", ValueError),
        ("ids", "uid", ValueError),
        ("uid", "ids", ValueError),
        (["ids", "score"], ["x", "x"], ValueError),
        (["ids", "ids"], ["x", "y"], ValueError),
        (["ids"], ["x", "y"], ValueError),
        (["ids", "score"], ["x"], ValueError),
        (("ids",), "x", TypeError),
        ("ids", ("x",), TypeError),
        (None, "x", TypeError),
        ("ids", None, TypeError),
    ],
)
def test_a_rename_that_cannot_be_changes_nothing(
    batch: DataProto, old: Any, new: Any, error: type[Exception]
) -> None:
    before = names(batch)
    with pytest.raises(error):
        batch.rename(old, new)
    assert names(batch) == before


def test_a_taken_name_is_named(batch: DataProto) -> None:
    with pytest.raises(NameTaken, match="'ids' to 'score'"):
        batch.rename("ids", "score")
    with pytest.raises(KeyError, match="did you mean 'score'"):
        batch.rename("scores", "x")


def test_arrays_alone_are_renamed() -> None:
    data = arrays_of(o=[1, 2]).rename("o", "p")
    assert names(data) == ([], ["p"], [])


# ---- union


def test_union_adds_columns_in_place(batch: DataProto, objects: Callable[..., np.ndarray]) -> None:
    td, arrays, meta = batch.batch, batch.non_tensor_batch, batch.meta_info
    other = DataProto.from_dict(
        {"values": torch.ones(4), "ids": batch.batch["ids"].clone()},
        {"reward": objects(1, 2, 3, 4), "uid": batch.non_tensor_batch["uid"].copy()},
        {"step": 3, "keys": ["acc"]},
    )
    assert batch.union(other) is batch
    assert (batch.batch, batch.non_tensor_batch, batch.meta_info) == (td, arrays, meta) or (
        batch.batch is td and batch.non_tensor_batch is arrays and batch.meta_info is meta
    )
    assert names(batch)[0][-1] == "values"
    assert batch.batch["values"] is other.batch["values"]
    assert batch.non_tensor_batch["reward"] is other.non_tensor_batch["reward"]
    assert batch.meta_info == {"temperature": 0.7, "keys": ["acc"], "step": 3}
    assert names(other) == (["values", "ids"], ["reward", "uid"], ["step", "keys"])


def test_union_with_itself_and_with_nothing(batch: DataProto) -> None:
    before = copy.deepcopy(batch)
    assert batch.union(batch) == before
    assert batch.union(DataProto()) == before
    assert batch.union(DataProto(meta_info={"step": 1})).meta_info["step"] == 1
    assert DataProto().union(before) == before


def test_either_side_may_lack_tensors() -> None:
    assert names(tensors_of(t=[1, 2]).union(arrays_of(o=[1, 2]))) == (["t"], ["o"], [])
    assert names(arrays_of(o=[1, 2]).union(tensors_of(t=[1, 2]))) == (["t"], ["o"], [])
    both = arrays_of(o=[1, 2]).union(arrays_of(p=[1, 2]))
    assert both.batch is None
    assert names(both) == ([], ["o", "p"], [])


def test_a_batch_taken_over_has_a_container_of_its_own() -> None:
    mine, theirs = arrays_of(o=[1, 2]), tensors_of(t=[1, 2])
    mine.union(theirs)
    mine.batch["new"] = torch.zeros(2)
    assert names(theirs)[0] == ["t"]


@pytest.mark.parametrize(
    "make_one", [lambda n: tensors_of(t=[1] * n), lambda n: arrays_of(o=[1] * n)]
)
@pytest.mark.parametrize(
    "make_other", [lambda n: tensors_of(u=[1] * n), lambda n: arrays_of(p=[1] * n)]
)
def test_union_across_repeat_names_both_sizes_and_the_repeat(
    make_one: Any, make_other: Any
) -> None:
    with pytest.raises(AssertionError, match=r"expected 2 rows, got 4; repeat\(2\) the first"):
        make_one(2).union(make_other(4))
    with pytest.raises(AssertionError, match=r"expected 6 rows, got 2; repeat\(3\) the second"):
        make_one(6).union(make_other(2))
    with pytest.raises(RowCountMismatch, match=r"expected 2 rows, got 3\.$"):
        make_one(2).union(make_other(3))
    with pytest.raises(RowCountMismatch, match=r"expected 2 rows, got 0\.$"):
        make_one(2).union(make_other(0))


EQUAL_CELLS: list[Callable[[], Any]] = [
    lambda: torch.tensor([[1.0, NAN]]),
    lambda: torch.tensor([1.0, NAN], dtype=torch.bfloat16)[None],
    lambda: torch.tensor([1.0, NAN], dtype=torch.float16)[None],
    lambda: torch.tensor([1.0, NAN]).to(torch.float8_e4m3fn)[None],
    lambda: torch.tensor([complex(1, NAN)]),
    lambda: torch.tensor([0.0]),
    lambda: torch.zeros(1, 0),
    lambda: np.array([1.0, NAN])[None],
    lambda: np.array(["x"]),
    lambda: np.array(["NaT"], "M8[s]"),
    lambda: np.array([True]),
    lambda: np.zeros((1, 0)),
]
EQUAL_OBJECTS: list[Callable[[], Any]] = [
    lambda: NAN,
    lambda: None,
    lambda: {"x": torch.tensor([1.0, NAN]), "y": [np.array([NAN])]},
    lambda: [torch.ones(2), (torch.zeros(1), {"k": NAN})],
    lambda: np.array([1, NAN]),
    lambda: TensorDict({"x": torch.tensor([NAN])}, [1]),
    lambda: {1: "int key", (2,): "tuple key"},
    lambda: torch.nested.as_nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
]


def cell_batch(cell: Any) -> DataProto:
    if isinstance(cell, torch.Tensor):
        return DataProto.from_dict({"x": cell})
    return DataProto.from_dict(non_tensors={"x": cell})


@pytest.mark.parametrize("make_cell", EQUAL_CELLS)
def test_equal_content_is_equal(make_cell: Callable[[], Any]) -> None:
    cell_batch(make_cell()).union(cell_batch(make_cell()))


@pytest.mark.parametrize("make_cell", EQUAL_OBJECTS)
def test_equal_content_is_equal_inside_objects_and_meta_info(make_cell: Any) -> None:
    arrays_of(x=[make_cell()]).union(arrays_of(x=[make_cell()]))
    DataProto(meta_info={"x": make_cell()}).union(DataProto(meta_info={"x": make_cell()}))


DIFFERENT: list[tuple[Any, Any]] = [
    (torch.tensor([1.0]), torch.tensor([2.0])),
    (torch.tensor([1.0]), torch.tensor([NAN])),
    (torch.tensor([1.0]), torch.tensor([[1.0]])),
    (torch.tensor([1.0]), torch.tensor([1])),
    (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
    (torch.tensor([1]), torch.tensor([True])),
    (np.array([1.0]), np.array([1])),
    (np.array([1.0]), np.array([NAN])),
    (np.array(["a"]), np.array(["ab"])),
    (np.array([1]), np.array([[1]])),
    (np.array([1]), [1]),
    ([1], [1.0]),
    ([1], [True]),
    ([(1,)], [[1]]),
    ([{"a": 1}], [{"a": 1, "b": 2}]),
    ([{"a": torch.ones(1)}], [{"a": torch.zeros(1)}]),
    ([{"a": torch.ones(1)}], [{"a": np.ones(1)}]),
    ([np.ones(1)], [np.ones(2)]),
    ([np.ones(1)], [[1.0]]),
    (["x"], [None]),
    ([[1, 2]], [[1]]),
]


@pytest.mark.parametrize(("mine", "theirs"), DIFFERENT)
def test_different_content_is_a_conflict(mine: Any, theirs: Any) -> None:
    for one, other in ((mine, theirs), (theirs, mine)):
        left, right = cell_batch(one), cell_batch(other)
        before = [copy.deepcopy(left), copy.deepcopy(right)]
        with pytest.raises(AssertionError, match="'x'"):
            left.union(right)
        assert [left, right] == before


def test_a_conflict_says_which_row_and_both_values() -> None:
    mine = tensors_of(x=[[1, 2], [3, 4], [5, 6]])
    with pytest.raises(
        ColumnConflict,
        match=r"'x'.*1 of 3 rows differ, the first is row 1\): tensor\(\[3, 4\]\).*\[3, 5\]",
    ):
        mine.union(tensors_of(x=[[1, 2], [3, 5], [5, 6]]))
    with pytest.raises(ColumnConflict, match=r"2 of 3 rows differ, the first is row 0\).*1 and 2"):
        arrays_of(x=[1, 5, 3]).union(arrays_of(x=[2, 5, "3"]))
    with pytest.raises(ColumnConflict, match=r"1 of 2 rows differ, the first is row 1"):
        arrays_of(x=np.array(["NaT", "2020"], "M8[Y]")).union(
            arrays_of(x=np.array(["NaT", "2021"], "M8[Y]"))
        )


def test_a_conflict_of_shapes_says_both() -> None:
    with pytest.raises(ColumnConflict, match=r"float32 \(1,\) and torch.float32 \(1, 1\)"):
        tensors_of(x=[1.0]).union(tensors_of(x=[[1.0]]))
    with pytest.raises(ColumnConflict, match=r"int64 \(1,\) and int64 \(1, 1\)"):
        arrays_of(x=np.array([1])).union(arrays_of(x=np.array([[1]])))


def test_a_dtype_is_not_cast() -> None:
    with pytest.raises(FieldSpecMismatch, match=r"torch.float32.*torch.int64"):
        tensors_of(x=[1.0]).union(tensors_of(x=[1]))
    with pytest.raises(FieldSpecMismatch, match=r"<U1.*<U2"):
        arrays_of(x=np.array(["a"])).union(arrays_of(x=np.array(["ab"])))


def test_jagged_columns_compare_by_row(jagged: Callable[..., torch.Tensor]) -> None:
    def data(*rows: list[float], **kwargs: Any) -> DataProto:
        return DataProto(TensorDict({"x": jagged(*rows, **kwargs)}, [len(rows)]))

    data([1.0], [2.0, NAN]).union(data([1.0], [2.0, NAN]))
    sliced = data([9.0], [1.0], [2.0, NAN])[1:]
    sliced.union(data([1.0], [2.0, NAN]))
    for other in (
        data([1.0], [2.0, 3.0]),
        data([1.0, 2.0], [NAN]),
        data([1.0], [2.0, NAN], dtype=torch.float64),
        DataProto.from_dict({"x": torch.ones(2, 2)}),
    ):
        with pytest.raises(AssertionError, match="'x'"):
            data([1.0], [2.0, NAN]).union(other)


def test_the_ragged_dimension_is_part_of_a_column() -> None:
    first = torch.nested.nested_tensor_from_jagged(torch.zeros(4, 2), torch.tensor([0, 2, 4]))
    last = torch.nested.nested_tensor_from_jagged(
        torch.zeros(2, 4), torch.tensor([0, 2, 4]), jagged_dim=2
    )
    mine, theirs = (DataProto(TensorDict({"x": column}, [2])) for column in (first, last))
    with pytest.raises(AssertionError):
        mine.union(theirs)


def test_a_name_is_a_tensor_or_an_array_not_both() -> None:
    for mine, theirs in (
        (tensors_of(x=[1]), arrays_of(x=[1])),
        (arrays_of(x=[1]), tensors_of(x=[1])),
    ):
        with pytest.raises(BatchInconsistent, match="'x' is a tensor on one side"):
            mine.union(theirs)


def test_a_name_that_is_both_already_is_left_alone() -> None:
    data = DataProto(TensorDict({"x": torch.zeros(1)}, [1]), {"x": np.zeros(1)})
    data.union(copy.deepcopy(data))
    with pytest.raises(ColumnConflict):
        data.union(tensors_of(x=[1.0]))


def test_a_failed_union_leaves_both_sides_as_they_were(batch: DataProto) -> None:
    before = copy.deepcopy(batch)
    failures = [
        DataProto.from_dict({"new": torch.zeros(4)}, {}, {"keys": ["other"]}),
        DataProto.from_dict({"new": torch.zeros(4), "score": torch.zeros(4)}),
        DataProto.from_dict({"new": torch.zeros(4)}, {"more": np.zeros(4), "uid": np.zeros(4)}),
        DataProto.from_dict({"new": torch.zeros(4)}, {"more": np.zeros(4), "ids": np.zeros(4)}),
    ]
    for other in failures:
        theirs = copy.deepcopy(other)
        with pytest.raises(AssertionError):
            batch.union(other)
        assert batch == before
        assert other == theirs


@pytest.mark.parametrize("other", [None, 3, {}, TensorDict({}, [4])])
def test_union_takes_a_batch(batch: DataProto, other: Any) -> None:
    with pytest.raises(TypeError, match="union takes a DataProto"):
        batch.union(other)


# ---- meta_info in a union


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [([], ["acc"]), (1, 2), ({"a": 1}, {"a": 2}), (np.arange(2), np.arange(3)), ("x", None)],
)
def test_a_conflict_of_meta_info_names_the_key_and_both_values(mine: Any, theirs: Any) -> None:
    left, right = DataProto(meta_info={"keys": mine}), DataProto(meta_info={"keys": theirs})
    with pytest.raises(AssertionError) as caught:
        left.union(right)
    assert isinstance(caught.value, MetaConflict)
    for part in ("'keys'", repr(mine), repr(theirs)):
        assert part in str(caught.value)
    assert left.meta_info["keys"] is mine


@pytest.mark.parametrize("key", ["timing", "timing_raw", "timing/step", "timing_s"])
def test_timing_never_fails_a_union(key: str) -> None:
    left = DataProto(meta_info={key: {"gen": 73.94637, "wait": 2.0, "mine": 1}})
    left.union(DataProto(meta_info={key: {"gen": 73.94638, "wait": 1.0, "theirs": 1}}))
    assert left.meta_info == {key: {"gen": 73.94638, "wait": 2.0, "mine": 1, "theirs": 1}}


@pytest.mark.parametrize(
    ("mine", "theirs", "merged"),
    [(1.5, 2, 2), ([1.0, 4.0], [2.0, 3.0], [2.0, 4.0]), ({"a": {"b": 2}}, {"a": {"b": 1}},
     {"a": {"b": 2}}), ({"a": "s", "b": 1}, {"a": "s", "b": 2}, {"a": "s", "b": 2})],
)  # fmt: skip
def test_the_longer_time_stays(mine: Any, theirs: Any, merged: Any) -> None:
    left = DataProto(meta_info={"timing": mine})
    assert left.union(DataProto(meta_info={"timing": theirs})).meta_info["timing"] == merged


@pytest.mark.parametrize(("mine", "theirs"), [("a", "b"), ([1], [1, 2]), ({"a": "x"}, {"a": 1})])
def test_what_is_no_time_must_agree_under_timing_too(mine: Any, theirs: Any) -> None:
    with pytest.raises(MetaConflict, match="timing"):
        DataProto(meta_info={"timing": mine}).union(DataProto(meta_info={"timing": theirs}))


def test_other_keys_are_exact() -> None:
    for key in ("time", "gen/timing", "temperature", 3):
        with pytest.raises(MetaConflict):
            DataProto(meta_info={key: 1.0}).union(DataProto(meta_info={key: 1.1}))


# ---- the functions


def test_tensor_dicts_unite_in_place() -> None:
    one = TensorDict({"a": torch.zeros(2), "n": torch.tensor([NAN, 1])}, [2])
    other = TensorDict({"b": torch.ones(2), "n": torch.tensor([NAN, 1])}, [2])
    assert union_tensor_dict(one, other) is one
    assert set(one.keys()) == {"a", "b", "n"}
    assert set(other.keys()) == {"b", "n"}


def test_tensor_dicts_that_cannot_unite_are_left_alone() -> None:
    one = TensorDict({"a": torch.zeros(2)}, [2])
    with pytest.raises(AssertionError, match=r"repeat\(2\)"):
        union_tensor_dict(one, TensorDict({"b": torch.ones(4)}, [4]))
    with pytest.raises(AssertionError, match="'a'"):
        union_tensor_dict(one, TensorDict({"b": torch.ones(2), "a": torch.ones(2)}, [2]))
    assert set(one.keys()) == {"a"}


def test_dicts_of_arrays_unite_in_place(objects: Callable[..., np.ndarray]) -> None:
    one, other = {"a": objects(1, NAN)}, {"a": objects(1, NAN), "b": np.arange(2)}
    assert union_numpy_dict(one, other) is one
    assert set(one) == {"a", "b"}
    with pytest.raises(AssertionError, match="'a'"):
        union_numpy_dict(one, {"c": np.arange(2), "a": objects(1, 2)})
    assert set(one) == {"a", "b"}


@pytest.mark.parametrize(
    ("mine", "theirs"), [(np.arange(2), [0, 1]), ([0, 1], np.arange(2)), ("x", "y")]
)
def test_dicts_of_other_things_do_not_unite(mine: Any, theirs: Any) -> None:
    with pytest.raises(AssertionError, match="'a'"):
        union_numpy_dict({"a": mine}, {"a": theirs})


# ---- copies


def test_a_copy_has_containers_of_its_own(batch: DataProto) -> None:
    twin = copy.copy(batch)
    assert twin == batch
    twin.batch["new"] = torch.zeros(4)
    twin.meta_info["new"] = twin.non_tensor_batch["new"] = np.zeros(4)
    assert twin.batch["ids"] is batch.batch["ids"]
    assert "new" not in {*names(batch)[0], *names(batch)[1], *names(batch)[2]}
    assert copy.copy(DataProto()) == DataProto()


def test_equality_is_by_content(batch: DataProto, make: Callable[..., DataProto]) -> None:
    assert batch == make()
    assert batch != make(3)
    assert batch != 3
    assert (batch == 3) is False
    assert DataProto() == DataProto()
    assert DataProto(TensorDict({}, [2])) != DataProto(TensorDict({}, [3]))
    assert DataProto(TensorDict({}, [0])) != DataProto()
    for change in (
        lambda d: d.batch.set("ids", d.batch["ids"] + 1),
        lambda d: d.non_tensor_batch.pop("uid"),
        lambda d: d.meta_info.update(temperature=1),
    ):
        other = make()
        change(other)
        assert batch != other
    with pytest.raises(TypeError, match="unhashable"):
        hash(batch)


def test_to_moves_in_place(batch: DataProto) -> None:
    assert batch.to("cpu") is batch
    assert batch.batch.device == torch.device("cpu")
    bare = arrays_of(o=[1])
    assert bare.to("cpu") is bare
    batch.to("meta")
    assert batch.batch["ids"].device.type == "meta"
