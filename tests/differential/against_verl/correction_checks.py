"""One example of every correction: what verl 0.9.1 does, and what ours does instead.

When a newer verl behaves, its half of an example fails, and the correction can go.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import verl.protocol as verl_side
from tensordict import NonTensorData, NonTensorStack, TensorDict

import transferqueue.view as our_side
from transferqueue.errors import (
    ColumnsDiffer,
    FieldSpecMismatch,
    NameTaken,
    UnknownColumn,
)

VERL, OURS = verl_side.DataProto, our_side.DataProto
NAN = float("nan")


def both(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The same batch on either side, each in memory of its own."""
    theirs = VERL.from_dict(*_cloned(args), **_cloned(kwargs))
    return theirs, OURS.from_dict(*_cloned(args), **_cloned(kwargs))


def _cloned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cloned(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_cloned, value))
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def tensors(rows: int = 4) -> dict[str, torch.Tensor]:
    return {"a": torch.arange(rows * 2).view(rows, 2), "b": torch.arange(rows).float()}


def jagged(*lengths: int) -> torch.Tensor:
    parts = [torch.arange(length) for length in lengths]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def test_arrays_are_checked_against_one_another() -> None:
    arrays = {"a": np.arange(2), "b": np.arange(3)}
    VERL(non_tensor_batch=dict(arrays))
    with pytest.raises(AssertionError, match="3 rows"):
        OURS(non_tensor_batch=dict(arrays))


def test_true_is_no_row_number() -> None:
    theirs, ours = both(tensors())
    assert theirs[True].batch["a"].shape == (1, 4, 2)
    with pytest.raises(TypeError):
        ours[True]


def test_floats_in_a_list_are_no_rows() -> None:
    theirs, ours = both(tensors())
    assert theirs[[0.7]].batch["b"].tolist() == [0.0]
    with pytest.raises(IndexError):
        ours[[0.7]]


def test_rows_are_named_in_one_dimension() -> None:
    theirs, ours = both(tensors())
    assert theirs.select_idxs([[0, 1]]).batch["a"].shape == (1, 2, 2)
    with pytest.raises(IndexError):
        ours.select_idxs([[0, 1]])


def test_rows_of_a_batch_without_columns_end() -> None:
    theirs, ours = VERL(batch=TensorDict({}, [2])), OURS(batch=TensorDict({}, [2]))
    assert len(list(itertools.islice(theirs, 9))) == 9
    assert len(list(itertools.islice(ours, 9))) == 2


def test_negative_steps_are_refused_for_arrays_too() -> None:
    theirs, ours = both(non_tensors={"a": np.arange(3)})
    assert theirs[::-1].non_tensor_batch["a"].tolist() == [2, 1, 0]
    with pytest.raises(ValueError, match="step"):
        ours[::-1]


def test_a_batch_without_rows_serializes() -> None:
    batch = TensorDict({"a": torch.zeros(0, 2)}, [0])
    with pytest.raises(ValueError, match="must not be 0"):
        verl_side.deserialize_tensordict(verl_side.serialize_tensordict(batch))
    read = our_side.deserialize_tensordict(our_side.serialize_tensordict(batch))
    assert read["a"].shape == (0, 2)


def test_a_slice_of_an_object_column_leaves_its_parent_behind() -> None:
    parent = torch.zeros(1_000_000)
    cells = np.fromiter([{"pixels": parent[:10]}], dtype=object, count=1)
    theirs, ours = both(non_tensors={"images": cells})
    assert len(pickle.dumps(theirs)) > parent.nbytes
    assert len(pickle.dumps(ours)) < 10_000


def test_the_dicts_given_are_never_changed() -> None:
    given: list[dict[str, Any]] = [{"o": ["x", "y"]}, {}]
    VERL.from_dict(non_tensors=given[0], meta_info=given[1], auto_padding=True)
    assert isinstance(given[0]["o"], np.ndarray)
    assert given[1]
    given = [{"o": ["x", "y"]}, {}]
    OURS.from_dict(non_tensors=given[0], meta_info=given[1], auto_padding=True)
    assert given == [{"o": ["x", "y"]}, {}]


def test_meta_info_given_with_a_tensordict_is_never_changed() -> None:
    source = TensorDict({"a": torch.zeros(2), "k": NonTensorData(7)}, [2])
    for kind, expected in ((VERL, {"k": 7}), (OURS, {})):
        meta: dict[str, Any] = {}
        kind.from_tensordict(source, meta_info=meta)
        assert meta == expected


