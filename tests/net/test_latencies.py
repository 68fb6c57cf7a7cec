"""Counting how long requests took."""

from __future__ import annotations

from transferqueue.net.latencies import BOUNDS_S, Latencies


def test_an_answer_counts_in_the_class_that_its_bound_closes() -> None:
    latencies = Latencies()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[0] * 1.01, BOUNDS_S[-1] * 2):
        latencies.answered("get", seconds)
    report = latencies.report()
    assert report["counts"]["get"] == [2, 1, *[0] * (len(BOUNDS_S) - 2), 1]
    assert report["sums_s"]["get"] == BOUNDS_S[0] * 2.01 + BOUNDS_S[-1] * 2


def test_work_is_counted_apart_from_waiting() -> None:
    latencies = Latencies()
    latencies.handled("claim", 0.001)
    latencies.answered("claim", 20.0)
    report = latencies.report()
    assert (report["busy_s"]["claim"], report["sums_s"]["claim"]) == (0.001, 20.0)
