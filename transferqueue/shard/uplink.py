"""A shard's stream to the coordinator: who it is, what was committed and cleared, in order."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from transferqueue.shard.admission import FIRST_REQUEST_ID
from transferqueue.shard.outbox import Event, Outbox
from transferqueue.shard.store import Committed
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.format import ERROR_OP, Message, decode_error
from transferqueue.wire.tags import write_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from transferqueue.net.stream import StreamSender

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5

Cleared = tuple[str, "np.ndarray"]
"""Partition and uids."""


class Uplink:
    """``registration`` is sent with every heartbeat: the coordinator may have been restarted.
    ``on_free`` gets the rows that the coordinator says nobody needs any more, ``on_release`` those
    of which nobody needs some fields, ``on_limited`` the
    partitions that have a quota, ``on_admission`` the answers to what `Admission` asked."""

    def __init__(
        self,
        stream: StreamSender,
        *,
        slot: int,
        registration: Mapping[str, Any],
        on_free: Callable[[str, np.ndarray], object],
        on_release: Callable[[str, np.ndarray, Sequence[str]], object],
        on_limited: Callable[[Sequence[str]], None],
        on_admission: Callable[[Message], None],
    ) -> None:
        self.stream = stream
        self._slot = slot
        self._registration = registration
        self._on_free = on_free
        self._on_release = on_release
        self._on_limited = on_limited
        self._on_admission = on_admission
        self._outbox = Outbox()
        self.next_heartbeat_s = 0.0

    @property
    def num_unsent(self) -> int:
        """Events that the coordinator has not acknowledged."""
        return len(self._outbox)

    def add(self, what: Committed | Cleared) -> None:
        """Tell the coordinator, at the next `tick`."""
        self._outbox.add(what)

    def tick(self, now_s: float) -> None:
        for event in self._outbox.take_unsent():
            self.stream.send(self._message(event))
        if now_s >= self.next_heartbeat_s:
            self.next_heartbeat_s = now_s + HEARTBEAT_S
            self.stream.send(Message(op=ops.REGISTER, body=dict(self._registration)))
            self._outbox.heartbeat()

    def hear(self) -> None:
        """Take what the coordinator has sent."""
        while (message := self.stream.receive()) is not None:
            if message.op == ops.FREE:
                self._free(message)
            elif message.op == ops.LIMITED:
                self._on_limited([str(name) for name in message.body["partitions"]])
            elif message.request_id >= FIRST_REQUEST_ID:
                self._on_admission(message)
            elif message.op == ERROR_OP:
                log.error("the coordinator refused: %s", decode_error(message.body))
            elif message.request_id == 0:
                self._outbox.answer_to_heartbeat(int(message.body["next_event"]))
            else:
                self._outbox.acknowledge(int(message.body["next_event"]))

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
        body = {"slot": self._slot, "number": event.number}
        if isinstance(event.what, Committed):
            body |= _committed_body(event.what, arrays)
        else:
            body |= _cleared_body(event.what, arrays)
        return Message(op=ops.EVENT, request_id=event.number, body=body, frames=arrays.frames)


def _committed_body(committed: Committed, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "kind": ops.COMMITTED,
        "partition": committed.partition,
        "uids": arrays.add(committed.uids),
        "fields": {name: list(spec.to_wire()) for name, spec in committed.specs.items()},
        "nbytes": dict(committed.nbytes),
        "tags": write_tags(committed.tags, arrays),
    }


def _cleared_body(cleared: Cleared, arrays: ArrayWriter) -> dict[str, Any]:
    partition, uids = cleared
    return {"kind": ops.CLEARED, "partition": partition, "uids": arrays.add(uids)}
