"""Requests that wait while a coordinator learns from the shards what there is.

A select that was answered before would miss rows, and a claim would find fewer than there are.
Shards are heard all the time, and so is who asks for the status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.net.turnstile import Turnstile

if TYPE_CHECKING:
    from transferqueue.net.server import Request, Server


class Gate(Turnstile):
    """Closed until ``open``; or open from the beginning, for a service that just starts."""

    def __init__(self, *, is_open: bool, limit_s: float) -> None:
        """``limit_s``: when to open although not all shards have come."""
        super().__init__(self._is_open_to)
        self.is_open = is_open
        self.limit_s = limit_s

    def open(self, server: Server) -> None:
        """Serve those that waited, in the order in which they came."""
        self.is_open = True
        self.let_pass(server)

    def _is_open_to(self, request: Request) -> bool:
        del request
        return self.is_open
