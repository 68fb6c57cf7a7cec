"""A run as a trace: what the viewers need is there, and idle time is what no span covers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from controller.timeline import busy_time, chrome_trace
from workers.spans import Span, SpanLog


def span(name: str, start_s: float, end_s: float, *uids: int) -> Span:
    return Span(
        name=name,
        start_s=start_s,
        end_s=end_s,
        num_rows=len(uids),
        uids=np.array(uids, dtype=np.int64),
    )


RUN = {
    "rollout": [
        span("rollout.generate", 100.0, 101.0, 1, 2),
        span("rollout.generate", 101.5, 102.0, 2),
    ],
    "reward": [span("reward.score", 101.2, 101.4, 1), span("reward.score", 102.0, 102.25, 2)],
}


def events(kind: str, category: str | None = None) -> list[dict[str, object]]:
    return [
        event
        for event in chrome_trace(RUN)["traceEvents"]
        if event["ph"] == kind and category in (None, event.get("cat"))
    ]


def test_processes_are_tracks_with_their_names() -> None:
    names = {event["pid"]: event["args"]["name"] for event in events("M")}  # type: ignore[index]
    assert names == {1: "rollout", 2: "reward"}


def test_times_are_microseconds_from_the_first_span() -> None:
    first = events("X", "busy")[0]
    assert (first["ts"], first["dur"], first["name"]) == (0.0, 1e6, "rollout.generate")
    assert first["args"] == {"rows": 2}


def test_every_moment_of_a_process_is_busy_or_idle() -> None:
    for pid in (1, 2):
        total = sum(float(e["dur"]) for e in events("X") if e["pid"] == pid)  # type: ignore[arg-type]
        assert total == pytest.approx(2.25e6)
    totals = chrome_trace(RUN)["otherData"]["processes"]
    assert totals["reward"]["busy_s"] == pytest.approx(0.45)
    assert totals["reward"]["idle_s"] == pytest.approx(1.8)


def test_arrows_follow_a_sample_through_its_stages_in_time() -> None:
    second = [
        e for e in chrome_trace(RUN)["traceEvents"] if e.get("cat") == "sample" and e["id"] == "2"
    ]
    assert [e["ph"] for e in second] == ["s", "t", "f"]
    assert [e["pid"] for e in second] == [1, 1, 2]
    assert [e["ts"] for e in second] == sorted(e["ts"] for e in second)


def test_of_many_samples_a_few_are_followed() -> None:
    many = {"a": [span("x", 0, 1, *range(1000))], "b": [span("y", 1, 2, *range(1000))]}
    trace = chrome_trace(many, followed_samples=10)
    assert len({e["id"] for e in trace["traceEvents"] if e.get("cat") == "sample"}) == 10


def test_the_trace_is_json_also_of_nothing() -> None:
    assert json.loads(json.dumps(chrome_trace(RUN))) == chrome_trace(RUN)
    assert chrome_trace({})["traceEvents"] == []


def test_spans_that_overlap_are_busy_once() -> None:
    time = busy_time([span("a", 0, 2), span("b", 1, 3), span("c", 5, 9)], 0.0, 6.0)
    assert (time.busy_s, time.idle_s) == (4.0, 2.0)
    assert time.idle_share == pytest.approx(1 / 3)


def test_a_log_gives_its_spans_once_and_keeps_so_many() -> None:
    log = SpanLog(max_spans=2)
    for name in ("a", "b", "c"):
        with log.span(name):
            pass
    assert [one.name for one in log.take()] == ["b", "c"]
    assert log.take() == []
