"""Declarations that are answered once every shard knows what they say of a partition.

A put goes to its shard straight from the client, and may get there before a notice from here does.
So whoever declares a quota, or where fields go, hears that it is declared when no shard can miss it
any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transferqueue.net.server import Reply, Request


class TermsNotices:
    """``answer`` sends the reply to a request."""

    def __init__(self, answer: Callable[[Request, Reply], object]) -> None:
        self._answer = answer
        self._waiting: dict[tuple[bytes, int], tuple[int, Request, Reply]] = {}

    def wait(self, number: int, request: Request, reply: Reply) -> None:
        """Answer when all shards know the terms of this number, or later ones; see `heard`."""
        self._waiting[request.key] = (number, request, reply)

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave the request up."""
        self._waiting.pop(key, None)

    def heard(self, known: Iterable[int]) -> None:
        """``known``: of each shard the number of the terms that it knows."""
        if not self._waiting:
            return
        oldest = min(known, default=None)
        for key, (number, request, reply) in list(self._waiting.items()):
            if oldest is None or oldest >= number:
                del self._waiting[key]
                self._answer(request, reply)
