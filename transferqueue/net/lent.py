"""What answers have lent, so that it can be taken back when the answer came too late.

A peer that gives up a request says so, but the answer may be on its way by then, and with it a
claim, a lease or reserved space of which the peer will never know.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_REMEMBERED = 8192
"""A peer gives up within its deadline; so many later answers make it certain that it did not."""


class Lent(Generic[T]):
    """The newest things lent, by the request that they answered. No socket, no clock."""

    def __init__(self) -> None:
        self._by_request: OrderedDict[tuple[bytes, int], T] = OrderedDict()

    def note(self, request: tuple[bytes, int], what: T) -> T | None:
        """Returns what an earlier answer to the same request lent: that one was lost."""
        earlier = self._by_request.pop(request, None)
        self._by_request[request] = what
        if len(self._by_request) > MAX_REMEMBERED:
            self._by_request.popitem(last=False)
        return earlier

    def known(self, request: tuple[bytes, int]) -> T | None:
        """What the answer to a request lent."""
        return self._by_request.get(request)

    def take_back(self, request: tuple[bytes, int]) -> T | None:
        """What the answer to a request lent, once; ``None`` when it lent nothing."""
        return self._by_request.pop(request, None)
