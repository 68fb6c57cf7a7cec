"""How long a shard keeps what it set aside for clients whose process it cannot watch. No clock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from transferqueue.net.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.net.server import Request

SILENCE_S = 30.0
"""A client that has not moved its next chunk for so long is given up. A connection over a link
that was down is made anew well before that (`net.sockets`)."""

GONE_AFTER_S = 3.0
"""A client that has no connection for so long is given up, whatever it is at: one that lives
connects again within a second of when it can (`net.sockets`), and does again what was given up."""


class Deadlines:
    """When to give up on clients that nobody can watch: those of other hosts.

    They never touch this shard's memory themselves, so a deadline is enough: what they send or ask
    for after it is refused. While chunks are to come, silence ends a transfer. Once all have been
    moved, or where they go beside the requests (`Windows`), the client may say nothing for long, so
    it keeps what it has until its own deadline. But a client that was killed, or whose host has
    failed, has no connection any more, and that ends all that it had.
    """

    def __init__(self, probe: Callable[[Request], bool]) -> None:
        """``probe``: see `Presence`."""
        self._final_s: dict[int, float] = {}
        self._due_s: dict[int, float] = {}
        self._requests: dict[int, Request] = {}
        self._presence = Presence(probe, gone_after_s=GONE_AFTER_S)
        self._is_watching = False
        """Else what has come is new: most are through before anybody is to be probed."""

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, number: int, final_s: float, request: Request | None = None) -> None:
        """``number``: of a put or a lease. ``final_s``: the deadline of the client itself.
        ``request``: over whose connection it came; ``None``: an earlier process had that."""
        self._final_s[number] = self._due_s[number] = final_s
        if request is not None:
            self._requests[number] = replace(request, body={}, frames=())  # not its bytes

    def heard(self, number: int, now_s: float, *, more_to_come: bool) -> None:
        """A chunk was moved. Nothing, of one that has no deadline."""
        final_s = self._final_s.get(number)
        if final_s is not None:
            self._due_s[number] = min(final_s, now_s + SILENCE_S) if more_to_come else final_s

    def drop(self, number: int) -> None:
        """It ended otherwise, or was not here."""
        self._due_s.pop(number, None)
        self._final_s.pop(number, None)
        self._requests.pop(number, None)

    def pass_by(self, now_s: float) -> list[int]:
        """Take out those whose deadline has passed, and those of clients that are gone."""
        if not self._due_s:  # asked after every request that a shard answers
            self._is_watching = False
            return []
        gone = self._gone(now_s)
        passed = [number for number, due_s in self._due_s.items() if due_s <= now_s]
        passed += [number for number, request in self._requests.items() if request.peer in gone]
        passed = list(dict.fromkeys(passed))
        for number in passed:
            self.drop(number)
        return passed

    def _gone(self, now_s: float) -> set[bytes]:
        was_watching, self._is_watching = self._is_watching, bool(self._requests)
        if self._is_watching and not was_watching:
            self._presence.begin(now_s)
        return self._presence.gone(self._requests.values(), now_s) if self._requests else set()

    def next_s(self) -> float | None:
        """When `pass_by` has something to do."""
        due_s = min(self._due_s.values(), default=None)
        return due_s if due_s is None or not self._requests else min(due_s, self._presence.next_s)
