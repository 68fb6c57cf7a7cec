"""Which chunks have been moved, and where their bytes lie."""

from __future__ import annotations

import numpy as np
import pytest

from transferqueue.errors import InvalidInput, Malformed
from transferqueue.shard.transfers import IncomingPut, OutgoingGet
from transferqueue.wire import chunks
from transferqueue.wire.chunks import Runs


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 16)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_put_knows_where_each_byte_goes() -> None:
    put = IncomingPut([10, 0, 12], ints(1000, 0, 5000))
    assert [(at, bytes(b)) for at, b in put.places(0, [b"0123456789abcdef"])] == [
        (1000, b"0123456789"),
        (5000, b"abcdef"),
    ]
    assert [(at, bytes(b)) for at, b in put.places(1, [b"gh", b"ijkl"])] == [
        (5006, b"gh"),
        (5008, b"ijkl"),
    ]


def test_a_put_is_complete_when_every_chunk_has_come_however_often() -> None:
    put = IncomingPut([40], ints(0))
    for chunk in (2, 0, 0, 2):
        put.note(chunk)
        assert not put.is_complete
    with pytest.raises(InvalidInput, match="1 of 3 chunks"):
        put.refuse_unless_complete()
    put.note(1)
    assert put.is_complete
    put.refuse_unless_complete()


def test_a_put_without_bytes_is_complete_at_once() -> None:
    IncomingPut([0, 0], ints(0, 0)).refuse_unless_complete()


def test_frames_that_are_not_the_chunk_are_malformed() -> None:
    put = IncomingPut([20], ints(0))
    with pytest.raises(Malformed, match="came for"):
        put.places(1, [b"12345"]).__next__()
    with pytest.raises(Malformed, match="no chunk"):
        put.places(2, [b"1234"]).__next__()


def test_a_get_gives_the_address_ranges_of_a_chunk() -> None:
    get = OutgoingGet([Runs(ints(100, 300), ints(10, 10)), Runs(ints(700), ints(8))])
    first, second = get.ranges(0), get.ranges(1)
    assert [(s.tolist(), n.tolist()) for s, n in first] == [([100, 300], [10, 6])]
    assert [(s.tolist(), n.tolist()) for s, n in second] == [([306], [4]), ([700], [8])]
    assert not get.is_complete
    get.note(1)
    get.note(0)
    assert get.is_complete
