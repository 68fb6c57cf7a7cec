"""A run as a trace that Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open. Pure.

One track a process, with what it was doing and, between, that it was idle; arrows follow some
samples from stage to stage. The format is Chrome's "Trace Event Format": complete events (``X``)
and flow events (``s``, ``t``, ``f``), times in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workers.spans import Span

FOLLOWED_SAMPLES = 64
"""Arrows of so many samples: more are a thicket."""

SHORTEST_IDLE_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyTime:
    """Of one process, from the first span of any process to the last."""

    busy_s: float
    idle_s: float

    @property
    def idle_share(self) -> float:
        total_s = self.busy_s + self.idle_s
        return self.idle_s / total_s if total_s else 0.0


def busy_time(spans: Sequence[Span], start_s: float, end_s: float) -> BusyTime:
    """How much of an interval the spans cover, overlaps counted once."""
    busy_s, covered_to_s = 0.0, start_s
    for span in sorted(spans, key=lambda one: one.start_s):
        from_s, to_s = max(span.start_s, covered_to_s), min(span.end_s, end_s)
        if to_s > from_s:
            busy_s += to_s - from_s
            covered_to_s = to_s
    return BusyTime(busy_s=busy_s, idle_s=max(0.0, end_s - start_s - busy_s))


def chrome_trace(
    by_process: Mapping[str, Sequence[Span]], *, followed_samples: int = FOLLOWED_SAMPLES
) -> dict[str, Any]:
    """Spans by process as a JSON object."""
    every = [span for spans in by_process.values() for span in spans]
    start_s = min((span.start_s for span in every), default=0.0)
    end_s = max((span.end_s for span in every), default=0.0)
    events: list[dict[str, Any]] = []
    totals: dict[str, dict[str, float]] = {}
    for pid, (process, spans) in enumerate(by_process.items(), start=1):
        events.append(_named(pid, process))
        events += [_event(pid, span, start_s) for span in spans]
        events += [_idle(pid, *gap, start_s) for gap in _gaps(spans, start_s, end_s)]
        time = busy_time(spans, start_s, end_s)
        totals[process] = {"busy_s": round(time.busy_s, 6), "idle_s": round(time.idle_s, 6)}
    events += _flows(by_process, start_s, followed_samples)
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"processes": totals}}


def _micros(at_s: float, start_s: float) -> float:
    return round((at_s - start_s) * 1e6, 1)


def _named(pid: int, process: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}}


def _event(pid: int, span: Span, start_s: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "busy",
        "name": span.name,
        "pid": pid,
        "tid": 0,
        "ts": _micros(span.start_s, start_s),
        "dur": _micros(span.end_s, span.start_s),
        "args": {"rows": span.num_rows},
    }


def _idle(pid: int, from_s: float, to_s: float, start_s: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "idle",
        "name": "idle",
        "cname": "grey",
        "pid": pid,
        "tid": 0,
        "ts": _micros(from_s, start_s),
        "dur": _micros(to_s, from_s),
    }


def _gaps(spans: Sequence[Span], start_s: float, end_s: float) -> list[tuple[float, float]]:
    """Where no span is, in order."""
    gaps, at_s = [], start_s
    for span in sorted(spans, key=lambda one: one.start_s):
        if span.start_s - at_s >= SHORTEST_IDLE_S:
            gaps.append((at_s, span.start_s))
        at_s = max(at_s, span.end_s)
    if end_s - at_s >= SHORTEST_IDLE_S:
        gaps.append((at_s, end_s))
    return gaps


def _flows(
    by_process: Mapping[str, Sequence[Span]], start_s: float, num_samples: int
) -> list[dict[str, Any]]:
    """Arrows of some samples, evenly chosen of all, through every span that they were in."""
    uids = [span.uids for spans in by_process.values() for span in spans if len(span.uids)]
    if not uids or not num_samples:
        return []
    known = np.unique(np.concatenate(uids))
    chosen = known[np.linspace(0, len(known) - 1, min(num_samples, len(known))).astype(int)]
    stops: dict[int, list[tuple[float, int]]] = {int(uid): [] for uid in chosen}
    for pid, spans in enumerate(by_process.values(), start=1):
        for span in spans:
            for uid in np.intersect1d(span.uids, chosen).tolist():
                stops[uid].append(((span.start_s + span.end_s) / 2, pid))
    return [event for uid, at in stops.items() for event in _arrow(uid, sorted(at), start_s)]


def _arrow(uid: int, stops: list[tuple[float, int]], start_s: float) -> list[dict[str, Any]]:
    last = len(stops) - 1
    return [
        {
            "ph": "s" if place == 0 else "f" if place == last else "t",
            "cat": "sample",
            "name": "sample",
            "id": str(uid),
            "pid": pid,
            "tid": 0,
            "ts": _micros(at_s, start_s),
            **({"bp": "e"} if place == last else {}),
        }
        for place, (at_s, pid) in enumerate(stops)
        if last
    ]
