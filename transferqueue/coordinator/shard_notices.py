"""What is to be done once every shard has heard something. No socket, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Key = tuple[bytes, int]


class ShardNotices:
    """By the request that waits for it."""

    def __init__(self) -> None:
        self._waiting: dict[Key, tuple[int, Callable[[], None]]] = {}

    def wait(self, number: int, key: Key, then: Callable[[], None]) -> None:
        """Do ``then`` when all shards have heard what has this number, or a later one; see
        `heard`. What waits for the same request already is forgotten."""
        self._waiting[key] = (number, then)

    def cancel(self, key: Key) -> None:
        """The client gave the request up."""
        self._waiting.pop(key, None)

    def heard(self, known: Iterable[int]) -> None:
        """``known``: of each shard the number of the last that it has heard."""
        if not self._waiting:
            return
        oldest = min(known, default=None)
        for key, waiting in list(self._waiting.items()):
            number, then = waiting
            is_waiting = self._waiting.get(key) is waiting  # what an earlier one did may end it
            if is_waiting and (oldest is None or oldest >= number):
                del self._waiting[key]
                then()
