"""Requests whose answer is still to come, and whether those who asked are still there.

A process that ends while it waits says nothing. Its place would be served all the same, and rows
that nobody takes would be out until their lease ended. So everybody who waits is told so now and
then, over the connection that the answer will take: when there is none for `GONE_AFTER_S`, the
peer's requests are forgotten. A peer that was only cut off finds that out when it is back, as it
asks for its request, and sends it again: it has lost its place and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from transferqueue.net.server import Request

PROBE_S = 1.0
"""Often enough that clients never ask by themselves (`ASK_AGAIN_S`): one small message less."""

GONE_AFTER_S = 1.5
"""A live client connects again within a second (`sockets.common_options`)."""


class ParkedRequests:
    """``probe`` tells the peer of a request that it is being worked on, and returns whether the
    peer is connected."""

    def __init__(self, probe: Callable[[Request], bool]) -> None:
        self._probe = probe
        self._by_key: dict[Hashable, Request] = {}
        self._missing_since_s: dict[bytes, float] = {}
        self._next_probe_s = 0.0

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
        return self._next_probe_s if self._by_key else None

    def gone(self, now_s: float) -> list[Request]:
        """Probe everybody, if it is time; what is parked for those who are gone. It stays in."""
        if now_s < self._next_probe_s:
            return []
        self._next_probe_s = now_s + PROBE_S
        peers = {request.peer: request for request in self._by_key.values()}
        missing = [peer for peer, request in peers.items() if not self._probe(request)]
        self._missing_since_s = {peer: self._missing_since_s.get(peer, now_s) for peer in missing}
        gone = {p for p, at_s in self._missing_since_s.items() if at_s + GONE_AFTER_S <= now_s}
        return [request for request in self._by_key.values() if request.peer in gone]
