"""Jagged tensors come back jagged, with their ragged dimension, whatever their lengths are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.errors import Malformed
from transferqueue.fields import VARIES, FieldSpec
from transferqueue.wire.columns import EncodedColumn, decode_column, encode_column

pytestmark = pytest.mark.filterwarnings("ignore:.*prototype stage.*")


def decoded(column: EncodedColumn) -> torch.Tensor:
    back = decode_column(column.spec, column.payload.copy(), column.lengths, column.num_rows)
    assert isinstance(back, torch.Tensor)
    return back


def assert_same_jagged(left: torch.Tensor, right: torch.Tensor) -> None:
    assert left.layout is right.layout is torch.jagged
    assert left._ragged_idx == right._ragged_idx
    assert (left.dtype, left.dim(), left.shape[0]) == (right.dtype, right.dim(), right.shape[0])
    for one, other in zip(left.unbind(), right.unbind(), strict=True):
        assert one.shape == other.shape
        assert torch.equal(one, other)


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), max_size=2),
    st.data(),
)
def test_any_ragged_dimension_comes_back(
    lengths: list[int], rest: list[int], data: st.DataObject
) -> None:
    ragged_dim = data.draw(st.integers(0, len(rest)))
    total = sum(lengths)
    values = torch.arange(total * int(np.prod(rest)), dtype=torch.int64).view(total, *rest)
    offsets = torch.tensor([0, *np.cumsum(lengths).tolist()])
    nested = torch.nested.nested_tensor_from_jagged(
        values.movedim(0, ragged_dim), offsets, jagged_dim=ragged_dim + 1
    )
    column = encode_column("x", nested)
    shape = [*rest[:ragged_dim], VARIES, *rest[ragged_dim:]]
    assert column.spec == FieldSpec(dtype="int64", shape=tuple(shape), ragged_dim=ragged_dim)
    assert column.lengths.tolist() == lengths
    assert column.nbytes == total * column.unit_bytes
    assert_same_jagged(decoded(column), nested)


@pytest.mark.parametrize(
    "nested",
    [
        jagged([torch.randn(3), torch.randn(3)]),
        jagged([torch.randn(4, 3), torch.randn(4, 3)]).transpose(1, 2),
        jagged([torch.randn(5)]),
        jagged([torch.randn(4, 2), torch.randn(4, 5)]),
        jagged([torch.randn(3, 2, dtype=torch.bfloat16), torch.randn(1, 2, dtype=torch.bfloat16)]),
        jagged([torch.randn(2, 4), torch.randn(7, 4)]).transpose(1, 2),
        jagged([torch.zeros(0, 4), torch.zeros(0, 4)]),
        jagged([torch.tensor([True, False]), torch.tensor([True])]),
        torch.nested.nested_tensor_from_jagged(torch.zeros(0, 4), torch.tensor([0])),
        torch.nested.nested_tensor_from_jagged(torch.zeros(4, 0), torch.tensor([0]), jagged_dim=2),
        torch.nested.nested_tensor_from_jagged(torch.arange(9.0), torch.tensor([0, 4, 9]).int()),
        torch.nested.nested_tensor(
            [torch.randn(2), torch.randn(3)], layout=torch.jagged, requires_grad=True
        ),
    ],
    ids=[
        "equal lengths",
        "equal lengths, dim 2",
        "one row",
        "dim 2",
        "bf16",
        "transposed",
        "empty rows",
        "bool",
        "no rows",
        "no rows, dim 2",
        "int32 offsets",
        "grad",
    ],
)
def test_layouts_that_could_be_taken_for_another_come_back(nested: torch.Tensor) -> None:
    back = decoded(encode_column("x", nested))
    assert_same_jagged(back, nested.detach())
    assert not back.requires_grad


def test_holes_between_rows_and_values_outside_of_them_are_left_out() -> None:
    values = torch.arange(20.0).view(10, 2)
    with_holes = torch.nested.nested_tensor_from_jagged(
        values, torch.tensor([1, 5, 9]), lengths=torch.tensor([2, 3])
    )
    column = encode_column("x", with_holes)
    assert column.payload.tobytes() == values[[1, 2, 5, 6, 7]].numpy().tobytes()
    assert column.lengths.tolist() == [2, 3]
    part = torch.nested.nested_tensor_from_jagged(values, torch.tensor([3, 4, 6]))
    assert encode_column("x", part).nbytes == 3 * 8
    narrowed = torch.nested.narrow(
        torch.arange(24.0).view(3, 4, 2),
        1,
        torch.tensor([0, 1, 0]),
        torch.tensor([2, 3, 4]),
        layout=torch.jagged,
    )
    assert_same_jagged(decoded(encode_column("x", narrowed)), narrowed.contiguous())


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_holes_are_left_out_of_unsigned_values_too(dtype: torch.dtype) -> None:
    with_holes = torch.nested.nested_tensor_from_jagged(
        torch.arange(10).to(dtype), torch.tensor([1, 5, 9]), lengths=torch.tensor([2, 3])
    )
    assert decoded(encode_column("x", with_holes)).values().tolist() == [1, 2, 5, 6, 7]


def test_contiguous_values_are_not_copied_either_way() -> None:
    nested = jagged([torch.randn(3, 4), torch.randn(2, 4)])
    assert encode_column("x", nested).payload.ctypes.data == nested.values().data_ptr()
    turned = nested.transpose(1, 2)
    column = encode_column("x", turned)
    assert column.payload.ctypes.data == nested.values().data_ptr()
    payload = column.payload.copy()
    back = decode_column(column.spec, payload, column.lengths, 2)
    assert back.values().data_ptr() == payload.ctypes.data
    back.values().add_(1)
    assert payload.tobytes() != column.payload.tobytes()


def test_what_comes_back_works_as_a_tensor() -> None:
    nested = jagged([torch.randn(3, 4), torch.randn(2, 4)])
    back = decoded(encode_column("x", nested))
    assert back.to_padded_tensor(0.0).shape == (2, 3, 4)
    assert torch.equal((back * 2).values(), nested.values() * 2)
    assert torch.equal((back + back).values(), nested.values() * 2)


def test_rows_of_several_puts_in_any_order_are_one_column() -> None:
    """A shard gathers whole rows as bytes; the lengths are all that it needs to know."""
    first = encode_column("x", jagged([torch.full((n, 2), float(n)) for n in (3, 1)]))
    second = encode_column("x", jagged([torch.full((n, 2), float(n)) for n in (2, 0, 4)]))
    rows = [second.payload[16:48], first.payload[:24], second.payload[:16]]
    back = decode_column(first.spec, np.concatenate(rows), np.array([4, 3, 2]), 3)
    assert [row.shape[0] for row in back.unbind()] == [4, 3, 2]
    assert back.unbind()[0].unique().tolist() == [4.0]


RAGGED = FieldSpec(dtype="float32", shape=(VARIES, 2), ragged_dim=0)
EMPTY_UNITS = FieldSpec(dtype="float32", shape=(VARIES, 0), ragged_dim=0)


@pytest.mark.parametrize(
    ("spec", "num_bytes", "lengths"),
    [
        (RAGGED, 16, None),
        (RAGGED, 16, [1]),
        (RAGGED, 16, [1, 2]),
        (RAGGED, 16, [3, -1]),
        (RAGGED, 16, [1 << 62, 1 << 62]),
        (RAGGED, 15, [1, 1]),
        (EMPTY_UNITS, 0, [1 << 62, 1 << 62]),
        (FieldSpec(dtype="float32", shape=(VARIES, VARIES), ragged_dim=0), 16, [1, 1]),
    ],
    ids=str,
)
def test_lengths_that_do_not_fit_the_bytes_are_malformed(
    spec: FieldSpec, num_bytes: int, lengths: list[int] | None
) -> None:
    as_array = None if lengths is None else np.array(lengths, dtype=np.int64)
    with pytest.raises(Malformed):
        decode_column(spec, np.zeros(num_bytes, np.uint8), as_array, 2)