def test_lists_of_one_length_stay_cells() -> None:
    theirs, ours = both(non_tensors={"turns": [[1, 2], [3, 4]]})
    assert theirs.non_tensor_batch["turns"].shape == (2, 2)
    assert ours.non_tensor_batch["turns"].tolist() == [[1, 2], [3, 4]]
    assert ours.non_tensor_batch["turns"].shape == (2,)


def test_lists_of_one_length_stay_cells_out_of_a_tensordict() -> None:
    stack = NonTensorStack.from_list([NonTensorData([1, 2]), NonTensorData([3, 4])])
    source = TensorDict({"a": torch.zeros(2), "turns": stack}, [2])
    assert VERL.from_tensordict(source).non_tensor_batch["turns"].shape == (2, 2)
    assert OURS.from_tensordict(source).non_tensor_batch["turns"].shape == (2,)


def test_a_nested_tensordict_is_kept() -> None:
    source = TensorDict({"a": torch.zeros(2), "inner": TensorDict({"b": torch.ones(2)}, [2])}, [2])
    assert "inner" not in VERL.from_tensordict(source).batch
    assert OURS.from_tensordict(source).batch["inner", "b"].tolist() == [1, 1]


def test_select_knows_its_names() -> None:
    theirs, ours = both(tensors(), {"o": np.arange(4)}, {"m": 1})
    assert theirs.select([], ["nowhere"], ["nowhere"]).meta_info == {}
    for keys in ((["nowhere"],), ([], ["nowhere"]), ([], [], ["nowhere"])):
        with pytest.raises(KeyError, match="nowhere"):
            ours.select(*keys)


def test_a_selection_has_containers_of_its_own() -> None:
    for batch, shares in zip(both(tensors(), {}, {"m": 1}), (True, False), strict=True):
        selected = batch.select()
        selected.batch["new"] = torch.zeros(4)
        selected.meta_info["m"] = 2
        assert ("new" in batch.batch, batch.meta_info["m"] == 2) == (shares, shares)


def test_a_deep_copy_has_tensors_of_its_own() -> None:
    for batch, shares in zip(both(tensors()), (True, False), strict=True):
        batch.select(["b"], deepcopy=True).batch["b"].fill_(9)
        assert (batch.batch["b"][0] == 9) == shares


def test_pop_is_all_or_nothing() -> None:
    for batch, left in zip(both(tensors()), ({"b"}, {"a", "b"}), strict=True):
        with pytest.raises(AssertionError):
            batch.pop(["a", "nowhere"])
        assert set(batch.batch.keys()) == left


def test_pop_keeps_the_type() -> None:
    for module, same in ((verl_side, False), (our_side, True)):
        kind = type("Mine", (module.DataProto,), {})
        assert (type(kind.from_dict(tensors()).pop(["a"])) is kind) == same


def test_rename_takes_several_and_arrays() -> None:
    theirs, ours = both(tensors(), {"o": np.arange(4)})
    with pytest.raises(ValueError, match="Expected a TensorDictBase"):
        theirs.rename(["a", "b"], ["c", "d"])
    with pytest.raises(KeyError):
        theirs.rename("o", "p")
    ours.rename(["a", "b", "o"], ["b", "a", "p"])
    assert ours.batch["a"].dim() == 1
    assert list(ours.non_tensor_batch) == ["p"]


def test_rename_overwrites_nothing() -> None:
    theirs, ours = both(tensors())
    assert list(theirs.rename("a", "b").batch.keys()) == ["b"]
    with pytest.raises(NameTaken):
        ours.rename("a", "b")


@pytest.mark.parametrize("column", [torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1]).bfloat16()])
def test_nan_equals_nan_in_a_union(column: torch.Tensor) -> None:
    theirs, ours = both({"a": column})
    with pytest.raises(AssertionError):
        theirs.union(VERL.from_dict({"a": column.clone()}))
    ours.union(OURS.from_dict({"a": column.clone()}))


def test_union_refuses_another_dtype() -> None:
    theirs, ours = both({"a": torch.ones(2)})
    theirs.union(VERL.from_dict({"a": torch.ones(2, dtype=torch.int64)}))
    with pytest.raises(FieldSpecMismatch):
        ours.union(OURS.from_dict({"a": torch.ones(2, dtype=torch.int64)}))


def test_union_is_all_or_nothing() -> None:
    for kind, added in ((VERL, True), (OURS, False)):
        batch = kind.from_dict({"a": torch.zeros(2)}, meta_info={"m": 1})
        other = kind.from_dict({"new": torch.ones(2)}, meta_info={"m": 2})
        with pytest.raises(AssertionError):
            batch.union(other)
        assert ("new" in batch.batch) == added


