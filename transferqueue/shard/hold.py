"""Requests that wait while nothing may become visible or go: see the text of `checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.net.turnstile import Turnstile

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.net.server import Request, Server

LIMIT_S = 10.0
"""Whoever ordered it is not there any more: puts go on."""


class Hold(Turnstile):
    """``is_exempt`` says which of the requests are let through all the same."""

    def __init__(self, is_exempt: Callable[[Request], bool]) -> None:
        super().__init__(lambda request: not self.is_on or is_exempt(request))
        self.until_s: float | None = None

    @property
    def is_on(self) -> bool:
        return self.until_s is not None

    def begin(self, now_s: float) -> None:
        self.until_s = now_s + LIMIT_S

    def end(self, server: Server) -> None:
        """Serve all that waited, in the order in which they came."""
        self.until_s = None
        self.let_pass(server)
