"""So many bytes a second, no more. No clock."""

from __future__ import annotations

BURST_S = 0.05


class Throttle:
    """A debt that is paid off with time: closed while it is more than a moment's worth."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_until_s = 0.0

    def count(self, nbytes: int) -> None:
        """So many were sent."""
        self._paid_until_s += nbytes / self._bytes_per_s

    def is_open(self, now_s: float) -> bool:
        if self._paid_until_s < now_s - BURST_S:
            self._paid_until_s = now_s - BURST_S
        return self._paid_until_s <= now_s

    def next_s(self) -> float:
        """When it is open again."""
        return self._paid_until_s
