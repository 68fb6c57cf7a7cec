"""Python values come back exactly: type, value and nesting, or are refused."""

from __future__ import annotations

import collections
import contextlib
import datetime
import enum
import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.errors import Malformed
from transferqueue.wire.values import MAX_DEPTH, CannotCarry, ValuePacker, ValueReader

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(), max_size=8)
    | st.binary(max_size=8)
    | st.builds(np.float32, st.floats(width=32))
    | st.builds(np.int8, st.integers(-128, 127))
    | st.builds(np.bool_, st.booleans())
    | st.builds(np.str_, st.text(st.characters(), max_size=5))
    | st.builds(np.bytes_, st.binary(max_size=5))
    | st.builds(lambda n: np.datetime64(n, "ns"), st.integers(-(2**40), 2**40))
)
hashables = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)


def object_array(items: list[Any]) -> np.ndarray:
    return np.fromiter(items, dtype=object, count=len(items))


values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.sets(hashables, max_size=3)
        | st.frozensets(hashables, max_size=3)
        | st.lists(inner, max_size=3).map(object_array)
    ),
    max_leaves=15,
)


def form(value: Any) -> Any:
    """What must be equal for two values to be the same: types too, NaN is NaN, -0.0 is not 0.0."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, [form(item) for item in value]
    if kind in (set, frozenset):
        return kind, sorted(repr(form(item)) for item in value)
    if kind is dict:
        return kind, [(form(key), form(item)) for key, item in value.items()]
    if kind is np.ndarray:
        return kind, value.dtype, value.shape, form(value.reshape(-1).tolist())
    if kind in (str, np.str_):
        return kind, [ord(character) for character in value]
    if isinstance(value, np.generic) and kind is not np.bytes_:
        return kind, value.dtype.str, value.tobytes()
    return kind, repr(value)


def identical(left: Any, right: Any) -> bool:
    return bool(form(left) == form(right))


@given(values)
def test_a_value_comes_back_exactly(value: object) -> None:
    assert identical(ValueReader().read(ValuePacker().pack(value)), value)


@given(st.lists(values, max_size=6))
def test_values_in_a_row_come_back_in_one_pass(many: list[object]) -> None:
    packed = ValuePacker().pack_many(many)
    assert identical(ValueReader().read_many(b"".join(packed), len(many)), many)


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, 2**1000, math.nan, -0.0, "\ud800", np.str_("a\0"), np.bytes_(b"a\0")],
    ids=repr,
)
def test_the_ends_of_the_types_come_back(value: object) -> None:
    assert identical(ValueReader().read(ValuePacker().pack(value)), value)


class Color(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        bytearray(b"x"),
        memoryview(b"x"),
        collections.OrderedDict(a=1),
        collections.defaultdict(int),
        Color.RED,
        Point(1, 2),
        datetime.datetime(2020, 1, 1),
        range(3),
        msgpack.ExtType(1, b"\x90"),
        msgpack.Timestamp(1),
        np.zeros(3),
        np.void(b"abc"),
        ValuePacker,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(value: object) -> None:
    for wrapped in (value, [value], {"a": (1, {"b": [value]})}, object_array([1, value])):
        with pytest.raises(CannotCarry) as caught:
            ValuePacker().pack(wrapped)
        assert type(value).__name__ in caught.value.type_name


def test_a_packer_goes_on_after_a_refusal() -> None:
    packer = ValuePacker()
    with pytest.raises(CannotCarry):
        packer.pack([1, 2, object()])
    assert ValueReader().read(packer.pack([1, (2,)])) == [1, (2,)]


def test_values_that_hold_themselves_are_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    tuple_loop: list[object] = []
    tuple_loop.append((tuple_loop,))
    for value in (loop, tuple_loop):
        with pytest.raises(CannotCarry, match="nest"):
            ValuePacker().pack(value)


@pytest.mark.parametrize(("wrap", "depth"), [(lambda x: [x], 500), (lambda x: (x,), MAX_DEPTH)])
def test_whatever_is_packed_can_be_read_however_deep(wrap: Any, depth: int) -> None:
    value: object = None
    for _ in range(depth):
        value = wrap(value)
    assert repr(ValueReader().read(ValuePacker().pack(value))) == repr(value)


def nested_extension(depth: int) -> bytes:
    data = b"\x90"
    for _ in range(depth):
        data = msgpack.packb([msgpack.ExtType(1, data)])
    return data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x90\x90",
        b"\xdd\xff\xff\xff\xff",
        nested_extension(200),
        msgpack.packb(msgpack.ExtType(0, b"")),
        msgpack.packb(msgpack.ExtType(99, b"")),
        msgpack.packb(msgpack.ExtType(1, b"\xc1")),
        msgpack.packb(msgpack.ExtType(1, b"\x01")),
        msgpack.packb(msgpack.ExtType(2, msgpack.packb([[1]]))),
        msgpack.packb(msgpack.ExtType(5, b"short")),
        msgpack.packb(msgpack.ExtType(6, msgpack.packb(["|O", b"12345678"]))),
        msgpack.packb(msgpack.ExtType(6, msgpack.packb(["<f8", b"1234567"]))),
        msgpack.packb(msgpack.ExtType(6, msgpack.packb(["(2,)<f8", bytes(16)]))),
        msgpack.packb(msgpack.ExtType(6, b"\x00")),
        msgpack.packb(msgpack.ExtType(7, b"\xff")),
        msgpack.packb(msgpack.ExtType(9, msgpack.packb([[2, 2], [1, 2, 3]]))),
        msgpack.packb(msgpack.ExtType(9, msgpack.packb([[-1], [1]]))),
        b"\x81\x90\x01",
    ],
    ids=lambda data: repr(data)[:40],
)
def test_bytes_that_are_no_value_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        ValueReader().read(data)


@given(st.binary(max_size=80))
def test_noise_is_malformed_or_a_value(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        ValueReader().read(data)


@given(values, st.data())
def test_a_damaged_value_is_malformed_or_a_value(value: object, data: st.DataObject) -> None:
    damaged = bytearray(ValuePacker().pack(value))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Malformed):
        ValueReader().read(bytes(damaged))
