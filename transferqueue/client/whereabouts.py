"""What has become of shards that say nothing, as the coordinator knows it. No socket.

Without it a call to a shard that is lost for good would wait for its whole deadline. So whoever
waits for a silent shard asks the coordinator for its list of shards, and is answered as soon as
that is another one than is known here: one question, however long it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.errors import RowsLost
from transferqueue.net.calls import Call
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.client.session import Session
    from transferqueue.errors import TransferQueueError
    from transferqueue.wire.format import Message


class ShardWhereabouts:
    """`Whereabouts` of shards. ``on_heard`` hears that the session knows more."""

    def __init__(self, session: Session, on_heard: Callable[[], None]) -> None:
        self._session = session
        self._on_heard = on_heard

    def question(self) -> Call:
        body = {"unless": self._session.shards_epoch}
        return Call(endpoint=self._session.coordinator, op=ops.HELLO, body=body)

    def hear(self, answer: Message) -> None:
        self._session.hear(answer.body)
        self._on_heard()

    def of(self, call: Call) -> str | TransferQueueError:
        """`RowsLost` for a shard that was given up. One that the coordinator does not know of, as
        it may be itself when it has just begun, is waited for where it was."""
        slot = self.slot_of(call)
        if slot in self._session.lost_slots:
            return RowsLost(0, 0, [slot])
        return self._session.shard(slot).endpoint if self._session.knows(slot) else call.endpoint

    def slot_of(self, call: Call) -> int:
        return self._session.slot_at(call.endpoint)
