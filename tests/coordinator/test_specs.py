"""Field specs by their codes."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.coordinator.specs import MIXED, SpecCodes, merge_specs, spec_from_plain
from transferqueue.errors import FieldSpecMismatch, InvalidInput


def _dense(*shape: int, dtype: str = "float32") -> tuple:
    return (dtype, shape, None, "tensor")


def test_equal_specs_share_a_code() -> None:
    codes = SpecCodes("x")
    assert codes.code(_dense(8)) == codes.code(_dense(8))
    assert codes.code(_dense(8)) != codes.code(_dense(9))


def test_dense_sizes_that_differ_become_minus_one() -> None:
    assert merge_specs("x", [_dense(8, 3), _dense(8, 4)]) == _dense(8, -1)


@pytest.mark.parametrize(
    "other",
    [
        _dense(8, dtype="float64"),
        _dense(8, 1),
        ("float32", (-1,), 0, "tensor"),
        ("<f4", (8,), None, "array"),
    ],
)
def test_rows_of_two_forms_are_refused_with_both(other: tuple) -> None:
    with pytest.raises(FieldSpecMismatch, match=r"'x' is float32\[8\], got"):
        merge_specs("x", [_dense(8), other])


def test_text_of_different_widths_is_one_spec() -> None:
    narrow, wide = ("<U3", (), None, "array"), ("<U10", (), None, "array")
    assert merge_specs("x", [narrow, wide]) == wide


def test_past_the_last_code_only_the_merged_spec_is_kept() -> None:
    codes = SpecCodes("x")
    known = [codes.code(_dense(n)) for n in range(300)]
    assert known[-1] == MIXED
    assert codes.merged(np.array([known[260], known[270]], dtype=np.uint8)) == _dense(-1)
    assert codes.merged(np.array([known[0], known[299]], dtype=np.uint8)) == _dense(-1)
    assert codes.merged(np.array([known[7], known[7]], dtype=np.uint8)) == _dense(7)
    assert codes.code(_dense(3, dtype="int64")) == MIXED
    with pytest.raises(FieldSpecMismatch):
        codes.merged(np.array([MIXED], dtype=np.uint8))


def test_a_spec_is_read_from_lists_and_anything_else_is_refused() -> None:
    assert spec_from_plain("x", ["bfloat16", [-1, 3], 0, "tensor"]) == (
        "bfloat16",
        (-1, 3),
        0,
        "tensor",
    )
    for bad in (
        None,
        ["float32"],
        ["float32", "ab", None, "tensor"],
        ["float32", [1], "0", "tensor"],
    ):
        with pytest.raises(InvalidInput, match="'x'"):
            spec_from_plain("x", bad)
