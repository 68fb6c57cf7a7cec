"""Calls by which a shard gives space back, and which could not be made when it was time.

A shard that was away did not hear that a put was given up, and what that had reserved in mapped
memory has no deadline: it would be held as long as this process lives. Or a device had copies to
make (`Postponed`). So they are told again, by the thread that gives leases back, until the shard
has answered or is gone. No socket, no clock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transferqueue.net.calls import Call

MAX_UNTOLD = 4096
"""Kept for shards that do not answer, the newest: each holds space of one put."""


class Source(Protocol):
    """What has calls that may be sent later."""

    def has_postponed(self) -> bool: ...

    def due(self) -> list[Call]:
        """Those that may be sent now, each once."""
        ...


class LateCalls:
    """Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._untold: list[Call] = []

    def __bool__(self) -> bool:
        """Whether there is anything to be told, now or later."""
        with self._lock:
            self._sources = [source for source in self._sources if source.has_postponed()]
            return bool(self._sources or self._untold)

    def look_at(self, source: Source) -> None:
        """It has postponed something."""
        with self._lock:
            if source not in self._sources:
                self._sources.append(source)

    def add(self, calls: Iterable[Call]) -> None:
        """Their shard has not answered."""
        with self._lock:
            self._untold = [*self._untold, *calls][-MAX_UNTOLD:]

    def take(self) -> list[Call]:
        """All that may be sent now. What is not answered is to be added again."""
        with self._lock:
            calls, self._untold = self._untold, []
            sources = list(self._sources)
        return [*calls, *(call for source in sources for call in source.due())]

    def stop_looking(self) -> None:
        """The client is closed, and with it what has postponed something."""
        with self._lock:
            self._sources = []
