"""How fast this machine is just now, against itself when nobody else uses it.

CPU time of one piece of work doubles when the other thread of the core, or its cache, is busy with
somebody else's. A simulation of minutes would show that as load of the coordinator.
"""

from __future__ import annotations

import time

import numpy as np

BEGIN_TIMES, TIMES = 400, 5


class Yardstick:
    """A fixed piece of work, Python and small arrays, as a control plane does."""

    def __init__(self) -> None:
        self._rows = np.arange(4096)
        self._best_s = min(self._once() for _ in range(BEGIN_TIMES))

    def slowness(self) -> float:
        """1 at its fastest, 2 when everything takes twice as long."""
        now_s = sorted(self._once() for _ in range(TIMES))[TIMES // 2]
        self._best_s = min(self._best_s, now_s)
        return now_s / self._best_s

    def _once(self) -> float:
        before_s = time.thread_time()
        for step in range(8):
            rows = self._rows[step::2]
            np.unique(rows[rows % 3 == 0])
            dict(zip(map(str, range(40)), range(40), strict=True))
        return time.thread_time() - before_s
