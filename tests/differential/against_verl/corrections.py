"""Where ours differs from verl 0.9.1 on purpose, each as a predicate over one case.

A case is what both sides did with one operation on one batch. In all others they must agree: the
same result, or an error of the same built-in class. ``checks.py`` has an explicit example of each
beside the random ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from against_verl.frozen import without_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch

    from against_verl.operations import Operation

CONTRACT = (AssertionError, KeyError, IndexError, ValueError, TypeError)
"""Where verl raises one of these on purpose, ours raises it too. Other classes are accidents."""

_ACCIDENTS = (RuntimeError, NotImplementedError, AttributeError, ZeroDivisionError)
_WORDS_OF_ACCIDENTS = (
    "'NoneType'",  # a batch without tensors was not expected
    "invalid shape",  # nor one without rows, by tensordict's view()
    "'isnan' not supported",  # nor strings, by numpy's equal_nan
)


@dataclass(frozen=True)
class Case:
    operation: Operation
    before: Any
    """Our batch as it was before the operation."""
    verl: Any
    """``(result, the batch after it)``, frozen, or the exception."""
    ours: Any

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def only_ours_works(self) -> bool:
        return isinstance(self.verl, Exception) and not isinstance(self.ours, Exception)

    @property
    def only_verl_works(self) -> bool:
        return isinstance(self.ours, Exception) and not isinstance(self.verl, Exception)

    @property
    def both_work(self) -> bool:
        return not isinstance(self.verl, Exception) and not isinstance(self.ours, Exception)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {} if self.before.batch is None else dict(self.before.batch.items())

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = self.before.non_tensor_batch
        return found

    @property
    def agrees(self) -> bool:
        if self.both_work:
            return bool(self.verl == self.ours)
        if self.only_ours_works or self.only_verl_works:
            return False
        promised = [kind for kind in CONTRACT if isinstance(self.verl, kind)]
        if any(words in str(self.verl) for words in _WORDS_OF_ACCIDENTS):
            return True
        return all(isinstance(self.ours, kind) for kind in promised)

    def ours_raises(self, class_name: str) -> bool:
        return type(self.ours).__name__ == class_name


def _jagged_columns_have_rows(case: Case) -> bool:
    is_jagged = any(column.is_nested for column in case.tensors.values())
    return is_jagged and case.only_ours_works and isinstance(case.verl, _ACCIDENTS)


def _a_batch_without_tensors_works(case: Case) -> bool:
    accident = isinstance(case.verl, AttributeError) or "NoneType" in str(case.verl)
    return case.only_ours_works and accident


def _a_batch_without_columns_has_rows_that_end(case: Case) -> bool:
    return case.name in {"iter", "[item]"} and not case.tensors and not case.arrays


def _no_rows_and_no_cells_are_fine(case: Case) -> bool:
    names = {"chunk", "to_tensordict", "from_tensordict", "sample_level_repeat", "BatchData"}
    names |= {"repeat", "fold_batch_dim", "serialize_tensordict"}
    empty = not len(case.before) or any(not column.numel() for column in case.tensors.values())
    errors = (*_ACCIDENTS, IndexError, ValueError, AssertionError)
    return empty and case.only_ours_works and case.name in names and isinstance(case.verl, errors)


def _a_tensordict_without_columns_keeps_its_rows(case: Case) -> bool:
    return case.name == "to_tensordict" and not case.tensors and not case.arrays


def _only_metadata_is_fine(case: Case) -> bool:
    return case.name == "from_tensordict" and not case.tensors and case.only_ours_works


def _select_knows_its_names(case: Case) -> bool:
    return case.name == "select" and case.only_verl_works and case.ours_raises("UnknownColumn")


def _rename_does_not_overwrite(case: Case) -> bool:
    return case.name == "rename" and case.ours_raises("NameTaken")


def _concat_needs_the_same_columns(case: Case) -> bool:
    return case.name == "concat" and case.ours_raises("ColumnsDiffer")


def _metrics_that_differ_are_padded(case: Case) -> bool:
    if case.name != "concat" or isinstance(case.ours, Exception):
        return False
    if isinstance(case.verl, AssertionError):
        return "not present in the keys of the first" in str(case.verl)
    return case.both_work and _but_metrics(case.verl[0]) == _but_metrics(case.ours[0])


def _padding_leaves_metrics_alone(case: Case) -> bool:
    if case.name != "pad_dataproto_to_divisor" or not case.both_work:
        return False
    both = [_but_metrics(without_devices(one[0])) for one in (case.verl, case.ours)]
    return both[0] == both[1]


def _but_metrics(result: Any) -> Any:
    if isinstance(result, dict):
        return {key: _but_metrics(one) for key, one in result.items() if key != "metrics"}
    if isinstance(result, tuple | list):
        return [_but_metrics(one) for one in result]
    return result


def _the_device_is_kept(case: Case) -> bool:
    names = {"repeat", "padding", "pop", "to_tensordict", "from_tensordict"}
    same = case.both_work and without_devices(case.verl) == without_devices(case.ours)
    return same and case.name in names and case.before.batch.device is not None


def _mini_batches_keep_dtypes_and_layouts(case: Case) -> bool:
    if case.name != "make_iterator" or not case.both_work:
        return False
    is_jagged = any(column.is_nested for column in case.tensors.values())
    exact = any(column.dtype != object for column in case.arrays.values()) or _has_lists(case)
    return is_jagged or exact


def _cells_that_are_sequences_stay_cells(case: Case) -> bool:
    wide = any(column.ndim > 1 for column in case.arrays.values())
    named = case.name in {"collate_fn", "from_tensordict"} and case.both_work
    return named and (wide or _has_lists(case))


def _has_lists(case: Case) -> bool:
    return any(
        isinstance(cell, list | tuple)
        for column in case.arrays.values()
        if column.dtype == object
        for cell in column
    )


def _ragged_shapes_are_numbered_by_torch(case: Case) -> bool:
    if case.name != "get_data_info" or not case.both_work:
        return False
    texts = [re.sub(r"j\d+", "j", one[0][1]) for one in (case.verl, case.ours)]
    return texts[0] == texts[1]


def _objects_count_with_what_they_refer_to(case: Case) -> bool:
    has_objects = any(column.dtype == object for column in case.arrays.values())
    return case.name == "print_size" and (has_objects or case.only_ours_works)


def _bad_arguments_are_bad_also_without_columns(case: Case) -> bool:
    refused = isinstance(case.ours, ValueError | IndexError | TypeError)
    return refused and case.only_verl_works and not case.tensors and _is_about_rows(case)


def _is_about_rows(case: Case) -> bool:
    return case.name not in {"concat", "union", "select", "pop", "rename"}


def _union_refuses_what_verl_overlooks(case: Case) -> bool:
    refused = ("FieldSpecMismatch", "RowCountMismatch", "BatchInconsistent")
    return case.name == "union" and any(map(case.ours_raises, refused))


def _equal_content_is_equal(case: Case) -> bool:
    has_nan = any(
        bool((column != column).any()) for column in case.tensors.values() if not column.is_nested
    )
    strings = "'isnan' not supported" in str(case.verl)
    return case.name == "union" and case.only_ours_works and (has_nan or strings)


def _a_slice_never_runs_backwards(case: Case) -> bool:
    return case.name in {"slice", "[slice]"} and case.operation.args["step"] == -1


def _unfolding_columns_needs_no_keys(case: Case) -> bool:
    no_keys = case.operation.args.get("split_keys", ()) is None
    return case.name == "unfold_column_chunks" and no_keys and isinstance(case.verl, TypeError)


def _unfolding_checks_its_counts_before_the_columns(case: Case) -> bool:
    if case.name != "unfold_column_chunks":
        return False
    return case.operation.args["n_split"] == 0 or case.ours_raises("NotDivisible")


def _one_dimension_cannot_unfold(case: Case) -> bool:
    named = case.name == "unfold_column_chunks" and isinstance(case.verl, IndexError)
    return named and isinstance(case.ours, AssertionError)


def _folding_leaves_its_argument_alone(case: Case) -> bool:
    if case.name != "fold_batch_dim":
        return False
    same_result = case.both_work and case.verl[0] == case.ours[0]
    return same_result or (case.only_ours_works and not case.tensors)


CORRECTIONS: list[Callable[[Case], bool]] = [
    _jagged_columns_have_rows,
    _a_batch_without_tensors_works,
    _a_batch_without_columns_has_rows_that_end,
    _no_rows_and_no_cells_are_fine,
    _a_tensordict_without_columns_keeps_its_rows,
    _only_metadata_is_fine,
    _select_knows_its_names,
    _rename_does_not_overwrite,
    _concat_needs_the_same_columns,
    _metrics_that_differ_are_padded,
    _padding_leaves_metrics_alone,
    _the_device_is_kept,
    _mini_batches_keep_dtypes_and_layouts,
    _cells_that_are_sequences_stay_cells,
    _ragged_shapes_are_numbered_by_torch,
    _objects_count_with_what_they_refer_to,
    _bad_arguments_are_bad_also_without_columns,
    _union_refuses_what_verl_overlooks,
    _equal_content_is_equal,
    _a_slice_never_runs_backwards,
    _unfolding_columns_needs_no_keys,
    _unfolding_checks_its_counts_before_the_columns,
    _one_dimension_cannot_unfold,
    _folding_leaves_its_argument_alone,
]
