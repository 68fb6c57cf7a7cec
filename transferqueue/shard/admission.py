"""New samples of a partition that has a quota: the coordinator says when there is room for them.

Other puts never ask. Room that was given belongs to this shard until the put's commit uses it; a
put that ends in any other way gives it back.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.errors import ServiceUnreachable
from transferqueue.net.calls import CANCEL
from transferqueue.wire import ops
from transferqueue.wire.format import ERROR_OP, Message, decode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from transferqueue.net.server import Server
    from transferqueue.shard.waiting_puts import WaitingPut
    from transferqueue.wire.put import PutPlan

FIRST_REQUEST_ID = 1 << 40
"""Above the numbers of events, with which these requests share a stream."""

ANSWER_GRACE_S = 1.0
"""The coordinator refuses at the put's deadline; after so much longer it is not there."""

MAX_GIVEN_UP = 1024
"""Puts that gave up and whose answer may still come; one that was cancelled in time has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Room in a partition, in rows and bytes."""

    partition: str
    num_rows: int
    num_bytes: int

    @classmethod
    def of(cls, plan: PutPlan) -> Room:
        return cls(partition=plan.partition, num_rows=plan.num_rows, num_bytes=plan.nbytes)


class Admission:
    """Asks over the shard's stream. ``enter`` gets each put that there is room for."""

    def __init__(
        self,
        *,
        slot: int,
        server: Server,
        send: Callable[[Message], None],
        enter: Callable[[WaitingPut], None],
    ) -> None:
        self._slot = slot
        self._server = server
        self._send = send
        self._enter = enter
        self._limited: frozenset[str] = frozenset()
        self._asked: dict[int, WaitingPut] = {}
        self._given_up: dict[int, Room] = {}
        self._request_ids = itertools.count(FIRST_REQUEST_ID)

    def __len__(self) -> int:
        """Puts that wait for room."""
        return len(self._asked)

    def __iter__(self) -> Iterator[WaitingPut]:
        """Them, in the order they asked."""
        return iter(self._asked.values())

    def limit(self, partitions: Iterable[str]) -> None:
        """These partitions have a quota, and no others."""
        self._limited = frozenset(partitions)

    def concerns(self, plan: PutPlan) -> bool:
        return plan.uids is None and plan.num_rows > 0 and plan.partition in self._limited

    def ask(self, put: WaitingPut, now_s: float) -> None:
        """Let the put in when there is room; refuse it when its deadline comes first."""
        request_id = next(self._request_ids)
        self._asked[request_id] = put
        room = Room.of(put.plan)
        self._tell(ops.ADMIT, request_id, room, timeout_s=max(0.0, put.deadline_s - now_s))

    def ask_again(self, now_s: float) -> None:
        """The coordinator is another one, and knows of no put that waits."""
        self._given_up.clear()
        asked, self._asked = self._asked, {}
        for put in asked.values():
            self.ask(put, now_s)

    def hear(self, message: Message) -> None:
        """An answer of the coordinator to one of these requests."""
        put = self._asked.pop(message.request_id, None)
        room = self._given_up.pop(message.request_id, None)
        if put is None:
            # The put gave up while the answer was on its way.
            if room is not None and message.op != ERROR_OP:
                self.give_back(room)
        elif message.op == ERROR_OP:
            self._server.refuse(put.request, decode_error(message.body))
        else:
            self._enter(put)

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client of a put stopped waiting."""
        for request_id, put in list(self._asked.items()):
            if put.request.key == key:
                del self._asked[request_id]
                self._given_up[request_id] = Room.of(put.plan)
                if len(self._given_up) > MAX_GIVEN_UP:
                    del self._given_up[next(iter(self._given_up))]
                self._send(Message(op=CANCEL, request_id=request_id))

    def give_back(self, room: Room) -> None:
        """Room that was given and will not be used."""
        self._tell(ops.RETURN_ROOM, next(self._request_ids), room)

    def tick(self, now_s: float) -> None:
        """Refuse puts that the coordinator has not answered."""
        late = [i for i, put in self._asked.items() if put.deadline_s + ANSWER_GRACE_S <= now_s]
        for request_id in late:
            put = self._asked.pop(request_id)
            waited_s = now_s - put.since_s
            self._server.refuse(
                put.request, ServiceUnreachable("the coordinator", ops.ADMIT, waited_s)
            )

    def next_s(self) -> float | None:
        """When `tick` is due."""
        return min((put.deadline_s + ANSWER_GRACE_S for put in self._asked.values()), default=None)

    def _tell(self, op: str, request_id: int, room: Room, **more: float) -> None:
        body = {
            "slot": self._slot,
            "partition": room.partition,
            "num_rows": room.num_rows,
            "num_bytes": room.num_bytes,
            **more,
        }
        self._send(Message(op=op, request_id=request_id, body=body))
