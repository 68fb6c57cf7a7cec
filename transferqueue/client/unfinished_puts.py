"""Puts that were given up while a device was stuck over copies into a shard's device memory.

Such a copy may be made at any time while this process lives, so the shard must not give the space
to anybody else: it is not told of the end of the put before the device says that the copies are
done. It hears of it with a later put, or takes the space back when this process ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.devices.base import Event
    from transferqueue.net.calls import Call


class UnfinishedPuts:
    """Of one device."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Sequence[Event], Call]] = []

    def add(self, abort: Call, after: Sequence[Event]) -> None:
        """``abort`` is to be sent when all events are done."""
        self._waiting.append((after, abort))

    def take_done(self) -> list[Call]:
        """Those that may be sent now, each once."""
        done = [one for one in self._waiting if all(event.is_done() for event in one[0])]
        self._waiting = [one for one in self._waiting if one not in done]
        return [abort for _, abort in done]

    def __len__(self) -> int:
        return len(self._waiting)
