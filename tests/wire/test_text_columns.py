"""Columns of strings, short and long: the same cells, whoever writes or reads them."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.errors import Malformed
from transferqueue.wire.cells import ObjectPolicy
from transferqueue.wire.columns import text
from transferqueue.wire.columns.objects import decode_objects, encode_objects
from transferqueue.wire.columns.text import LONG_BYTES, pack_text, read_text

SIZES = [0, 1, 31, 32, 255, 256, 65535, 65536, 200_000]
"""Both sides of every length at which the header changes."""


def msgpack_cells(values: list[str]) -> bytes:
    return b"".join(msgpack.packb(value, unicode_errors="surrogatepass") for value in values)


def bounds(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum(lengths)
    return ends - lengths, ends


@pytest.mark.parametrize("letter", ["a", "é", "語", "🦜", "\ud800"])
def test_long_texts_are_the_cells_that_msgpack_writes_and_come_back(letter: str) -> None:
    values = [letter * size for size in SIZES]
    payload, lengths = pack_text(values)
    assert int(lengths.sum()) >= LONG_BYTES * len(values)
    assert payload.tobytes() == msgpack_cells(values)
    assert read_text(payload, *bounds(lengths)) == values


@given(st.lists(st.text(st.characters(codec=None), max_size=60), min_size=1, max_size=8))
def test_any_texts_are_the_same_cells_by_either_way(values: list[str]) -> None:
    short, short_lengths = pack_text(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "LONG_BYTES", 0)
        long, long_lengths = pack_text(values)
        back = read_text(long, *bounds(long_lengths))
    assert short.tobytes() == long.tobytes()
    assert short_lengths.tolist() == long_lengths.tolist()
    assert back == values


def test_short_texts_are_left_to_the_parser() -> None:
    payload, lengths = pack_text(["abc"] * 10)
    assert read_text(payload, *bounds(lengths)) is None


def test_long_texts_in_another_order_and_with_absent_rows_come_back() -> None:
    values = [chr(97 + row) * 5000 for row in range(6)]
    column = encode_objects("x", values, (), ObjectPolicy.PLAIN)
    assert column.lengths is not None
    starts, ends = bounds(column.lengths)
    order = [4, 1, 5]
    payload = np.concatenate([column.payload[starts[row] : ends[row]] for row in order])
    lengths = np.array([5003, 0, 5003, 5003], dtype=np.int64)
    back = decode_objects("x", column.spec, payload, lengths, ObjectPolicy.PLAIN)
    assert back.tolist() == [values[4], None, values[1], values[5]]


@pytest.mark.parametrize("place", [0, 1, 2], ids=["kind", "size, high", "size, low"])
def test_a_header_that_does_not_say_what_is_there_is_malformed(place: int) -> None:
    column = encode_objects("x", ["a" * 5000] * 3, (), ObjectPolicy.PLAIN)
    payload = column.payload.copy()
    payload[5003 + place] ^= 0x05
    with pytest.raises(Malformed):
        decode_objects("x", column.spec, payload, column.lengths, ObjectPolicy.PLAIN)


def test_bytes_that_are_not_utf8_are_malformed() -> None:
    column = encode_objects("x", ["a" * 5000] * 3, (), ObjectPolicy.PLAIN)
    payload = column.payload.copy()
    payload[6000] = 0xFF
    with pytest.raises(Malformed, match="UnicodeDecodeError"):
        decode_objects("x", column.spec, payload, column.lengths, ObjectPolicy.PLAIN)


def test_a_column_of_long_texts_and_others_comes_back() -> None:
    values: list[object] = ["a" * 5000, None, 3, b"b" * 5000, "é" * 5000]
    column = encode_objects("x", values, (), ObjectPolicy.PLAIN)
    assert column.lengths is not None
    back = decode_objects("x", column.spec, column.payload, column.lengths, ObjectPolicy.PLAIN)
    assert back.tolist() == values
