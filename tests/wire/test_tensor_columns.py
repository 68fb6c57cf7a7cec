"""Tensor and array columns come back as they were put, over the memory they came in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from transferqueue.dtypes import TENSOR_ITEMSIZE
from transferqueue.errors import Malformed, RowCountMismatch, UnsupportedTensor
from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.wire.columns import EncodedColumn, decode_column, encode_column
from transferqueue.wire.tensors import TORCH_DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable


def decoded(column: EncodedColumn) -> torch.Tensor | np.ndarray:
    return decode_column(column.spec, column.payload.copy(), column.lengths, column.num_rows)


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def assert_same_tensor(left: torch.Tensor, right: torch.Tensor) -> None:
    assert (left.dtype, left.shape, left.layout) == (right.dtype, right.shape, right.layout)
    assert bits(left) == bits(right)


def test_this_torch_has_every_dtype_of_the_format_with_that_size() -> None:
    for name, itemsize in TENSOR_ITEMSIZE.items():
        assert TORCH_DTYPES[name].itemsize == itemsize


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@given(
    st.sampled_from(sorted(TENSOR_ITEMSIZE)),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_a_tensor_of_any_dtype_and_shape_comes_back(
    dtype: str, shape: list[int], random: Any
) -> None:
    num_bytes = int(np.prod(shape)) * TENSOR_ITEMSIZE[dtype]
    raw = random.randbytes(num_bytes)
    if dtype == "bool":
        raw = bytes(byte & 1 for byte in raw)
    memory = torch.tensor(list(raw), dtype=torch.uint8)
    tensor = (
        memory.view(TORCH_DTYPES[dtype]).view(shape)
        if raw
        else torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    )
    column = encode_column("x", tensor)
    assert column.spec == FieldSpec(dtype=dtype, shape=tuple(shape[1:]))
    assert column.nbytes == column.unit_bytes * column.num_rows == num_bytes
    assert_same_tensor(decoded(column), tensor)


@given(
    st.sampled_from(
        ["?", "<i4", ">f8", "<u2", "<c16", "<f2", "<M8[ms]", "<m8[D]", "|S3", "<U4"]
    ).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0)))
)
def test_an_array_of_any_kind_and_shape_comes_back_as_an_array(array: np.ndarray) -> None:
    column = encode_column("x", array)
    back = decoded(column)
    assert column.spec.kind is FieldKind.ARRAY
    assert isinstance(back, np.ndarray)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()


def test_a_scalar_a_row_stays_one() -> None:
    assert decoded(encode_column("reward", torch.rand(5))).shape == (5,)
    assert decoded(encode_column("reward", np.ones(5, np.float32))).shape == (5,)


def address(column: EncodedColumn) -> int:
    return column.payload.ctypes.data


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_contiguous_memory_is_not_copied_either_way(dtype: torch.dtype) -> None:
    tensor = torch.zeros(6, 4, dtype=dtype)
    for value in (
        tensor,
        tensor[2:5],
        torch.nn.Parameter(tensor) if dtype.is_floating_point else tensor,
    ):
        assert address(encode_column("x", value)) == value.data_ptr()
    payload = np.zeros(tensor.nbytes, np.uint8)
    spec = FieldSpec(dtype=str(dtype)[6:], shape=(4,))
    back = decode_column(spec, payload, None, 6)
    assert isinstance(back, torch.Tensor)
    assert back.data_ptr() == payload.ctypes.data
    back[0, 0] = 1
    assert payload.any()


def test_contiguous_arrays_are_not_copied_either_way() -> None:
    array = np.arange(12.0).reshape(6, 2)
    column = encode_column("x", array[1:4])
    assert np.shares_memory(column.payload, array)
    payload = column.payload.copy()
    assert np.shares_memory(decode_column(column.spec, payload, None, 3), payload)
    text = encode_column("x", np.array(["ab", "c"]))
    payload = text.payload.copy()
    assert np.shares_memory(decode_column(text.spec, payload, text.lengths, 2), payload)


def test_a_slice_does_not_drag_its_parent_along() -> None:
    parent = torch.zeros(1000, 1000)
    for part in (parent[3:4], parent[:, 3:4][:2], parent.T[5:6]):
        column = encode_column("x", part)
        assert column.nbytes == part.numel() * 4
        assert_same_tensor(decoded(column), part)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 6).T,
        torch.randn(8, 3)[::2],
        torch.randn(1, 3).expand(5, 3),
        torch.randn(4, 3, requires_grad=True),
        torch.randn(4, 3, requires_grad=True) * 2,
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4, dtype=torch.complex64).conj().imag,
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.nn.Parameter(torch.randn(3)),
    ],
    ids=["T", "strided", "expanded", "leaf", "graph", "conj", "neg", "channels", "parameter"],
)
def test_any_view_or_gradient_comes_back_as_plain_values(tensor: torch.Tensor) -> None:
    back = decoded(encode_column("x", tensor))
    assert_same_tensor(back, tensor)
    assert not back.requires_grad


def test_negative_strides_and_other_orders_of_an_array_come_back() -> None:
    array = np.arange(24).reshape(4, 6)
    for view in (array[::-1], array[:, ::-2], array.T, np.asfortranarray(array), array[:0]):
        back = decoded(encode_column("x", view))
        assert back.shape == view.shape
        np.testing.assert_array_equal(back, view)


def test_a_read_only_or_unaligned_payload_is_copied_so_that_the_reader_may_write() -> None:
    column = encode_column("x", torch.arange(4.0))
    frame = np.frombuffer(bytes(column.payload), np.uint8)
    shifted = np.zeros(17, np.uint8)[1:]
    shifted[:] = column.payload
    for payload in (frame, shifted):
        back = decode_column(column.spec, payload, None, 4)
        assert back.tolist() == [0, 1, 2, 3]
        back += 1
        assert payload.tobytes() == column.payload.tobytes()


def test_text_of_puts_of_different_widths_is_one_column() -> None:
    narrow, wide = (
        encode_column("x", np.array(["a", "bc"])),
        encode_column("x", np.array(["defgh"])),
    )
    spec = narrow.spec.merge(wide.spec, field="x")
    payload = np.concatenate([narrow.payload, wide.payload, narrow.payload[:8]])
    lengths = np.concatenate([narrow.lengths, wide.lengths, narrow.lengths[:1]])
    back = decode_column(spec, payload, lengths, 4)
    assert back.dtype == "<U5"
    assert back.tolist() == ["a", "bc", "defgh", "a"]
    assert decode_column(spec, narrow.payload, narrow.lengths, 2).dtype == "<U2"
    absent = decode_column(spec, narrow.payload[:8], np.array([0, 2, 0]), 3)
    assert absent.tolist() == ["", "a", ""]
    assert decode_column(spec, payload[:0], np.array([0, 0]), 2).tolist() == ["", ""]


def test_text_of_more_dimensions_and_widths_is_one_column() -> None:
    parts = [np.array([["a", "b"], ["c", ""]]), np.array([["xyz", "q"]])]
    columns = [encode_column("x", part) for part in parts]
    back = decode_column(
        columns[0].spec.merge(columns[1].spec, field="x"),
        np.concatenate([column.payload for column in columns]),
        np.concatenate([column.lengths for column in columns]),
        3,
    )
    assert back.tolist() == [["a", "b"], ["c", ""], ["xyz", "q"]]


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (lambda: torch.eye(3).to_sparse(), r"\.to_dense\(\)"),
        (lambda: torch.eye(3).to_sparse_csr(), r"\.to_dense\(\)"),
        (lambda: torch.empty(3, device="meta"), "materialize"),
        (
            lambda: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
            "layout=torch.jagged",
        ),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "dequantize"),
        (lambda: torch.tensor(1.0), "first dimension is the rows"),
        (lambda: np.array(1.0), "first dimension is the rows"),
        (lambda: torch.zeros(3, dtype=torch.int4), r"convert it with \.to"),
        (lambda: np.zeros(3, "i4,f4"), "one plain array a field"),
        (lambda: np.zeros(3, "V4"), "one plain array a field"),
        (lambda: np.ma.masked_array([1, 2], [True, False]), r"\.filled"),
        (lambda: "one string", "a list with one object a row"),
        (lambda: 3.0, "a list with one object a row"),
        (lambda: {"a": 1}, "a list with one object a row"),
        (lambda: None, "a list with one object a row"),
    ],
    ids=range(15),
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_a_column_is_refused_with_the_field_and_the_way_out(
    value: Callable[[], object], way_out: str
) -> None:
    with pytest.raises(UnsupportedTensor, match=rf"field 'x': cannot carry .*{way_out}"):
        encode_column("x", value())


def test_a_fake_tensor_is_refused() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(3)
    with pytest.raises(UnsupportedTensor, match="FakeTensor"):
        encode_column("x", fake)


def test_a_nested_tensordict_is_refused_with_the_way_out() -> None:
    from tensordict import TensorDict

    with pytest.raises(UnsupportedTensor, match=r"flatten_keys\(\)"):
        encode_column("x", TensorDict({"a": torch.zeros(3)}, batch_size=[3]))


def test_another_number_of_rows_than_expected_is_an_error() -> None:
    with pytest.raises(RowCountMismatch, match="field 'x': expected 4 rows, got 3"):
        encode_column("x", torch.zeros(3), 4)


F4 = FieldSpec(dtype="float32", shape=(2,))
TEXT = FieldSpec(dtype="<U2", kind=FieldKind.ARRAY)


@pytest.mark.parametrize(
    ("spec", "num_bytes", "lengths", "num_rows"),
    [
        (F4, 15, None, 2),
        (F4, 16, None, 3),
        (F4, 16, [1, 1], 2),
        (FieldSpec(dtype="float32", shape=(-1,)), 16, None, 2),
        (FieldSpec(dtype="float32", shape=(0, 1 << 47, 1 << 47)), 0, None, 2),
        (FieldSpec(dtype="<f4", shape=(0, 1 << 47, 1 << 47), kind=FieldKind.ARRAY), 0, None, 2),
        (TEXT, 16, None, 2),
        (TEXT, 16, [2], 2),
        (TEXT, 16, [5, -1], 2),
        (TEXT, 16, [2, 3], 2),
        (TEXT, 16, [1 << 62, 1 << 62], 2),
    ],
    ids=str,
)
def test_sizes_that_do_not_add_up_are_malformed(
    spec: FieldSpec, num_bytes: int, lengths: list[int] | None, num_rows: int
) -> None:
    as_array = None if lengths is None else np.array(lengths, dtype=np.int64)
    with pytest.raises(Malformed):
        decode_column(spec, np.zeros(num_bytes, np.uint8), as_array, num_rows)