def test_union_compares_tensors_inside_by_content() -> None:
    def batch(kind: Any) -> Any:
        cells = np.fromiter([{"x": torch.ones(2)}], dtype=object, count=1)
        return kind.from_dict({"a": torch.zeros(1)}, {"o": cells}, {"m": np.arange(3)})

    with pytest.raises((RuntimeError, ValueError), match="ambiguous"):
        batch(VERL).union(batch(VERL))
    batch(OURS).union(batch(OURS))


def test_union_of_strings() -> None:
    arrays = {"s": np.array(["x", "y"])}
    theirs, ours = both({"a": torch.zeros(2)}, arrays)
    with pytest.raises(TypeError, match="isnan"):
        theirs.union(VERL.from_dict({"a": torch.zeros(2)}, {"s": arrays["s"].copy()}))
    ours.union(OURS.from_dict({"a": torch.zeros(2)}, {"s": arrays["s"].copy()}))


def test_either_side_of_a_union_may_lack_tensors() -> None:
    for kind, works in ((VERL, False), (OURS, True)):
        batch = kind.from_dict({"a": torch.zeros(2)})
        try:
            batch.union(kind.from_dict(non_tensors={"o": np.arange(2)}))
        except AttributeError:
            assert not works
        else:
            assert works


def test_mini_batches_keep_dtypes_and_layouts() -> None:
    theirs, ours = both(
        {"j": jagged(2, 2)}, {"i": np.arange(2), "turns": np.array([[1, 2], [3, 4]])}
    )
    (their_batch,) = theirs.make_iterator(2, 1)
    (our_batch,) = ours.make_iterator(2, 1)
    assert not their_batch.batch["j"].is_nested
    assert their_batch.non_tensor_batch["i"].dtype == object
    assert our_batch.batch["j"].is_nested
    assert our_batch.non_tensor_batch["i"].dtype == np.int64
    assert our_batch.non_tensor_batch["turns"].shape == (2, 2)


def test_every_chunk_has_a_meta_info_of_its_own() -> None:
    for batch, shared in zip(both(tensors(), meta_info={"m": 1}), (True, False), strict=True):
        first, second = batch.chunk(2)
        first.meta_info["m"] = 2
        assert (second.meta_info["m"] == 2) == (batch.meta_info["m"] == 2) == shared


def test_there_are_always_as_many_chunks_as_asked_for() -> None:
    theirs, ours = both(tensors(5), meta_info={verl_side.DataProtoConfig.auto_padding_key: True})
    with pytest.raises(AssertionError):
        VERL(theirs.batch, {"o": np.arange(5)}, theirs.meta_info).chunk(4)
    assert [len(chunk) for chunk in ours.chunk(4)] == [2, 1, 1, 1]


def test_no_rows_chunk() -> None:
    theirs, ours = both({"a": torch.zeros(0, 2)})
    with pytest.raises(RuntimeError):
        theirs.chunk(2)
    assert [len(chunk) for chunk in ours.chunk(2)] == [0, 0]


def test_a_negative_split_size_loses_no_rows() -> None:
    theirs, ours = both(tensors())
    assert theirs.split(-1) == []
    with pytest.raises(ValueError, match="split_size"):
        ours.split(-1)


def test_concat_drops_no_column() -> None:
    bare, full = (
        [kind.from_dict(non_tensors={"o": np.arange(2)}) for kind in (VERL, OURS)],
        both({"a": torch.zeros(2)}, {"o": np.arange(2)}),
    )
    assert VERL.concat([bare[0], full[0]]).batch is None
    with pytest.raises(ColumnsDiffer):
        OURS.concat([bare[1], full[1]])


def test_concat_aligns_metrics() -> None:
    def parts(kind: Any, *metrics: Any) -> list[Any]:
        return [kind(meta_info={"metrics": one}) for one in metrics]

    fewer = ({"loss": 1, "kl": 2}, {"loss": 3})
    assert VERL.concat(parts(VERL, *fewer)).meta_info["metrics"] == {"loss": [1, 3], "kl": [2]}
    assert OURS.concat(parts(OURS, *fewer)).meta_info["metrics"] == {
        "loss": [1, 3],
        "kl": [2, None],
    }
    with pytest.raises(AssertionError):
        VERL.concat(parts(VERL, *reversed(fewer)))
    assert OURS.concat(parts(OURS, *reversed(fewer))).meta_info["metrics"] == {
        "loss": [3, 1],
        "kl": [None, 2],
    }


