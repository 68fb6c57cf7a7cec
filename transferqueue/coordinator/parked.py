"""Requests whose answer is still to come, and whether those who asked are still there.

A process that ends while it waits says nothing. Its place would be served all the same, and rows
that nobody takes would be out until their lease ended. So the requests of a peer that is not
connected for `GONE_AFTER_S` are forgotten (`net.presence`). A peer that was only cut off finds that
out when it is back, as it asks for its request, and sends it again: it has lost its place and
nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.net.presence import Presence

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from transferqueue.net.server import Request

GONE_AFTER_S = 1.5
"""A live client connects again within a second (`sockets.common_options`)."""


class ParkedRequests:
    """``probe``: see `Presence`."""

    def __init__(self, probe: Callable[[Request], bool]) -> None:
        self._presence = Presence(probe, gone_after_s=GONE_AFTER_S)
        self._by_key: dict[Hashable, Request] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Request]:
        """In the order in which they came."""
        return iter(list(self._by_key.values()))

    def add(self, request: Request) -> None:
        self._by_key[request.key] = request

    def pop(self, key: Hashable) -> Request | None:
        """What waits under this key (`Request.key`), if it does still."""
        return self._by_key.pop(key, None)

    def next_s(self) -> float | None:
        """When `gone` has something to do."""
        return self._presence.next_s if self._by_key else None

    def gone(self, now_s: float) -> list[Request]:
        """What is parked for those who are gone. It stays in."""
        gone = self._presence.gone(self._by_key.values(), now_s)
        return [request for request in self._by_key.values() if request.peer in gone]
