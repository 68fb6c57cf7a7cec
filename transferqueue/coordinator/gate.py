"""Requests that wait while a coordinator learns from the shards what there is.

A select that was answered before would miss rows, and a claim would find fewer than there are.
Shards are heard all the time, and so is who asks for the status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.net.server import Handler, Reply, Request, Server


class Gate:
    """Closed until ``open``; or open from the beginning, for a service that just starts."""

    def __init__(self, *, is_open: bool, limit_s: float) -> None:
        """``limit_s``: when to open although not all shards have come."""
        self.is_open = is_open
        self.limit_s = limit_s
        self._waiting: dict[tuple[bytes, int], tuple[Request, Handler]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def guard(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same operations, behind the gate."""
        return {op: self._guarded(handler) for op, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def handle(request: Request) -> Reply | None:
            if self.is_open:
                return handler(request)
            self._waiting[request.key] = (request, handler)
            return None

        return handle

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave the request up."""
        self._waiting.pop(key, None)

    def open(self, server: Server) -> None:
        """Serve those that waited, in the order in which they came."""
        self.is_open = True
        waiting, self._waiting = self._waiting, {}
        for request, handler in waiting.values():
            with server.answering(request):
                reply = handler(request)
                if reply is not None:
                    server.reply(request, reply)
