"""Memory of a result is there before what is to fill it comes."""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np
import pytest

from tests.waiting import wait_until
from transferqueue.client import touch_ahead
from transferqueue.client.touch_ahead import FROM_BYTES, touched_ahead

PAGE = mmap.PAGESIZE
NUM_BYTES = 16 << 20


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touch_ahead.os, "sched_getaffinity", lambda _pid: {0, 1})


@pytest.fixture
def fresh() -> np.ndarray:
    """Memory that nobody has written to."""
    return np.frombuffer(mmap.mmap(-1, NUM_BYTES, mmap.MAP_PRIVATE), np.uint8)


def num_present(block: np.ndarray) -> int:
    """Pages of the block that the kernel has given."""
    fd = os.open("/proc/self/pagemap", os.O_RDONLY)
    try:
        found = os.pread(fd, len(block) // PAGE * 8, block.ctypes.data // PAGE * 8)
    finally:
        os.close(fd)
    return int((np.frombuffer(found, np.uint64) >> np.uint64(63)).sum())


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_all_of_it_is_given_though_nobody_writes(fresh: np.ndarray) -> None:
    assert num_present(fresh) == 0
    with touched_ahead([fresh]):
        wait_until(lambda: num_present(fresh) == NUM_BYTES // PAGE)
    assert not fresh.any()


def test_what_was_written_stays(fresh: np.ndarray) -> None:
    fresh[:] = 7
    fresh[-1] = 8
    with touched_ahead([fresh[5:-5]]):
        wait_until(lambda: "transferqueue-touch-ahead" not in threads())
    assert (fresh[:-1] == 7).all()
    assert fresh[-1] == 8


def test_it_ends_with_what_it_is_beside(fresh: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    is_asked, may_answer = threading.Event(), threading.Event()

    def slow(at: int, nbytes: int, advice: int) -> bool:
        asked.append((at, nbytes))
        is_asked.set()
        return may_answer.wait(10)

    monkeypatch.setattr(touch_ahead, "advise", slow)
    with pytest.raises(ConnectionResetError), touched_ahead([fresh]):
        assert is_asked.wait(10)
        threading.Timer(0.05, may_answer.set).start()
        raise ConnectionResetError("the socket")
    assert len(asked) == 1
    assert "transferqueue-touch-ahead" not in threads()


def test_only_whole_pages_inside_the_blocks_are_asked_for_and_in_order(
    fresh: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(touch_ahead, "advise", lambda at, nbytes, _: not asked.append((at, nbytes)))
    blocks = [fresh[100 : 12 << 20], fresh[13 << 20 :], fresh[:50]]
    with touched_ahead(blocks):
        wait_until(lambda: "transferqueue-touch-ahead" not in threads())
    start = fresh.ctypes.data
    ends = [at + nbytes for at, nbytes in asked]
    assert asked[0][0] == start + PAGE
    assert start + (12 << 20) in ends
    assert start + (13 << 20) in [at for at, _ in asked]
    assert ends[-1] == start + NUM_BYTES
    assert sum(nbytes for _, nbytes in asked) == (15 << 20) - PAGE
    assert max(nbytes for _, nbytes in asked) <= 2 << 20
    assert asked == sorted(asked)


def test_a_kernel_that_refuses_is_asked_once(
    fresh: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(touch_ahead, "advise", lambda at, *_: bool(asked.append(at)))
    with touched_ahead([fresh]):
        wait_until(lambda: "transferqueue-touch-ahead" not in threads())
    assert len(asked) == 1


def test_little_memory_and_a_single_core_are_left_alone(
    fresh: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    with touched_ahead([fresh[: FROM_BYTES // 2], fresh[: FROM_BYTES // 2 - 1]]):
        assert "transferqueue-touch-ahead" not in threads()
    monkeypatch.setattr(touch_ahead.os, "sched_getaffinity", lambda _pid: {0})
    with touched_ahead([fresh]):
        assert "transferqueue-touch-ahead" not in threads()
    assert num_present(fresh) == 0
