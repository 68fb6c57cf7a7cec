"""Puts that wait for space, first come first served. No socket, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from transferqueue.net.server import Request
    from transferqueue.wire.put import PutPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingPut:
    """A put that found no space, or waits for room under its partition's quota."""

    request: Request
    plan: PutPlan
    since_s: float
    deadline_s: float
    needs: Mapping[int, int] = field(default_factory=lambda: {0: 0})
    """By number of a backend the bytes that it brings there. At least one."""
    is_admitted: bool = False
    """The coordinator has given it room in its partition."""


@dataclass(slots=True, eq=False)
class _Entry:
    put: WaitingPut
    lacks: set[int]
    """Backends that had no room for it when it was tried, or for which others were ahead of it."""


class WaitingPuts:
    """Invariant: a later put never takes space that an earlier one still waits for: none of a
    backend that had no room for it. Space of the others that it needs is not kept for it, or one
    full backend would keep all puts off all of them."""

    def __init__(self) -> None:
        self._queue: deque[_Entry] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[WaitingPut]:
        """In the order they came."""
        return (entry.put for entry in self._queue)

    @property
    def num_bytes(self) -> int:
        return sum(put.plan.nbytes for put in self)

    def add(self, put: WaitingPut, lacks: Iterable[int] = ()) -> None:
        """``lacks``: backends that had no room for it, if it was tried."""
        ahead = put.needs.keys() & self._waited_for()
        self._queue.append(_Entry(put, {*lacks, *ahead}))

    def are_ahead_of(self, put: WaitingPut) -> bool:
        """Whether one waits for a backend that this put needs too."""
        return bool(self._queue) and not put.needs.keys().isdisjoint(self._waited_for())

    def first_for(self, number: int) -> WaitingPut | None:
        """The first that waits for this backend."""
        return next((entry.put for entry in self._queue if number in entry.lacks), None)

    def admit(self, try_put: Callable[[WaitingPut], Iterable[int]]) -> None:
        """Offer freed space to the puts in order. ``try_put`` returns the backends that have no
        room for one; none: it is done with."""
        every = {number for put in self for number in put.needs}
        waited_for: set[int] = set()
        for entry in list(self._queue):
            if waited_for >= every:
                return  # the rest is kept off
            ahead = entry.put.needs.keys() & waited_for
            lacks = set(ahead or try_put(entry.put))
            if lacks:
                entry.lacks |= lacks
                waited_for |= entry.lacks
            else:
                self._queue.remove(entry)

    def expire(self, now_s: float) -> list[WaitingPut]:
        """Take out the puts whose deadline has passed."""
        return self._take_out(lambda put: put.deadline_s <= now_s)

    def remove(self, key: tuple[bytes, int]) -> list[WaitingPut]:
        """Take out the put of a request that was cancelled, if it waits."""
        return self._take_out(lambda put: put.request.key == key)

    def leave(self, peers: Collection[bytes]) -> list[WaitingPut]:
        """Take out the puts of these, who are gone."""
        return self._take_out(lambda put: put.request.peer in peers)

    def next_deadline_s(self) -> float | None:
        return min((put.deadline_s for put in self), default=None)

    def _waited_for(self) -> set[int]:
        return {number for entry in self._queue for number in entry.lacks}

    def _take_out(self, is_out: Callable[[WaitingPut], bool]) -> list[WaitingPut]:
        out = [put for put in self if is_out(put)]
        if out:
            self._queue = deque(entry for entry in self._queue if not is_out(entry.put))
        return out
