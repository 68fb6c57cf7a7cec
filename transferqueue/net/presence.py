"""Whether peers are still connected. No socket, no clock.

A process that ends says nothing, and neither does a host that fails; but its connection is gone, at
once or when the pings over it stay out (`sockets.common_options`). So peers on whom something
depends are told now and then that it is being worked on, over the connection of their requests. One
that has none for a while is gone. One that was only cut off is back before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transferqueue.net.server import Request

PROBE_S = 1.0
"""Often enough that clients never ask by themselves (`ASK_AGAIN_S`): one small message less."""


class Presence:
    """``probe`` tells the peer of a request that it is being worked on, and returns whether the
    peer is connected (`Server.probe`). ``gone_after_s``: how long a live one may be cut off."""

    def __init__(self, probe: Callable[[Request], bool], *, gone_after_s: float) -> None:
        self._probe = probe
        self._gone_after_s = gone_after_s
        self._missing_since_s: dict[bytes, float] = {}
        self.next_s = 0.0
        """When `gone` has something to do."""

    def begin(self, now_s: float) -> None:
        """There was nobody, and now somebody is here: there is nothing to do for a while, and who
        was missing earlier is so no more."""
        self.next_s = now_s + PROBE_S
        self._missing_since_s.clear()

    def gone(self, requests: Iterable[Request], now_s: float) -> set[bytes]:
        """Probe everybody, if it is time. Those who are gone."""
        if now_s < self.next_s:
            return set()
        self.next_s = now_s + PROBE_S
        peers = {request.peer: request for request in requests}
        missing = [peer for peer, request in peers.items() if not self._probe(request)]
        self._missing_since_s = {peer: self._missing_since_s.get(peer, now_s) for peer in missing}
        return {
            peer
            for peer, since_s in self._missing_since_s.items()
            if since_s + self._gone_after_s <= now_s
        }