def test_timing_never_fails_a_step() -> None:
    def parts(kind: Any) -> list[Any]:
        return [kind(meta_info={"timing": {"gen": time_s}}) for time_s in (73.94637, 73.94638)]

    with pytest.raises(AssertionError):
        VERL.concat(parts(VERL))
    assert OURS.concat(parts(OURS)).meta_info == {"timing": {"gen": 73.94638}}


@pytest.mark.parametrize("rows", [[2, 0, 1], np.array([2, 0, 1])])
def test_reorder_takes_lists_and_arrays(rows: Any) -> None:
    theirs, ours = both({"a": torch.arange(3)})
    with pytest.raises(AttributeError):
        theirs.reorder(rows)
    ours.reorder(rows)
    assert ours.batch["a"].tolist() == [2, 0, 1]


def test_every_row_operation_takes_jagged_columns() -> None:
    operations = {
        "slice": lambda batch: batch[1:],
        "rows": lambda batch: batch[[0]],
        "repeat": lambda batch: batch.repeat(2),
        "tile": lambda batch: batch.repeat(2, interleave=False),
        "counts": lambda batch: batch.sample_level_repeat([1, 2]),
        "concat": lambda batch: type(batch).concat([batch, batch]),
        "reorder": lambda batch: batch.reorder(torch.tensor([1, 0])),
        "padding": lambda batch: batch.padding(1),
    }
    for operation in operations.values():
        theirs, ours = both({"j": jagged(1, 3)})
        with pytest.raises((RuntimeError, NotImplementedError)):
            operation(theirs)
        operation(ours)


def test_repeat_keeps_the_device() -> None:
    for batch, device in zip(both(tensors()), (None, torch.device("cpu")), strict=True):
        assert batch.to("cpu").repeat(2).batch.device == device


def test_padding_leaves_metrics_alone() -> None:
    for module, metrics in ((verl_side, {"loss": [1, 1]}), (our_side, {"loss": 1})):
        batch = module.DataProto.from_dict(tensors(3), meta_info={"metrics": {"loss": 1}})
        padded, _ = module.pad_dataproto_to_divisor(batch, 2)
        assert padded.meta_info["metrics"] == metrics


def test_unfolding_columns_that_do_not_divide_is_an_assertion() -> None:
    theirs, ours = both(tensors())
    with pytest.raises(RuntimeError):
        theirs.unfold_column_chunks(3, ["a"])
    with pytest.raises(AssertionError):
        ours.unfold_column_chunks(3, ["a"])


def test_folding_leaves_its_argument_alone() -> None:
    for module, changed in ((verl_side, True), (our_side, False)):
        batch = module.DataProto.from_dict(tensors(), {"o": np.arange(4)})
        module.fold_batch_dim(batch, 2)
        assert (batch.non_tensor_batch["o"].ndim == 2) == changed


def test_unfolding_leaves_its_argument_alone() -> None:
    for module, changed in ((verl_side, True), (our_side, False)):
        folded = module.fold_batch_dim(module.DataProto.from_dict(tensors()), 2)
        module.unfold_batch_dim(folded)
        assert (len(folded.batch.batch_size) == 2) == changed


def test_objects_count_with_what_they_refer_to(capsys: pytest.CaptureFixture[str]) -> None:
    gib = 1 << 30
    cells = np.fromiter([torch.zeros(1000, dtype=torch.float64)], dtype=object, count=1)
    sizes = []
    for batch in both({"a": torch.zeros(1)}, {"o": cells}):
        batch.print_size()
        sizes.append(float(capsys.readouterr().out.split()[-2]) * gib)
    assert sizes[0] < 100
    assert sizes[1] > 8000


def test_collated_lists_stay_cells() -> None:
    for module, shape in ((verl_side, (2, 2)), (our_side, (2,))):
        cells = np.fromiter([[1, 2], [3, 4]], dtype=object, count=2)
        batch = module.DataProto.from_dict({"a": torch.zeros(2)}, {"o": cells})
        assert module.collate_fn([batch[0], batch[1]]).non_tensor_batch["o"].shape == shape


def test_a_missing_name_says_which_is_near() -> None:
    _, ours = both({"responses": torch.zeros(2)})
    with pytest.raises(UnknownColumn, match="did you mean 'responses'"):
        ours.pop(["response"])


def test_equality_is_by_content() -> None:
    theirs, ours = both({"a": torch.tensor([NAN, 1.0])})
    with pytest.raises(RuntimeError):
        assert theirs == VERL.from_dict({"a": torch.tensor([NAN, 1.0])})
    assert ours == OURS.from_dict({"a": torch.tensor([NAN, 1.0])})
