"""When things that wait or are leased run out."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Deadlines(Generic[Key]):
    """One instant a key. Setting, dropping and asking for the next are O(log keys)."""

    def __init__(self) -> None:
        self._due_s: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._due_s)

    def set(self, key: Key, due_s: float) -> None:
        """The key runs out at this instant, and no longer at another."""
        self._due_s[key] = due_s
        if due_s == math.inf:
            return
        self._pushed += 1
        heapq.heappush(self._heap, (due_s, self._pushed, key))
        if len(self._heap) > 2 * len(self._due_s) + 64:
            self._sweep()

    def drop(self, key: Key) -> None:
        """The key runs out no more."""
        self._due_s.pop(key, None)

    def _sweep(self) -> None:
        """Drop entries that were overtaken: leases are short-lived, their deadlines are not."""
        self._heap = [entry for entry in self._heap if self._due_s.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)

    def next_s(self) -> float | None:
        """The earliest instant at which a key runs out."""
        while self._heap and self._due_s.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_s: float) -> list[Key]:
        """The keys that have run out, earliest first; they are dropped."""
        due: list[Key] = []
        while (next_s := self.next_s()) is not None and next_s <= now_s:
            key = heapq.heappop(self._heap)[2]
            del self._due_s[key]
            due.append(key)
        return due
