"""Wire format v1: messages, arrays and errors come back; other bytes cost nothing."""

from __future__ import annotations

import contextlib
import math
import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from transferqueue import errors
from transferqueue.errors import (
    InvalidInput,
    Malformed,
    NotReady,
    RemoteError,
    TooLarge,
    TransferQueueError,
    UnknownField,
    VersionMismatch,
    WireError,
)
from transferqueue.wire.format import (
    HEADER_MAX_BYTES,
    PREAMBLE,
    Message,
    decode_error,
    decode_message,
    encode_error,
    encode_message,
    pack_array,
    unpack_array,
    unpack_plain,
)

texts = st.text(st.characters(), max_size=10)  # with lone surrogates
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | texts
    | st.binary(max_size=10),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(texts, children, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(texts, plain, max_size=5)


@given(bodies, st.lists(st.binary(max_size=20), max_size=4), st.integers(0, 2**64 - 1))
def test_a_message_comes_back(body: dict[str, object], frames: list[bytes], number: int) -> None:
    sent = Message(op="put", request_id=number, body=body, frames=frames)
    assert decode_message(encode_message(sent)) == sent


def test_payload_frames_are_passed_on_and_not_copied() -> None:
    payload = memoryview(bytearray(100))
    frames = encode_message(Message(op="put", frames=[payload]))
    assert frames[1] is payload
    assert decode_message(frames).frames[0] is payload


def test_numpy_scalars_and_tuples_travel_as_plain_values() -> None:
    body = {"n": np.int64(3), "x": np.float32(0.5), "b": np.bool_(True), "t": (1, 2)}
    received = decode_message(encode_message(Message(op="x", body=body))).body
    assert received == {"n": 3, "x": 0.5, "b": True, "t": [1, 2]}
    assert type(received["n"]) is int


@pytest.mark.parametrize(
    "body",
    [{"x": object()}, {"x": {1, 2}}, {"x": 2**64}, {"x": {3: 1}}, {"x": [[{3: 1}]]}, {3: 1}],
    ids=str,
)
def test_a_body_that_is_not_plain_is_refused_where_it_is_sent(body: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        encode_message(Message(op="x", body=body))


def test_a_header_over_the_cap_is_refused_on_both_sides() -> None:
    with pytest.raises(TooLarge, match="'put' has 8,388,6"):
        encode_message(Message(op="put", body={"x": bytes(HEADER_MAX_BYTES)}))
    with pytest.raises(TooLarge):
        decode_message([PREAMBLE + bytes(HEADER_MAX_BYTES)])


def header(*parts: object) -> bytes:
    return PREAMBLE + msgpack.packb(list(parts))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"T"],
        [PREAMBLE],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],
        [b"TQ\x01\x01" + header("op", 1, 0, {})[4:]],
        [header("op", 1, 0, {}) + b"\0"],
        [header("op", 1, 0, {})[:-1]],
        [header("op", 1, 1, {})],
        [header("op", 1, 0, {}), b"extra"],
        [header("op", 1, True, {}), b"extra"],
        [header("op", -1, 0, {})],
        [header("op", 1.0, 0, {})],
        [header("op", True, 0, {})],
        [header("", 1, 0, {})],
        [header("o" * 65, 1, 0, {})],
        [header(b"op", 1, 0, {})],
        [header("op", 1, 0, [])],
        [header("op", 1, 0, {1: 2})],
        [header("op", 1, 0)],
        [header("op", 1, 0, {"x": msgpack.ExtType(5, b"abc")})],
        [PREAMBLE + b"\x94\xa1x\x01\x00\x81\xa1\xff\x01"],
        [PREAMBLE + b"\x91" * 600 + b"\x00"],
        [PREAMBLE + b"\xc1"],
    ],
    ids=lambda frames: repr(frames)[:60],
)
def test_bytes_that_are_no_message_are_malformed(frames: list[bytes]) -> None:
    with pytest.raises(Malformed):
        decode_message(frames)


def test_another_version_is_told_from_noise() -> None:
    with pytest.raises(VersionMismatch, match="speaks wire format v2, this side v1"):
        decode_message([b"TQ\x02\x00whatever"])


@given(st.lists(st.binary(max_size=100), max_size=3))
def test_noise_raises_wire_errors_only(frames: list[bytes]) -> None:
    for attempt in (frames, [PREAMBLE + frame for frame in frames]):
        with pytest.raises(WireError):
            decode_message(attempt)


