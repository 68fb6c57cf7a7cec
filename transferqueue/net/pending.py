"""Which calls of one exchange still wait for an answer. No socket, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.errors import ServiceUnreachable
from transferqueue.net.calls import RESUME, UNKNOWN, Call, Outcome
from transferqueue.wire.format import ERROR_OP, decode_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.wire.format import Message


def outcome_of(message: Message) -> Outcome:
    """The answer, or the error that it carries."""
    return decode_error(message.body) if message.op == ERROR_OP else message


class PendingCalls:
    """Invariant: every call ends in exactly one outcome, the first that arrived for it."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = list(calls)
        self._index = {call.request_id: i for i, call in enumerate(self._calls)}
        self._outcomes: list[Outcome | None] = [None] * len(self._calls)

    def __bool__(self) -> bool:
        return bool(self._index)

    def unsettled(self) -> list[Call]:
        return [self._calls[i] for i in self._index.values()]

    def settle(self, message: Message) -> list[Call]:
        """Take one message. Returns the calls that must be sent again: their peer lost them."""
        index = self._index.get(message.request_id)
        if index is None:
            return []
        if message.op == RESUME:
            return [self._calls[index]] if message.body.get("state") == UNKNOWN else []
        del self._index[message.request_id]
        self._outcomes[index] = outcome_of(message)
        return []

    def give_up(self, waited_s: float) -> None:
        """Turn each call without an answer into `ServiceUnreachable`."""
        for index in self._index.values():
            call = self._calls[index]
            self._outcomes[index] = ServiceUnreachable(call.endpoint, call.op, waited_s)
        self._index.clear()

    def outcomes(self) -> list[Outcome]:
        assert not self._index
        return [outcome for outcome in self._outcomes if outcome is not None]
