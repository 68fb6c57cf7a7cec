"""What a server remembers of the requests it has answered. No socket, no clock.

A client that lost a connection asks again with the same request id. A request that changed
something is never carried out twice: its answer is kept here and repeated.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transferqueue.wire.format import Message

MAX_PEERS = 8192
MAX_ANSWERS_PER_PEER = 64
"""A sync channel has one exchange in flight; an async one rarely has as many mutations at once."""


class AnswerLog:
    """Requests in progress and the newest answers, by (peer, request id)."""

    def __init__(self) -> None:
        self._in_progress: set[tuple[bytes, int]] = set()
        self._answers: OrderedDict[bytes, OrderedDict[int, Message]] = OrderedDict()

    def begin(self, peer: bytes, request_id: int) -> None:
        self._in_progress.add((peer, request_id))

    def is_in_progress(self, peer: bytes, request_id: int) -> bool:
        return (peer, request_id) in self._in_progress

    def answer_to(self, peer: bytes, request_id: int, was: object = None) -> Message | None:
        """The answer that was given and kept, if any. ``was``: names that the peer had with servers
        whose place this one has taken, and whose answers it knows; from the wire, so anything."""
        for name in (peer, *(was if isinstance(was, list) else ())):
            answers = self._answers.get(name) if isinstance(name, bytes) else None
            if answers is not None and request_id in answers:
                return answers[request_id]
        return None

    def finish(self, peer: bytes, request_id: int, answer: Message, *, keep: bool) -> None:
        """The request is answered; ``keep`` the answer when carrying it out again would differ."""
        self._in_progress.discard((peer, request_id))
        if not keep:
            return
        answers = self._answers.setdefault(peer, OrderedDict())
        self._answers.move_to_end(peer)
        answers[request_id] = answer
        if len(answers) > MAX_ANSWERS_PER_PEER:
            answers.popitem(last=False)
        if len(self._answers) > MAX_PEERS:
            self._answers.popitem(last=False)

    def abandon(self, peer: bytes, request_id: int) -> None:
        """The peer cancelled the request: nobody waits for an answer."""
        self._in_progress.discard((peer, request_id))

    def forget(self, peer: bytes, request_id: int) -> None:
        """As if the request had never come."""
        self._in_progress.discard((peer, request_id))
        answers = self._answers.get(peer)
        if answers is not None:
            answers.pop(request_id, None)
