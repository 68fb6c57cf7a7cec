"""How much of a call's time is left for its next step."""

from __future__ import annotations

import time

LAST_STEP_S = 2.0


class Deadline:
    """Begins to run when it is made."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Seconds from now on, never negative."""
        return max(0.0, self._end_s - time.monotonic())

    def last_step_s(self) -> float:
        """As `left_s`, but never too little for a step that ends what has come so far: a put that
        got its space in the last moment is committed, not failed for want of a millisecond."""
        return max(LAST_STEP_S, self.left_s())
