"""Puts that wait although nobody waits for them any more: others wait behind them.

A client that ends says nothing (`net.presence`). What it was lent is given up by `Deadlines`, or
with its process; here it is about puts that have nothing yet, and wait for space of the shard or
for room under their partition's quota. A live client that was cut off finds out when it is back, as
it asks for its request, and sends it again: it has lost its place and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.net.presence import Presence
from transferqueue.shard.deadlines import GONE_AFTER_S

if TYPE_CHECKING:
    from transferqueue.net.server import Server
    from transferqueue.shard.admission import Admission
    from transferqueue.shard.waiting_puts import WaitingPut, WaitingPuts


class PutsOfEndedClients:
    """``waiting``: for space; ``admission``: for room under a quota."""

    def __init__(self, server: Server, waiting: WaitingPuts, admission: Admission) -> None:
        self._server = server
        self._waiting = waiting
        self._admission = admission
        self._presence = Presence(server.probe, gone_after_s=GONE_AFTER_S)

    @property
    def _are_any(self) -> bool:
        return bool(len(self._waiting) or len(self._admission))

    def come(self, now_s: float) -> None:
        """A put is about to be tried, and may be the first that waits: who has just come is not to
        be probed at once."""
        if not self._are_any:
            self._presence.begin(now_s)

    def take_out(self, now_s: float) -> list[WaitingPut]:
        """Forget their puts. Returns those that waited for space."""
        if not self._are_any:
            return []
        puts = [*self._waiting, *self._admission]
        gone = self._presence.gone([put.request for put in puts], now_s)
        for put in [put for put in puts if put.request.peer in gone]:
            self._server.forget(put.request)
            self._admission.cancel(put.request.key)
        return self._waiting.leave(gone)

    def next_s(self) -> float | None:
        """When `take_out` has something to do."""
        return self._presence.next_s if self._are_any else None
