"""Calls that would have a shard give space on that something here may touch yet.

Of two kinds. A put was given up while a device had copies to make into the shard's memory: such a
copy may be made at any time while this process lives. Or a borrow has ended, and
tensors of it are still there. So the shard is told when that is over: with the next put or get, or
by the thread that gives leases back (`LateCalls`). It takes the space back itself when this process
ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.net.calls import Call


class Postponed:
    """Of one device."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Call, Callable[[], bool]]] = []

    def add(self, call: Call, when: Callable[[], bool]) -> None:
        """``call`` is to be sent when this is true."""
        self._waiting.append((call, when))

    def take_due(self) -> list[Call]:
        """Those that may be sent now, each once."""
        are_due = [when() for _, when in self._waiting]
        pairs = list(zip(self._waiting, are_due, strict=True))
        self._waiting = [one for one, is_due in pairs if not is_due]
        return [call for (call, _), is_due in pairs if is_due]

    def __len__(self) -> int:
        return len(self._waiting)
