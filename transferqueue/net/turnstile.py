"""Requests that wait until they may be served: before a server knows enough, or while it stands
still for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transferqueue.net.server import Handler, Reply, Request, Server


class Turnstile:
    """``may_pass`` says whether a request is served now. Those that are not wait, in the order in
    which they came, until ``let_pass`` finds that they may."""

    def __init__(self, may_pass: Callable[[Request], bool]) -> None:
        self._may_pass = may_pass
        self._waiting: dict[tuple[bytes, int], tuple[Request, Handler]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def guard(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """The same operations, behind the turnstile."""
        return {op: self._guarded(handler) for op, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def handle(request: Request) -> Reply | None:
            if self._may_pass(request):
                return handler(request)
            self._waiting[request.key] = (request, handler)
            return None

        return handle

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave the request up."""
        self._waiting.pop(key, None)

    def let_pass(self, server: Server) -> None:
        """Serve those that may pass now. What serving one of them changes counts for the next."""
        for key, (request, handler) in list(self._waiting.items()):
            if not self._may_pass(request):
                continue
            del self._waiting[key]
            with server.answering(request):
                reply = handler(request)
                if reply is not None:
                    server.reply(request, reply)
