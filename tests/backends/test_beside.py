"""What another thread sums beside the caller, and what the caller does where that has not."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from transferqueue.backends.beside import Beside, Sums

if TYPE_CHECKING:
    from collections.abc import Iterator

ME = threading.main_thread().name


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Beside]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (1.9, 9.0, 9.0))
    with Beside() as found:
        yield found


class Made:
    """Who made what, and a way to wait for it."""

    def __init__(self) -> None:
        self.by: dict[int, str] = {}
        self.first = threading.Event()
        self.all = threading.Event()

    def __call__(self, number: int) -> int:
        self.by[number] = threading.current_thread().name
        self.first.set()
        if len(self.by) == 4:
            self.all.set()
        return number * number


def all_ready(sums: Sums[int]) -> None:
    for number in range(4):
        sums.ready(number)


def test_sums_are_made_beside_as_they_become_ready(beside: Beside) -> None:
    made = Made()
    with beside.begin(4, made) as sums:
        sums.ready(0)
        assert made.first.wait(10)
        assert set(made.by) == {0}
        for number in (1, 2, 3):
            sums.ready(number)
        assert made.all.wait(10)
        assert sums.finish() == [0, 1, 4, 9]
    assert ME not in made.by.values()


def test_the_caller_does_not_wait_for_a_thread_that_has_lost_its_core(beside: Beside) -> None:
    """Nor for one that has not begun, for it is at something else."""
    has_begun, may_go_on = threading.Event(), threading.Event()

    def stuck(number: int) -> int:
        if threading.current_thread().name != ME:
            has_begun.set()
            assert may_go_on.wait(10)
        return number * number

    with beside.begin(4, stuck) as sums:
        all_ready(sums)
        assert has_begun.wait(10)
        assert sums.finish() == [0, 1, 4, 9]
    made = Made()
    with beside.begin(4, made) as sums:
        all_ready(sums)
        assert sums.finish() == [0, 1, 4, 9]
    assert set(made.by.values()) == {ME}
    may_go_on.set()


@pytest.mark.parametrize(("num_cores", "load"), [(1, 0.0), (2, 2.0)])
def test_where_no_core_is_to_spare_there_is_no_other_thread(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, load: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    before, made = threading.active_count(), Made()
    with Beside() as beside, beside.begin(4, made) as sums:
        sums.ready(0)
        assert set(made.by) == {0}, "at once, while it is in the caches"
        assert threading.active_count() == before
        assert sums.finish() == [0, 1, 4, 9]


def test_what_failed_half_way_is_left_alone(beside: Beside) -> None:
    made = Made()
    with pytest.raises(OSError, match="gone"), beside.begin(4, made) as sums:
        sums.ready(0)
        raise OSError(5, "gone")
    with beside.begin(2, made) as sums:
        assert sums.finish() == [0, 1]
    assert set(made.by) <= {0, 1}
