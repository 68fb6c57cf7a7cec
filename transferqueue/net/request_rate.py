"""How many requests a second somebody may begin. No clock here."""

from __future__ import annotations


class RequestRate:
    """A token bucket: ``per_s`` requests a second in the long run, ``burst`` of them at once."""

    def __init__(self, *, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Whether one more may begin now. One that may not costs nothing."""
        if self._at_s is not None:
            passed_s = max(0.0, now_s - self._at_s)
            self._left = min(self._burst, self._left + passed_s * self._per_s)
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
