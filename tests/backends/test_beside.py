"""Two threads share a loop, and one does all of it where it has to."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from transferqueue.backends.beside import Beside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with Beside() as found:
        yield found


def test_each_step_is_made_once_by_two_threads(beside: Beside) -> None:
    """Both are needed: no step ends before two are under way."""
    meeting = threading.Barrier(2, timeout=10)
    made: list[tuple[int, str]] = []

    def step(number: int) -> None:
        meeting.wait()
        made.append((number, threading.current_thread().name))

    beside.share(6, step)
    assert sorted(number for number, _ in made) == [0, 1, 2, 3, 4, 5]
    assert len({name for _, name in made}) == 2
    again: list[int] = []
    beside.share(3, again.append)
    assert sorted(again) == [0, 1, 2]


def test_a_loop_within_another_is_made_by_its_caller_alone(beside: Beside) -> None:
    """As one of another thread is that comes meanwhile."""
    names: list[set[str]] = []

    def inner() -> None:
        found: set[str] = set()
        beside.share(4, lambda _: found.add(threading.current_thread().name))
        names.append(found)

    beside.share(3, lambda _: inner())
    assert [len(found) for found in names] == [1, 1, 1]


def test_on_one_core_there_is_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    before = threading.active_count()
    made: list[int] = []
    with Beside() as beside:
        beside.share(4, made.append)
        assert threading.active_count() == before
    assert made == [0, 1, 2, 3]


def raising(number: int) -> Callable[[int], None]:
    def step(at: int) -> None:
        if at == number:
            raise OSError(5, f"step {at}")

    return step


@pytest.mark.parametrize("number", [0, 1, 7])
def test_what_one_step_raises_its_caller_hears(beside: Beside, number: int) -> None:
    with pytest.raises(OSError, match=f"step {number}"):
        beside.share(8, raising(number))
    made: list[int] = []
    beside.share(2, made.append)
    assert sorted(made) == [0, 1]
