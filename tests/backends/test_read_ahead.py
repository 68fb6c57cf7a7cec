"""What is asked of the kernel ahead of a read, and when."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from transferqueue.backends import read_ahead
from transferqueue.backends.mapping import MADV_POPULATE_READ
from transferqueue.backends.read_ahead import CHUNK_BYTES, FROM_BYTES, ReadAhead


class RecordingMapping:
    """Takes down the ranges that it was asked for. ``held`` makes the kernel slow."""

    def __init__(self) -> None:
        self.arena = SimpleNamespace(capacity_bytes=64 * CHUNK_BYTES)
        self.asked: list[tuple[int, int]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def advise(self, address: int, nbytes: int, advice: int) -> bool:
        self.may_answer.wait(10)
        assert advice == MADV_POPULATE_READ
        self.asked.append((address, address + nbytes))
        return True


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead.os, "sched_getaffinity", lambda _pid: {0, 1})


def asked_after(ahead: ReadAhead, mapping: RecordingMapping) -> list[tuple[int, int]]:
    thread = ahead._thread
    if thread is not None:
        thread.join(10)
    asked, mapping.asked = mapping.asked, []
    return asked


def test_whole_chunks_inside_a_view_are_asked_for_in_order_and_once() -> None:
    mapping = RecordingMapping()
    ahead = ReadAhead(mapping)
    ahead.ask(CHUNK_BYTES + 4096, 6 * CHUNK_BYTES)
    chunks = [(k * CHUNK_BYTES, (k + 1) * CHUNK_BYTES) for k in range(2, 7)]
    assert asked_after(ahead, mapping) == chunks
    ahead.ask(CHUNK_BYTES, 7 * CHUNK_BYTES)
    assert asked_after(ahead, mapping) == [
        (CHUNK_BYTES, 2 * CHUNK_BYTES),
        (7 * CHUNK_BYTES, 8 * CHUNK_BYTES),
    ]


def test_small_views_are_left_to_faults() -> None:
    mapping = RecordingMapping()
    ahead = ReadAhead(mapping)
    ahead.ask(0, FROM_BYTES - 1)
    assert asked_after(ahead, mapping) == []


def test_nothing_is_asked_ahead_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead.os, "sched_getaffinity", lambda _pid: {0})
    mapping = RecordingMapping()
    ahead = ReadAhead(mapping)
    ahead.ask(0, 8 * CHUNK_BYTES)
    assert asked_after(ahead, mapping) == []


def test_pages_that_were_dropped_are_asked_for_again() -> None:
    mapping = RecordingMapping()
    ahead = ReadAhead(mapping)
    ahead.ask(0, 8 * CHUNK_BYTES)
    asked_after(ahead, mapping)
    ahead.forget(2 * CHUNK_BYTES + 4096, 3 * CHUNK_BYTES + 4096)
    ahead.ask(0, 8 * CHUNK_BYTES)
    again = [(k * CHUNK_BYTES, (k + 1) * CHUNK_BYTES) for k in (2, 3)]
    assert asked_after(ahead, mapping) == again


def test_close_waits_for_the_call_under_way_and_asks_for_no_more() -> None:
    mapping = RecordingMapping()
    mapping.may_answer.clear()
    ahead = ReadAhead(mapping)
    ahead.ask(0, 8 * CHUNK_BYTES)
    thread = ahead._thread
    assert thread is not None
    threading.Timer(0.05, mapping.may_answer.set).start()
    ahead.close()
    assert not thread.is_alive()
    assert len(mapping.asked) <= 1
    ahead.ask(0, 8 * CHUNK_BYTES)
    assert len(mapping.asked) <= 1
