"""Which shards a client passes over, and for how long."""

from __future__ import annotations

from transferqueue.client.silent_shards import (
    PASS_OVER_AT_MOST_S,
    PASS_OVER_S,
    SilentShards,
    Turn,
)


def test_a_shard_that_was_silent_is_passed_over_for_a_while_and_then_one_request_tries_it() -> None:
    shards = SilentShards()
    assert shards.turn(3, 0.0) is Turn.ASK
    shards.was_silent(3, 1.0)
    assert shards.turn(3, 1.0 + PASS_OVER_S / 2) is Turn.PASS_OVER
    assert shards.turn(4, 1.5) is Turn.ASK
    at_s = 1.0 + PASS_OVER_S
    assert [shards.turn(3, at_s) for _ in range(3)] == [Turn.PROBE, Turn.PASS_OVER, Turn.PASS_OVER]
    shards.answered(3)
    assert shards.turn(3, at_s) is Turn.ASK


def test_one_that_stays_silent_is_tried_ever_more_seldom_up_to_a_bound() -> None:
    shards, now_s, times = SilentShards(), 0.0, []
    for _ in range(8):
        shards.was_silent(0, now_s)
        began_s = now_s
        while shards.turn(0, now_s) is not Turn.PROBE:
            now_s += 0.5
        times.append(now_s - began_s)
    assert times == sorted(times)
    assert times[0] == PASS_OVER_S
    assert times[-1] == PASS_OVER_AT_MOST_S


def test_one_whose_probe_was_given_up_is_tried_again() -> None:
    shards = SilentShards()
    shards.was_silent(0, 0.0)
    assert shards.turn(0, PASS_OVER_S) is Turn.PROBE
    assert shards.is_passed_over(0, PASS_OVER_S)
    assert not shards.is_passed_over(1, PASS_OVER_S)
    assert shards.turn(0, 2 * PASS_OVER_S) is Turn.PROBE
