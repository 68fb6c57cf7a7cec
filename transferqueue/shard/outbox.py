"""What a shard still has to tell the coordinator, in order, each thing once. No socket, no clock.

Events are numbered. The coordinator says which number it expects next; that acknowledges all
before it. An event can be lost only with its connection, so the shard asks with every heartbeat:
a heartbeat travels behind the events sent before it, and if its answer still expects one of
those, it was lost and all from there on are sent again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened on the shard: `Committed` or cleared rows."""

    number: int
    what: Any


class Outbox:
    """Invariant: ``kept`` are the events from the first not acknowledged one to the newest."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque()
        self._next_number = 1
        self._num_sent = 0
        """Of ``kept``, how many have been sent."""
        self._sent_at_heartbeat = 0

    def __len__(self) -> int:
        """Events not acknowledged."""
        return len(self._kept)

    @property
    def first_kept(self) -> int:
        """The lowest number that can still be sent."""
        return self._next_number - len(self._kept)

    @property
    def next_number(self) -> int:
        """Of the next thing that is added."""
        return self._next_number

    def add(self, what: Any) -> None:
        self._kept.append(Event(number=self._next_number, what=what))
        self._next_number += 1

    def begin(self, told: Iterable[Any]) -> None:
        """The receiver is another one: keep these instead, numbered from 1 on."""
        self._kept = deque(Event(number=n, what=w) for n, w in enumerate(told, start=1))
        self._next_number = len(self._kept) + 1
        self._num_sent = self._sent_at_heartbeat = 0

    def kept(self) -> list[Any]:
        """What is not acknowledged, in order."""
        return [event.what for event in self._kept]

    def take_unsent(self) -> list[Event]:
        """The events to send now; they count as sent."""
        if self._num_sent == len(self._kept):
            return []
        unsent = [self._kept[i] for i in range(self._num_sent, len(self._kept))]
        self._num_sent = len(self._kept)
        return unsent

    def heartbeat(self) -> None:
        """A heartbeat is being sent, behind everything sent so far."""
        self._sent_at_heartbeat = self.first_kept + self._num_sent - 1

    def acknowledge(self, next_event: int) -> None:
        """The coordinator expects ``next_event``: all before it are done with."""
        while self._kept and self._kept[0].number < next_event:
            self._kept.popleft()
            self._num_sent = max(0, self._num_sent - 1)

    def answer_to_heartbeat(self, next_event: int) -> None:
        """As `acknowledge`; what was sent before the heartbeat and is still expected is lost."""
        self.acknowledge(next_event)
        if self.first_kept <= next_event <= self._sent_at_heartbeat:
            self._num_sent = 0
