"""How much of a call's time is left for its next step."""

from __future__ import annotations

import time


class Deadline:
    """Begins to run when it is made."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds from now on, never negative."""
        return max(0.0, self._end_s - time.monotonic())