@given(bodies, st.data())
def test_a_damaged_message_raises_wire_errors_only(
    body: dict[str, object], data: st.DataObject
) -> None:
    damaged = bytearray(encode_message(Message(op="put", body=body))[0])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        decode_message([bytes(damaged)])


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\x7f\xff\xff\xff" * 100,  # arrays of 2**31 in arrays of 2**31 ...
        b"\xdd\x00\x0f\x00\x00" * 500 + bytes(1 << 20),  # ... each within the size of the frame
        b"\xdf\x7f\xff\xff\xff" * 100,
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
    ],
    ids=["arrays", "small arrays", "maps", "str", "ext"],
)
def test_claimed_sizes_are_checked_before_anything_is_allocated(bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            unpack_plain(bomb)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


index_dtypes = st.sampled_from(["?", "i1", "<i2", "<i4", "<i8", "u1", "<u4", "<u8", "<f4", ">i4"])


@given(index_dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0))))
def test_an_array_comes_back(array: np.ndarray) -> None:
    desc, frame = pack_array(array)
    back = unpack_array(desc, bytes(frame))
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    np.testing.assert_array_equal(back, array)


def test_an_array_is_a_view_on_both_sides() -> None:
    array = np.arange(10)
    desc, frame = pack_array(array)
    assert np.shares_memory(np.frombuffer(frame, np.uint8), array)
    assert np.shares_memory(unpack_array(desc, frame), array)
    strided = np.arange(10)[::-2]
    assert unpack_array(*pack_array(strided)).tolist() == strided.tolist()


@pytest.mark.parametrize(
    "desc",
    [
        None,
        ["<i8"],
        ["<i8", [2]],
        ["<i8", [-1]],
        ["<i8", [1.0]],
        ["<i8", 1],
        ["<i8", [1 << 62, 4]],
        ["|O", [1]],
        ["<U2", [1]],
        ["i8", [1]],
        [["<i8"], [1]],
        ["<i8", [1] * 33],
    ],
    ids=str,
)
def test_an_array_that_does_not_fit_its_frame_is_malformed(desc: object) -> None:
    with pytest.raises(Malformed):
        unpack_array(desc, bytes(8))


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.zeros(1, "c8")])
def test_an_array_of_another_kind_is_not_sent(array: np.ndarray) -> None:
    with pytest.raises(InvalidInput):
        pack_array(array)


def over_the_wire(error: BaseException) -> TransferQueueError:
    message = Message(op="error", body=encode_error(error))
    return decode_error(decode_message(encode_message(message)).body)


def test_an_error_arrives_as_itself() -> None:
    sent = NotReady(8, 3, {"rewards": 5}, 30.0)
    received = over_the_wire(sent)
    assert type(received) is NotReady
    assert received.args == sent.args
    assert str(received) == str(sent)
    assert isinstance(over_the_wire(UnknownField("x", ["y"])), LookupError)


def test_an_error_of_a_class_unknown_here_keeps_its_text() -> None:
    class FromTheFuture(TransferQueueError):
        pass

    received = over_the_wire(FromTheFuture("the moon is full"))
    assert type(received) is RemoteError
    assert str(received) == "FromTheFuture: the moon is full"


def test_a_foreign_exception_arrives_as_a_remote_error() -> None:
    assert str(over_the_wire(ZeroDivisionError("by zero"))) == "ZeroDivisionError: by zero"
    assert isinstance(over_the_wire(KeyboardInterrupt()), RemoteError)


def test_an_argument_that_cannot_travel_does_not_keep_the_error_back() -> None:
    received = over_the_wire(InvalidInput("bad value", {1: object()}, math))
    assert type(received) is InvalidInput
    assert received.args[0] == "bad value"


@given(st.dictionaries(st.sampled_from(["cls", "args", "message", "x"]), plain))
def test_any_error_body_makes_an_error(body: dict[str, object]) -> None:
    assert isinstance(decode_error(body), TransferQueueError)
    str(decode_error(body))


@given(st.sampled_from(sorted(vars(errors))), st.lists(plain, max_size=6))
def test_any_arguments_make_an_error_that_can_be_shown(name: str, args: list[object]) -> None:
    error = decode_error({"cls": name, "args": args, "message": "m"})
    assert isinstance(error, TransferQueueError)
    str(error)
