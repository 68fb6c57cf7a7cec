"""A shard's stream to the coordinator: who it is, what was committed and cleared, in order."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from transferqueue.errors import SlotTakenOver
from transferqueue.net.calls import RESUME
from transferqueue.shard.admission import FIRST_REQUEST_ID
from transferqueue.shard.checkpoints import FIRST_REQUEST_ID as FIRST_STEP_ID
from transferqueue.shard.outbox import Event, Outbox
from transferqueue.shard.store import Committed
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.format import ERROR_OP, Message, decode_error
from transferqueue.wire.tags import write_tags
from transferqueue.wire.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from transferqueue.errors import TransferQueueError
    from transferqueue.net.stream import StreamSender

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5

MAX_BEATS = 16
"""Heartbeats whose answers may still come."""

Cleared = tuple[str, "np.ndarray"]
"""Partition and uids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The end of an account of everything that the shard holds."""

    next_uid: int
    """Rows below it that the account did not name are gone."""


Told = Committed | Cleared | Whole


class Uplink:
    """``registration`` is sent with every heartbeat: the coordinator may have been restarted. One
    that is another gets what it may not know of, and then ``account``: everything, ended by
    `Whole`. Nothing is sent before it is known who listens.

    ``on_free`` gets the rows that the coordinator says nobody needs any more, ``on_release`` those
    of which nobody needs some fields, ``on_terms`` what is to be known of partitions,
    ``on_admission`` the answers to what `Admission` asked, ``on_save`` gets the orders of a
    checkpoint, ``on_new`` hears that the coordinator is another one. ``more`` is said with every
    heartbeat too; ``on_beat`` gets what is answered, and when it was asked, ``on_refused`` why
    the coordinator will not hear this shard any more."""

    def __init__(
        self,
        stream: StreamSender,
        *,
        slot: int,
        registration: Mapping[str, Any],
        on_free: Callable[[str, np.ndarray], object],
        on_release: Callable[[str, np.ndarray, Sequence[str]], object],
        on_terms: Callable[[Terms], None],
        on_admission: Callable[[Message], None],
        on_new: Callable[[], None],
        left_of: Callable[[Committed], Committed | None],
        on_save: Callable[[Message], None],
        account: Callable[[], Iterable[Told]],
        more: Callable[[], dict[str, Any]],
        on_beat: Callable[[Mapping[str, Any], float], None],
        on_refused: Callable[[TransferQueueError], None],
    ) -> None:
        self.stream = stream
        self._slot = slot
        self._registration = registration
        self._on_free = on_free
        self._on_release = on_release
        self._on_terms = on_terms
        self._terms_heard: tuple[str, int] = ("", 0)
        """The coordinator that told them last, and their number in its counting."""
        self._on_admission = on_admission
        self._on_new = on_new
        self._left_of = left_of
        self._on_save = on_save
        self._account = account
        self._more = more
        self._on_beat = on_beat
        self._on_refused = on_refused
        self._num_beats = 0
        self._beats: dict[int, float] = {}
        """When the last ones were sent, by number."""
        self._listener: str | None = None
        self._outbox = Outbox()
        self.next_heartbeat_s = 0.0

    @property
    def num_unsent(self) -> int:
        """Events that the coordinator has not acknowledged."""
        return len(self._outbox)

    @property
    def next_event(self) -> int:
        """The number of the event that the coordinator will be told next."""
        return self._outbox.next_number

    def unsent(self) -> list[Committed]:
        """Of puts that the coordinator has not acknowledged, what the account does not tell."""
        kept = (what for what in self._outbox.kept() if isinstance(what, Committed))
        return [left for what in kept if (left := self._left_of(what)) is not None]

    def say(self, fact: str, *, value: Any) -> None:
        """Another fact about this shard, which clients are to know. Safe from signal handlers."""
        facts = {**self._registration["facts"], fact: value}
        self._registration = {**self._registration, "facts": facts}
        self.next_heartbeat_s = 0.0

    def add(self, what: Told) -> None:
        """Tell the coordinator, at the next `tick`."""
        self._outbox.add(what)

    def tick(self, now_s: float) -> None:
        for event in self._outbox.take_unsent() if self._listener else ():
            self.stream.send(self._message(event))
        if now_s >= self.next_heartbeat_s:
            self.next_heartbeat_s = now_s + HEARTBEAT_S
            body = {
                **self._registration,
                "terms_heard": list(self._terms_heard),
                "told": [self._listener, self.next_event],
                "beat": self._next_beat(now_s),
                **self._more(),
            }
            self.stream.send(Message(op=ops.REGISTER, body=body))
            self._outbox.heartbeat()

    def _next_beat(self, now_s: float) -> int:
        self._num_beats += 1
        self._beats[self._num_beats] = now_s
        self._beats.pop(self._num_beats - MAX_BEATS, None)
        return self._num_beats

    def beat_soon(self) -> None:
        """There is something to be said."""
        self.next_heartbeat_s = 0.0

    def hear(self) -> None:
        """Take what the coordinator has sent."""
        while (message := self.stream.receive()) is not None:
            if message.op == RESUME:
                continue  # a request that waits there is being worked on: no answer to it
            if message.op == ops.FREE:
                self._free(message)
            elif message.op == ops.TERMS:
                self._on_terms(Terms.from_plain(message.body["terms"]))
                self._terms_heard = str(message.body["from"]), int(message.body["number"])
                self.next_heartbeat_s = 0.0  # says that this was heard
            elif message.op == ops.SAVE:
                self._on_save(message)
            elif message.request_id >= FIRST_STEP_ID:
                continue  # the coordinator has heard of a step
            elif message.request_id >= FIRST_REQUEST_ID:
                self._on_admission(message)
            elif message.op == ERROR_OP:
                self._hear_error(decode_error(message.body))
            else:
                self._hear_answer(message)

    def _hear_error(self, error: TransferQueueError) -> None:
        log.error("the coordinator refused: %s", error)
        if isinstance(error, SlotTakenOver):
            self._on_refused(error)

    def _hear_answer(self, message: Message) -> None:
        incarnation, next_event = str(message.body["incarnation"]), int(message.body["next_event"])
        if message.request_id == 0 and incarnation != self._listener:
            kept = self.unsent()
            if self._listener is not None:
                kept = [replace(what, is_again=True) for what in kept]
            self._listener = incarnation
            self._outbox.begin([*kept, *self._account()])
            self.next_heartbeat_s = 0.0  # says that all of it has been sent
            self._on_new()
        elif message.request_id == 0:
            self._outbox.answer_to_heartbeat(next_event)
            asked_s = self._beats.get(int(message.body["beat"]))
            if asked_s is not None:
                self._on_beat(message.body, asked_s)
        elif incarnation == self._listener:
            self._outbox.acknowledge(next_event)

    def _free(self, message: Message) -> None:
        uids = ArrayReader(message.frames).int64s(message.body["uids"])
        partition, fields = str(message.body["partition"]), message.body["fields"]
        if fields is None:
            self._on_free(partition, uids)
        else:
            self._on_release(partition, uids, [str(name) for name in fields])

    def close(self) -> None:
        self.stream.close()

    def _message(self, event: Event) -> Message:
        arrays = ArrayWriter()
        body = {"slot": self._slot, "number": event.number, "to": self._listener}
        if isinstance(event.what, Committed):
            body |= _committed_body(event.what, arrays)
        elif isinstance(event.what, Whole):
            body |= {"kind": ops.WHOLE, "next_uid": event.what.next_uid}
        else:
            body |= _cleared_body(event.what, arrays)
        return Message(op=ops.EVENT, request_id=event.number, body=body, frames=arrays.frames)


def _committed_body(committed: Committed, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "kind": ops.COMMITTED,
        "again": committed.is_again,
        "partition": committed.partition,
        "uids": arrays.add(committed.uids),
        "fields": {name: list(spec.to_wire()) for name, spec in committed.specs.items()},
        "nbytes": dict(committed.nbytes),
        "tags": write_tags(committed.tags, arrays),
    }


def _cleared_body(cleared: Cleared, arrays: ArrayWriter) -> dict[str, Any]:
    partition, uids = cleared
    return {"kind": ops.CLEARED, "partition": partition, "uids": arrays.add(uids)}
