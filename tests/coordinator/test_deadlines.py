"""Deadlines against a plain dict."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from transferqueue.coordinator.deadlines import Deadlines

ops = st.lists(st.tuples(st.integers(0, 8), st.one_of(st.none(), st.integers(0, 50))), max_size=200)


@given(ops=ops, now_s=st.integers(0, 50))
def test_what_is_due_comes_once_and_earliest_first(
    ops: list[tuple[int, int | None]], now_s: int
) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for key, due_s in ops:
        if due_s is None:
            deadlines.drop(key)
            model.pop(key, None)
        else:
            deadlines.set(key, due_s)
            model[key] = due_s
    assert deadlines.next_s() == min(model.values(), default=None)
    due = deadlines.pop_due(now_s)
    assert sorted(due) == sorted(key for key, due_s in model.items() if due_s <= now_s)
    assert [model[key] for key in due] == sorted(model[key] for key in due)
    assert deadlines.pop_due(now_s) == []
    assert len(deadlines) == len(model) - len(due)


def test_a_key_without_an_end_is_never_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("forever", math.inf)
    assert deadlines.next_s() is None
    assert deadlines.pop_due(1e18) == []


def test_leases_that_end_early_leave_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for claim_id in range(10_000):
        deadlines.set(claim_id, 1e9)
        deadlines.drop(claim_id)
    assert len(deadlines._heap) < 200
