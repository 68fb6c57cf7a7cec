"""Room of a file that nobody needs now, and when the file system has it back. No file, no clock.

Room that is given back at once has to be asked for again by the next put, and new pages cost as
much again as writing to those that are there. So what was freed stays the file's for a while: the
next ranges that are given out there find it, and what nobody took in ``keep_s`` goes back. So does,
the oldest first, what is more than may be kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from transferqueue.backends.parting import without

if TYPE_CHECKING:
    from collections.abc import Iterable

Range = tuple[int, int]


class KeptRoom:
    """Ranges that are free and have room, as start and end, which are never empty.

    Invariant: they are disjoint, and ``nbytes`` is how large they are together.
    """

    def __init__(self, keep_s: float) -> None:
        self.keep_s = keep_s
        self.nbytes = 0
        self._batches: list[tuple[float, _Ranges]] = []  # the oldest first

    def keep(self, ranges: Iterable[Range], now_s: float) -> None:
        """These are free from now on. None of them is here yet."""
        step_s = self.keep_s / 4  # so there are few batches, however often some come
        if not self._batches or now_s > self._batches[-1][0] + step_s:
            self._batches.append((now_s, _Ranges()))
        batch = self._batches[-1][1]
        for start, end in ranges:
            batch.add(start, end)
            self.nbytes += end - start
        if not len(batch):
            self._batches.pop()

    def take(self, start: int, end: int) -> list[Range]:
        """This range is given out. Returns which parts of it had no room here."""
        found: list[Range] = []
        for _, batch in self._batches:
            found += batch.take(start, end)
        self.nbytes -= sum(b - a for a, b in found)
        self._batches = [batch for batch in self._batches if len(batch[1])]
        return without((start, end), sorted(found))

    def take_surplus(self, most_bytes: int) -> list[Range]:
        """What is to be given back so that no more than this is kept."""
        given: list[Range] = []
        while self.nbytes > most_bytes:
            given.append(self._take_first(self.nbytes - most_bytes))
        return given

    def take_old(self, now_s: float, most_bytes: int) -> list[Range]:
        """What nobody took for long enough; no more than this at a time."""
        given: list[Range] = []
        while most_bytes and self._batches and self._batches[0][0] + self.keep_s <= now_s:
            part = self._take_first(most_bytes)
            given.append(part)
            most_bytes -= part[1] - part[0]
        return given

    def _take_first(self, most_bytes: int) -> Range:
        batch = self._batches[0][1]
        start, end = batch.take_first(most_bytes)
        self.nbytes -= end - start
        if not len(batch):
            del self._batches[0]
        return start, end

    def next_s(self) -> float | None:
        """When `take_old` has something."""
        return self._batches[0][0] + self.keep_s if self._batches else None


class _Ranges:
    """Disjoint ranges that do not touch, by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, end: int) -> None:
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:  # it touches these
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def take_first(self, most_bytes: int) -> Range:
        """The first one, or as much of it."""
        start, end = self._starts[0], min(self._ends[0], self._starts[0] + most_bytes)
        self.take(start, end)
        return start, end

    def take(self, start: int, end: int) -> list[Range]:
        """What of it is here, and is not any more."""
        low, high = bisect_right(self._ends, start), bisect_left(self._starts, end)
        found = list(zip(self._starts[low:high], self._ends[low:high], strict=True))
        left = [r for a, b in found for r in ((a, min(b, start)), (max(a, end), b)) if r[0] < r[1]]
        self._starts[low:high] = [a for a, _ in left]
        self._ends[low:high] = [b for _, b in left]
        return [(max(a, start), min(b, end)) for a, b in found]
