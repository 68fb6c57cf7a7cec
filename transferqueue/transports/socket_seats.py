"""Which connection has to go when one more comes than there may be. No socket in here.

A connection is a stranger until it has shown a ticket; then it is busy with a request, or idle
between two. Somebody who opens connections only to hold them must not keep clients out, and more
clients than there are seats must all be served:

* of strangers there is a share of the seats. Of more than that the one goes that has been here
  longest: a client shows its ticket at once;
* of more than all seats the one goes that has been idle longest: its client connects again when
  it next asks. Where all are busy it is the longest of the strangers.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Seats(Generic[T]):
    """Not safe for several threads."""

    def __init__(self, *, num_seats: int, num_for_strangers: int) -> None:
        self._num_seats = num_seats
        self._num_for_strangers = num_for_strangers
        self._strangers: dict[T, None] = {}  # who came first is first
        self._idle: dict[T, None] = {}  # who has been idle longest is first
        self._busy: set[T] = set()

    def come(self, one: T) -> T | None:
        """Who is to be cut off for it, maybe itself. It has left then."""
        self._strangers[one] = None
        if len(self._strangers) > self._num_for_strangers:
            return _first_out(self._strangers)
        if len(self._strangers) + len(self._idle) + len(self._busy) > self._num_seats:
            return _first_out(self._idle or self._strangers)
        return None

    def work(self, one: T) -> None:
        """It has shown a ticket. One that was to be cut off stays so."""
        if one in self._strangers or one in self._idle:
            self.leave(one)
            self._busy.add(one)

    def rest(self, one: T) -> None:
        """Its request is done."""
        if one in self._busy:
            self._busy.discard(one)
            self._idle[one] = None

    def leave(self, one: T) -> None:
        self._strangers.pop(one, None)
        self._idle.pop(one, None)
        self._busy.discard(one)


def _first_out(those: dict[T, None]) -> T:
    first = next(iter(those))
    del those[first]
    return first
