"""Declarations that are answered once every shard knows that a partition has a quota.

A put goes to its shard straight from the client, and may get there before a notice from here does.
So whoever declares a quota hears that it is declared when no shard can miss it any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Set

    from transferqueue.net.server import Reply, Request


class LimitNotices:
    """``answer`` sends the reply to a request."""

    def __init__(self, answer: Callable[[Request, Reply], object]) -> None:
        self._answer = answer
        self._waiting: dict[tuple[bytes, int], tuple[str, Request, Reply]] = {}

    def wait(self, partition: str, request: Request, reply: Reply) -> None:
        """Answer when all shards know of this partition; see `heard`."""
        self._waiting[request.key] = (partition, request, reply)

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave the request up."""
        self._waiting.pop(key, None)

    def heard(self, known: Iterable[Set[str]]) -> None:
        """``known``: of each shard, the partitions with a quota that it knows of."""
        if not self._waiting:
            return
        by_shard = list(known)
        for key, (partition, request, reply) in list(self._waiting.items()):
            if all(partition in names for names in by_shard):
                del self._waiting[key]
                self._answer(request, reply)
