"""Object columns come back row by row as they were, by whichever path they went."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

from transferqueue.errors import Malformed, UnsupportedObject
from transferqueue.fields import FieldKind, FieldSpec
from transferqueue.wire.columns import EncodedColumn, ObjectPolicy, decode_column, encode_column

if TYPE_CHECKING:
    from collections.abc import Callable

PICKLE = ObjectPolicy.PICKLE
OBJECTS = FieldSpec(dtype="object", kind=FieldKind.OBJECT)


def decoded(column: EncodedColumn, **options: Any) -> np.ndarray:
    assert column.nbytes == int(column.lengths.sum())
    back = decode_column(
        column.spec, column.payload.copy(), column.lengths, column.num_rows, **options
    )
    assert isinstance(back, np.ndarray)
    assert back.dtype == object
    return back


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        if left.dtype == object:
            return left.shape == right.shape and same(left.tolist(), right.tolist())
        return (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


arrays = st.sampled_from(
    [
        np.arange(6).reshape(2, 3),
        np.zeros((0, 2), np.float16),
        np.array(3.5),
        np.array(["a", "bcd"]),
        np.arange(8, dtype=">i2")[::-2],
        np.array(["2020-01-01"], "M8[D]"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ]
)
tensors = st.sampled_from(
    [
        torch.arange(6).view(2, 3),
        torch.zeros(0, 2, dtype=torch.bfloat16),
        torch.tensor(3.5),
        torch.arange(4, dtype=torch.float64)[::2],
        torch.tensor([True, False]),
        torch.randn(2, requires_grad=True).detach(),
    ]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | arrays
    | tensors
)
rows = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.tuples(st.integers()), inner)
    ),
    max_leaves=6,
)
columns = (
    st.lists(rows, max_size=6)
    | st.lists(st.text(st.characters(), max_size=40), max_size=6)
    | st.lists(arrays, max_size=6)
    | st.lists(tensors, max_size=6)
    | arrays.flatmap(lambda array: st.lists(st.just(array), max_size=6))
    | tensors.flatmap(lambda tensor: st.lists(st.just(tensor), max_size=6))
)


@given(columns)
def test_a_column_of_objects_comes_back(values: list[Any]) -> None:
    column = encode_column("x", values)
    assert column.spec == OBJECTS
    assert column.num_rows == len(values)
    assert same(decoded(column).tolist(), values)


@given(st.lists(columns, max_size=4), st.randoms(use_true_random=False))
def test_rows_of_different_puts_stand_side_by_side_in_any_order(
    puts: list[list[Any]], random: Any
) -> None:
    cells = []
    for values in puts:
        column = encode_column("x", values)
        ends = np.cumsum(column.lengths)
        cells += [
            (value, column.payload[end - length : end])
            for value, end, length in zip(values, ends, column.lengths, strict=True)
        ]
    random.shuffle(cells)
    payload = np.frombuffer(b"".join(cell for _, cell in cells), np.uint8)
    lengths = np.array([len(cell) for _, cell in cells], dtype=np.int64)
    back = decode_column(OBJECTS, payload, lengths, len(cells))
    assert same(back.tolist(), [value for value, _ in cells])


def test_an_object_array_a_list_and_a_tuple_are_object_columns() -> None:
    values = [None, {"a": 1}, (1, 2), [3], "x"]
    array = np.fromiter(values, dtype=object, count=5)
    for column in (values, tuple(values), array, array[::1]):
        assert same(decoded(encode_column("x", column)).tolist(), values)
    assert same(decoded(encode_column("x", array[::-2])).tolist(), values[::-2])
    assert decoded(encode_column("x", [])).shape == (0,)


def test_lists_of_one_length_stay_rows_of_lists() -> None:
    back = decoded(encode_column("x", [[1, 2], [3, 4]]))
    assert back.shape == (2,)
    assert back.tolist() == [[1, 2], [3, 4]]


def test_an_object_array_of_more_dimensions_keeps_them() -> None:
    array = np.empty((2, 3, 1), dtype=object)
    array.reshape(-1)[:] = [1, None, "a", (1,), [2], {3: 4}]
    column = encode_column("x", array)
    assert column.spec.shape == (3, 1)
    assert same(decoded(column), array)
    absent = decode_column(column.spec, column.payload[:0], np.zeros(2, np.int64), 2)
    assert absent.shape == (2, 3, 1)
    assert absent.reshape(-1).tolist() == [None] * 6


def test_what_a_tensordict_holds_beside_tensors_is_a_column() -> None:
    values = [{"a": 1}, None, (1, 2)]
    td = TensorDict({}, batch_size=[3])
    td["stack"] = NonTensorStack(*values)
    td["array"] = np.fromiter(values, dtype=object, count=3)
    td["text"] = np.array(["a", "bb", "c"])
    td["same"] = NonTensorData("same", batch_size=[3])
    assert same(decoded(encode_column("x", td.get("stack"))).tolist(), values)
    assert same(decoded(encode_column("x", td.get("array"))).tolist(), values)
    assert decoded(encode_column("x", td.get("same"))).tolist() == ["same"] * 3
    assert encode_column("x", td.get("text")).spec.dtype == "<U2"


def test_keys_that_differ_by_row_are_all_there() -> None:
    values = [
        {},
        {"pixel_values": torch.ones(2, 3), "grid": np.array([1, 2])},
        {"acc": 1.0},
        {"acc": 0.5, "pred": "x", 3: (1,)},
    ]
    assert same(decoded(encode_column("multi_modal_inputs", values)).tolist(), values)


def test_a_row_without_bytes_is_none() -> None:
    column = encode_column("x", ["a", "b"])
    back = decode_column(OBJECTS, column.payload, np.array([0, 2, 0, 2]), 4)
    assert back.tolist() == [None, "a", None, "b"]


def test_a_row_that_is_a_slice_does_not_drag_its_parent_along() -> None:
    parent = torch.zeros(1000, 1000)
    for row in (parent[0], [parent[0]], {"x": parent[:, 0]}):
        assert encode_column("x", [row, row]).nbytes < 2 * 4000 + 500


class Opaque:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque)

    __hash__ = None


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        (Opaque(), "Opaque"),
        (bytearray(b"x"), "bytearray"),
        (torch.eye(2).to_sparse(), "tensor of layout torch.sparse_coo"),
        (torch.empty(2, device="meta"), "tensor on the meta device"),
        (np.zeros(2, "i4,f4"), "numpy.ndarray"),
        (np.ma.masked_array([1]), "numpy.ma.MaskedArray"),
        (TensorDict({}, batch_size=[]), "TensorDict"),
        (
            torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
            "nested tensor in an object",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_an_unsupported_object_is_refused_with_field_row_and_type(
    value: object, type_name: str
) -> None:
    for wrapped in (value, [value], {"a": (torch.ones(2), value)}):
        for others in ([1, "a"], ["a", "b"], [np.ones(2), torch.ones(2)]):
            with pytest.raises(UnsupportedObject) as caught:
                encode_column("info", [*others, wrapped])
            assert "field 'info', row 2" in str(caught.value)
            assert type_name in str(caught.value)


def test_other_objects_need_pickle_on_both_ends() -> None:
    values = [Opaque(), {"a": [Opaque(), np.ones(2)]}, 3, (complex, Opaque)]
    column = encode_column("x", values, objects=PICKLE)
    back = decoded(column, objects=PICKLE).tolist()
    assert same(back, values)
    with pytest.raises(UnsupportedObject, match=r"row 0.*objects='pickle'"):
        encode_column("x", values)
    with pytest.raises(UnsupportedObject, match=r"field 'x', row 0.*objects='pickle'"):
        decoded(column, field="x")
    plain = encode_column("x", [1, Opaque()], objects=PICKLE)
    with pytest.raises(UnsupportedObject, match=r"row 1"):
        decoded(plain)


def test_what_pickle_refuses_is_refused_with_its_row() -> None:
    with pytest.raises(UnsupportedObject, match="row 1: cannot carry a function; pickle does not"):
        encode_column("x", [1, lambda: None], objects=PICKLE)


def test_a_pickle_that_fails_to_load_is_malformed() -> None:
    column = encode_column("x", [Opaque()], objects=PICKLE)
    payload = column.payload.copy()
    payload[4:] = 0
    with pytest.raises(Malformed, match="pickle"):
        decode_column(OBJECTS, payload, column.lengths, 1, objects=PICKLE)


@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"x": x}], ids=["alone", "in a dict"])
def test_arrays_come_back_over_the_memory_they_came_in(
    make: Callable[[int], Any], wrap: Callable[[Any], Any]
) -> None:
    column = encode_column("x", [wrap(make(n)) for n in (3, 5, 1)])
    payload = column.payload.copy()
    for row in decode_column(column.spec, payload, column.lengths, 3):
        array = np.asarray(row["x"] if isinstance(row, dict) else row)
        assert np.shares_memory(array, payload)
        assert array.flags.writeable
        assert array.flags.aligned


def test_arrays_between_rows_of_odd_sizes_are_aligned() -> None:
    column = encode_column("x", ["a", np.arange(3.0), {"t": torch.arange(3.0)}, "bc", np.ones(2)])
    back = decoded(column)
    assert back[1].flags.aligned
    assert back[4].flags.aligned
    assert back[2]["t"].data_ptr() % 4 == 0


def function_calls(work: Callable[[], object]) -> int:
    count = 0

    def profile(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # its callbacks are calls too
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize(
    "make",
    [
        lambda n: [f"row {i}" for i in range(n)],
        lambda n: [{"acc": i / 7, "n": [i, str(i), None]} for i in range(n)],
        lambda n: [np.arange(i % 7) for i in range(n)],
        lambda n: [torch.arange(1 + i % 7) for i in range(n)],
    ],
    ids=["strings", "plain", "arrays", "tensors"],
)
def test_common_columns_take_no_python_call_a_row(make: Callable[[int], list[Any]]) -> None:
    def calls(num_rows: int) -> int:
        values = make(num_rows)

        def there_and_back() -> None:
            column = encode_column("x", values)
            payload = np.array(column.payload)
            decode_column(column.spec, payload, column.lengths, num_rows)

        there_and_back()
        return function_calls(there_and_back)

    assert calls(2_000) == calls(200)


@pytest.mark.parametrize("empty", [np.zeros((1, 0, 1, 0, 1)), torch.zeros(1, 0, 1, 0, 1)])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_an_empty_array_of_impossible_sizes_is_malformed(empty: Any, num_rows: int) -> None:
    column = encode_column("x", [empty] * num_rows)
    payload = column.payload.copy()
    payload[32:72].view("<i8")[[0, 2, 4]] = 1 << 46
    with pytest.raises(Malformed):
        decode_column(OBJECTS, payload, column.lengths, num_rows)


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_noise_is_malformed_or_objects(cells: list[bytes]) -> None:
    for prefix in (b"", b"\xc1\x01", b"\xc1\x02\0\0\1\0\0\0\2\0\0\0\0\0\0\0"):
        read(b"".join(prefix + cell for cell in cells), [len(prefix + cell) for cell in cells])


@given(st.data())
def test_damaged_cells_are_malformed_or_objects(data: st.DataObject) -> None:
    values = data.draw(
        st.sampled_from(
            [
                [np.arange(3), np.arange(4)],
                [torch.arange(3), torch.arange(4)],
                [{"a": torch.ones(2), "b": (np.ones(3), 1)}, None],
                ["abc", "d"],
            ]
        )
    )
    column = encode_column("x", values)
    damaged = bytearray(column.payload)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    read(bytes(damaged), column.lengths.tolist())


def read(payload: bytes, lengths: list[int]) -> None:
    with contextlib.suppress(Malformed, UnsupportedObject):
        decode_column(
            OBJECTS, np.frombuffer(payload, np.uint8), np.array(lengths, np.int64), len(lengths)
        )


@pytest.mark.parametrize("shape", [(0, 2), (0, 2, 3), (0, 0), (3, 0)])
def test_objects_of_no_rows_keep_their_shape(shape: tuple[int, ...]) -> None:
    column = encode_column("x", np.empty(shape, dtype=object))
    assert column.num_rows == shape[0]
    assert decoded(column).shape == shape
