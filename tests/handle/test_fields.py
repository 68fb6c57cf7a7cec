"""What a field spec says, and what becomes of two of them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.dtypes import TENSOR_ITEMSIZE
from transferqueue.errors import FieldSpecMismatch, Malformed
from transferqueue.fields import VARIES, FieldKind, FieldSpec
from transferqueue.wire.format import pack_plain, unpack_plain

ARRAY_DTYPES = ["<f4", "|b1", "<U5", "|S3", "<M8[ns]", ">i2", "<c16"]

sizes = st.integers(0, 2**40)


@st.composite
def specs(draw: st.DrawFn) -> FieldSpec:
    kind = draw(st.sampled_from(FieldKind))
    shape = draw(st.lists(sizes, max_size=4))
    if kind is FieldKind.OBJECT:
        return FieldSpec(dtype="object", shape=tuple(shape), kind=kind)
    if kind is FieldKind.ARRAY:
        return FieldSpec(dtype=draw(st.sampled_from(ARRAY_DTYPES)), shape=tuple(shape), kind=kind)
    ragged_dim = draw(st.none() | st.integers(0, len(shape) - 1)) if shape else None
    if ragged_dim is not None:
        shape[ragged_dim] = VARIES
    dtype = draw(st.sampled_from(sorted(TENSOR_ITEMSIZE)))
    return FieldSpec(dtype=dtype, shape=tuple(shape), ragged_dim=ragged_dim)


@given(specs())
def test_a_spec_comes_back_from_the_wire(spec: FieldSpec) -> None:
    assert FieldSpec.from_wire(unpack_plain(pack_plain(spec.to_wire()))) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


@given(specs())
def test_a_spec_merged_with_itself_is_itself(spec: FieldSpec) -> None:
    assert spec.merge(spec, field="x") is spec


@pytest.mark.parametrize(
    ("spec", "unit_bytes"),
    [
        (FieldSpec(dtype="bfloat16", shape=(3, 4)), 24),
        (FieldSpec(dtype="float32"), 4),
        (FieldSpec(dtype="float32", shape=(0, 7)), 0),
        (FieldSpec(dtype="int64", shape=(VARIES,), ragged_dim=0), 8),
        (FieldSpec(dtype="int64", shape=(4, VARIES), ragged_dim=1), 32),
        (FieldSpec(dtype="<f8", shape=(2,), kind=FieldKind.ARRAY), 16),
        (FieldSpec(dtype="<U5", shape=(2,), kind=FieldKind.ARRAY), 8),
        (FieldSpec(dtype="|S5", kind=FieldKind.ARRAY), 1),
        (FieldSpec(dtype="object", kind=FieldKind.OBJECT), 1),
    ],
)
def test_a_unit_is_a_sample_a_ragged_step_a_character_or_a_byte(
    spec: FieldSpec, unit_bytes: int
) -> None:
    assert spec.unit_bytes == unit_bytes


def test_sizes_that_differ_between_puts_vary_in_the_merged_spec() -> None:
    left = FieldSpec(dtype="float32", shape=(3, 8))
    merged = left.merge(FieldSpec(dtype="float32", shape=(3, 9)), field="x")
    assert merged == FieldSpec(dtype="float32", shape=(3, VARIES))
    assert not merged.is_concrete
    assert merged.merge(left, field="x") == merged
    with pytest.raises(ValueError, match="vary between puts"):
        _ = merged.unit_bytes


def test_text_of_two_widths_is_one_field_as_wide_as_the_wider() -> None:
    narrow = FieldSpec(dtype="<U3", kind=FieldKind.ARRAY)
    wide = FieldSpec(dtype="<U12", kind=FieldKind.ARRAY)
    assert narrow.merge(wide, field="x") == wide.merge(narrow, field="x") == wide
    assert wide.is_concrete


@pytest.mark.parametrize(
    "other",
    [
        FieldSpec(dtype="bfloat16", shape=(VARIES, 4), ragged_dim=0),
        FieldSpec(dtype="float32", shape=(3, 4)),
        FieldSpec(dtype="float32", shape=(3, VARIES), ragged_dim=1),
        FieldSpec(dtype="float32", shape=(VARIES,), ragged_dim=0),
        FieldSpec(dtype="<f4", shape=(3, 4), kind=FieldKind.ARRAY),
        FieldSpec(dtype="object", kind=FieldKind.OBJECT),
    ],
    ids=str,
)
def test_other_differences_are_an_error_that_names_the_field_and_both_specs(
    other: FieldSpec,
) -> None:
    spec = FieldSpec(dtype="float32", shape=(VARIES, 4), ragged_dim=0)
    with pytest.raises(FieldSpecMismatch) as caught:
        spec.merge(other, field="values")
    assert "'values'" in str(caught.value)
    assert str(spec) in str(caught.value)
    assert str(other) in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "float33"},
        {"dtype": "torch.float32"},
        {"dtype": "object"},
        {"dtype": "float32", "shape": (-2,)},
        {"dtype": "float32", "shape": (3,), "ragged_dim": 0},
        {"dtype": "float32", "shape": (VARIES,), "ragged_dim": 1},
        {"dtype": "<f4"},
        {"dtype": "<V4", "kind": FieldKind.ARRAY},
        {"dtype": "|O", "kind": FieldKind.ARRAY},
        {"dtype": "f4", "kind": FieldKind.ARRAY},
        {"dtype": "<f4", "kind": FieldKind.ARRAY, "shape": (VARIES,), "ragged_dim": 0},
        {"dtype": "float32", "kind": FieldKind.OBJECT},
    ],
    ids=str,
)
def test_a_spec_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        FieldSpec(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        ["float32", [], None],
        ["float32", [3.0], None, "tensor"],
        ["float32", [True], None, "tensor"],
        ["float32", [1 << 60], None, "tensor"],
        ["float32", [1] * 33, None, "tensor"],
        ["float32", [], True, "tensor"],
        ["float32", [], None, "nonsense"],
        ["float32", [], None, []],
        [4, [], None, "tensor"],
        ["(2,)f4", [], None, "array"],
    ],
    ids=str,
)
def test_wire_forms_that_are_no_spec_are_malformed(plain: object) -> None:
    with pytest.raises(Malformed):
        FieldSpec.from_wire(plain)
