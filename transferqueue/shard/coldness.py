"""Which slabs leave memory for the disk, and when. No bytes, no socket, no clock.

Two marks in bytes of memory in use: above ``high`` slabs go until ``low`` is reached, so that it
does not begin again at the next put. The coldest go first, by when a get last found them (a put
counts as one). A put that waits for space makes them go too, however little is in use: what is free
may be in pieces that are too small for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """In bytes of memory in use."""

    high_bytes: int
    low_bytes: int

    @classmethod
    def of(cls, budget_bytes: int, high: float, low: float) -> Marks:
        """From parts of the budget."""
        return cls(high_bytes=int(budget_bytes * high), low_bytes=int(budget_bytes * low))


class Surplus:
    """How much has to go now. Remembers whether ``low`` is still to be reached."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._is_falling = False

    def now(self, used_bytes: int, wanted_bytes: int) -> int:
        """``wanted_bytes``: of the first put that waits for space, 0 when none does."""
        if used_bytes > self._marks.high_bytes:
            self._is_falling = True
        if used_bytes <= self._marks.low_bytes:
            self._is_falling = False
        surplus = used_bytes - self._marks.low_bytes if self._is_falling else 0
        return max(surplus, min(wanted_bytes, used_bytes))


def coldest(nbytes: Int64s, last_use: Int64s, surplus: int, most: int) -> Int64s:
    """Positions of the slabs to move, coldest first: just enough for ``surplus``, together at most
    ``most`` bytes (but always one, if it is needed).

    ``nbytes``: what each frees. ``last_use``: rises with every use.
    """
    if surplus <= 0 or not len(nbytes):
        return np.empty(0, np.int64)
    order = np.argsort(last_use, kind="stable")
    reached = np.cumsum(nbytes[order])
    enough = int(np.searchsorted(reached, surplus)) + 1
    allowed = max(1, int(np.searchsorted(reached, most, side="right")))
    return order[: min(enough, allowed)]
