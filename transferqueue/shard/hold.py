"""Requests that wait while nothing may become visible or go: see the text of `checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transferqueue.net.server import Handler, Reply, Request, Server

LIMIT_S = 10.0
"""Whoever ordered it is not there any more: puts go on."""


class Hold:
    """``may_pass`` says which of the requests are let through all the same."""

    def __init__(self, may_pass: Callable[[Request], bool]) -> None:
        self._may_pass = may_pass
        self._waiting: dict[tuple[bytes, int], tuple[Request, Handler]] = {}
        self.until_s: float | None = None

    @property
    def is_on(self) -> bool:
        return self.until_s is not None

    def __len__(self) -> int:
        return len(self._waiting)

    def guard(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same operations; while the hold is on they wait."""
        return {op: self._guarded(handler) for op, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def handle(request: Request) -> Reply | None:
            if not self.is_on or self._may_pass(request):
                return handler(request)
            self._waiting[request.key] = (request, handler)
            return None

        return handle

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave the request up."""
        self._waiting.pop(key, None)

    def begin(self, now_s: float) -> None:
        self.until_s = now_s + LIMIT_S

    def let_pass(self, server: Server) -> None:
        """More may pass than before: serve those that wait."""
        for key, (request, handler) in list(self._waiting.items()):
            if self._may_pass(request):
                del self._waiting[key]
                _serve(server, request, handler)

    def end(self, server: Server) -> None:
        """Serve all that waited, in the order in which they came."""
        self.until_s = None
        waiting, self._waiting = self._waiting, {}
        for request, handler in waiting.values():
            _serve(server, request, handler)


def _serve(server: Server, request: Request, handler: Handler) -> None:
    with server.answering(request):
        reply = handler(request)
        if reply is not None:
            server.reply(request, reply)
