"""The steps of a checkpoint over several shards, one order after the other."""

from __future__ import annotations

from typing import Any

from transferqueue.coordinator.checkpoint_round import SETTLE_S, Phase, Round
from transferqueue.wire import ops

NOW_S = 100.0


def held(next_event: int = 1, **parts: list[str]) -> dict[str, Any]:
    """What a shard answers when it is held."""
    names = {"under_way": [], "committed": [], "given_up": [], **parts}
    return {"next_event": next_event, "parts": names}


def holding(*slots: int) -> Round:
    made = Round(slots)
    for slot in slots:
        made.answered(slot, ops.PREPARE, {})
    orders = made.advance({}, NOW_S)
    assert [(o.slot, o.step) for o in orders] == [(slot, ops.HOLD) for slot in slots]
    return made


def left_out(orders: list[Any]) -> dict[int, list[str]]:
    assert {order.step for order in orders} == {ops.CUT}
    return {order.slot: order.body["leave_out"] for order in orders}


def test_nobody_is_held_before_all_have_seen_the_folder() -> None:
    made = Round([0, 1])
    made.answered(0, ops.PREPARE, {})
    assert made.advance({}, NOW_S) == []
    assert made.phase is Phase.PREPARING


def test_the_cut_comes_when_all_are_held_and_all_that_they_told_was_heard() -> None:
    made = holding(0, 1)
    made.answered(0, ops.HOLD, held(5))
    assert made.advance({0: 5, 1: 9}, NOW_S) == []
    made.answered(1, ops.HOLD, held(9))
    assert made.advance({0: 4, 1: 9}, NOW_S) == []
    assert left_out(made.advance({0: 5, 1: 9}, NOW_S)) == {0: [], 1: []}
    assert made.phase is Phase.WRITING


def test_a_part_that_is_under_way_while_another_is_in_is_let_pass_and_waited_for() -> None:
    made = holding(0, 1, 2)
    made.answered(0, ops.HOLD, held(committed=["a", "b"]))
    made.answered(1, ops.HOLD, held(under_way=["a", "c"]))
    made.answered(2, ops.HOLD, held(committed=["b"], under_way=["c"]))
    orders = made.advance({0: 1, 1: 1, 2: 1}, NOW_S)
    assert [(o.slot, o.step, o.body) for o in orders] == [(1, ops.PASS, {"names": ["a"]})]
    assert made.advance({0: 1, 1: 1, 2: 1}, NOW_S) == []
    made.answered(1, ops.HOLD, held(2, committed=["a"], under_way=["c"]))
    assert made.advance({0: 1, 1: 1, 2: 1}, NOW_S) == []  # of the part nothing was heard yet
    assert left_out(made.advance({0: 1, 1: 2, 2: 1}, NOW_S)) == {0: [], 1: [], 2: []}


def test_a_put_that_was_given_up_on_one_shard_is_left_out_on_the_others() -> None:
    made = holding(0, 1)
    made.answered(0, ops.HOLD, held(committed=["a", "b"]))
    made.answered(1, ops.HOLD, held(given_up=["a"], committed=["b"]))
    assert left_out(made.advance({0: 1, 1: 1}, NOW_S)) == {0: ["a"], 1: []}


def test_a_put_whose_client_was_killed_between_its_commits_is_left_out_after_a_while() -> None:
    made = holding(0, 1)
    made.answered(0, ops.HOLD, held(committed=["a"]))
    made.answered(1, ops.HOLD, held(under_way=["a"]))
    assert [o.step for o in made.advance({0: 1, 1: 1}, NOW_S)] == [ops.PASS]
    assert made.settle_until_s == NOW_S + SETTLE_S
    assert made.advance({0: 1, 1: 1}, NOW_S + SETTLE_S / 2) == []
    again = made.advance({0: 1, 1: 1}, NOW_S + SETTLE_S)
    assert [(o.slot, o.step) for o in again] == [(1, ops.HOLD)]
    assert made.settle_until_s is None
    made.answered(1, ops.HOLD, held(under_way=["a"]))
    assert left_out(made.advance({0: 1, 1: 1}, NOW_S + SETTLE_S)) == {0: ["a"], 1: []}


def test_it_is_saved_when_every_shard_has_written() -> None:
    made = holding(0)
    made.answered(0, ops.HOLD, held())
    made.advance({0: 1}, NOW_S)
    assert not made.is_saved
    file = {"name": "f", "nbytes": 0, "crc32": 0}
    saved = {"slot": 0, "rows": file, "cells": file, "num_rows": 0, "extent_bytes": 0}
    made.answered(0, ops.CUT, {"saved": {**saved, "stretches": []}})
    assert made.is_saved
    assert made.advance({0: 1}, NOW_S) == []


def test_who_has_not_answered_is_known_at_every_step() -> None:
    made = Round([0, 1])
    made.answered(1, ops.PREPARE, {})
    assert made.unanswered == [0]
    made = holding(0, 1)
    assert made.unanswered == [0, 1]
    made.answered(0, ops.HOLD, held(committed=["a"]))
    made.answered(1, ops.HOLD, held(under_way=["a"]))
    made.advance({0: 1, 1: 1}, NOW_S)
    assert made.unanswered == [1]
    made.answered(1, ops.HOLD, held(committed=["a"]))
    made.advance({0: 1, 1: 1}, NOW_S)
    assert made.unanswered == [0, 1]
