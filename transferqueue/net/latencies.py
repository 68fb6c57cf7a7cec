"""How long requests took, by operation: what a server counts of itself. No clock, no socket."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
                   10.0, 30.0, 60.0)  # fmt: skip
"""Where the classes end, each bound among the class below it. A put of one sample takes about
0.5 ms here, a claim may wait for minutes."""


class Latencies:
    """Counts of one server. They only rise, and begin again with its process."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}
        self._busy_s: dict[str, float] = {}

    def answered(self, operation: str, seconds: float) -> None:
        """A request was answered so long after it came, waiting included."""
        counts = self._counts.get(operation)
        if counts is None:
            counts = self._counts[operation] = [0] * (len(BOUNDS_S) + 1)
            self._sums_s[operation] = 0.0
        counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sums_s[operation] += seconds

    def handled(self, operation: str, seconds: float) -> None:
        """The one thread of the server was busy with a request for so long."""
        self._busy_s[operation] = self._busy_s.get(operation, 0.0) + seconds

    def report(self) -> dict[str, Any]:
        """Plain values: by operation the answers in each class (the last one is of those beyond
        the last bound), the seconds until they were given, and the seconds of work on them."""
        return {
            "bounds_s": list(BOUNDS_S),
            "counts": {operation: list(counts) for operation, counts in self._counts.items()},
            "sums_s": dict(self._sums_s),
            "busy_s": dict(self._busy_s),
        }
