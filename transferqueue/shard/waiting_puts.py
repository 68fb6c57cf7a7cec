"""Puts that wait for space, first come first served. No socket, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transferqueue.net.server import Request
    from transferqueue.wire.put import PutPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPut:
    """A put that found no space, or waits for room under its partition's quota."""

    request: Request
    plan: PutPlan
    since_s: float
    deadline_s: float
    is_admitted: bool = False
    """The coordinator has given it room in its partition."""


class WaitingPuts:
    """Invariant: a later put never takes space that an earlier one still waits for."""

    def __init__(self) -> None:
        self._queue: deque[WaitingPut] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[WaitingPut]:
        """In the order they came."""
        return iter(self._queue)

    @property
    def num_bytes(self) -> int:
        return sum(put.plan.nbytes for put in self._queue)

    def add(self, put: WaitingPut) -> None:
        self._queue.append(put)

    def admit(self, try_put: Callable[[WaitingPut], bool]) -> None:
        """Offer freed space to the puts in order, until one does not fit."""
        while self._queue and try_put(self._queue[0]):
            self._queue.popleft()

    def expire(self, now_s: float) -> list[WaitingPut]:
        """Take out the puts whose deadline has passed."""
        expired = [put for put in self._queue if put.deadline_s <= now_s]
        if expired:
            self._queue = deque(put for put in self._queue if put.deadline_s > now_s)
        return expired

    def remove(self, key: tuple[bytes, int]) -> list[WaitingPut]:
        """Take out the put of a request that was cancelled, if it waits."""
        removed = [put for put in self._queue if put.request.key == key]
        if removed:
            self._queue = deque(put for put in self._queue if put.request.key != key)
        return removed

    def next_deadline_s(self) -> float | None:
        return min((put.deadline_s for put in self._queue), default=None)
