"""What a shard and a coordinator have in common: each is a table of handlers over one server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.net.server import Server
    from transferqueue.tracing.base import RequestSpans


class Served:
    """Has a `Server`, whose loop it runs."""

    _server: Server

    def watch(self, readable: int, callback: Callable[[], None]) -> None:
        """See `Server.watch`."""
        self._server.watch(readable, callback)

    def trace(self, spans: RequestSpans) -> None:
        """Note requests that carry a trace; ``spans`` are closed with the server."""
        self._server.spans = spans

    def stop(self) -> None:
        """See `Server.stop`."""
        self._server.stop()
