"""The coordinator's edge towards the shards: their streams in, orders out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transferqueue.coordinator.answers import spec_from_wire
from transferqueue.errors import RowsLost
from transferqueue.net.server import Handler, Reply, Request, Server
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.format import Message
from transferqueue.wire.tags import read_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.coordinator.control_plane import ControlPlane
    from transferqueue.coordinator.effects import Effect, FreeRows


@dataclass(slots=True, kw_only=True)
class ShardLink:
    """A shard as the coordinator knows it."""

    slot: int
    peer: bytes
    incarnation: str
    endpoints: list[str]
    facts: dict[str, Any]
    """What clients need to choose a way to it: boot id, arena, …"""
    next_event: int = 1
    """The event of its stream that comes next; earlier ones are repeats."""


class ShardLinks:
    """Every shard that has come. ``carry_out`` takes effects of the control plane, ``park`` those
    that will answer a request, ``on_joined`` hears of a new shard."""

    def __init__(
        self,
        *,
        plane: ControlPlane,
        incarnation: str,
        carry_out: Callable[[Sequence[Effect]], None],
        park: Callable[[Request, Sequence[Effect]], None],
        on_joined: Callable[[], None],
    ) -> None:
        self._plane = plane
        self._incarnation = incarnation
        self._carry_out = carry_out
        self._park = park
        self._on_joined = on_joined
        self._shards: dict[int, ShardLink] = {}
        self._lost: dict[int, str] = {}
        """Slots that were given up, with the incarnation of the shard that had them."""
        self._limited: set[str] = set()
        self._server: Server | None = None
        self.handlers: dict[str, Handler] = {
            ops.REGISTER: self._register,
            ops.EVENT: self._event,
            ops.ADMIT: self._admit,
            ops.RETURN_ROOM: self._return_room,
        }

    def attach(self, server: Server) -> None:
        """The server over which orders go; once, before it runs."""
        self._server = server

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def num_settled(self) -> int:
        """Shards that have come, and those that nobody waits for any more."""
        return len(self._shards.keys() | self._lost.keys())

    def is_shard(self, peer: bytes) -> bool:
        """Whether this peer is the stream of a shard."""
        return any(shard.peer == peer for shard in self._shards.values())

    def lose(self, slot: int) -> None:
        """The shard of this slot is gone for good. Another one may take the slot."""
        shard = self._shards.pop(slot, None)
        self._lost[slot] = "" if shard is None else shard.incarnation

    @property
    def slots(self) -> list[int]:
        return sorted(self._shards)

    def directory(self) -> list[dict[str, Any]]:
        """What clients need to reach each shard."""
        return [
            {"slot": slot, "endpoints": shard.endpoints, **shard.facts}
            for slot, shard in sorted(self._shards.items())
        ]

    def limit(self, partition: str) -> None:
        """The partition has a quota: every shard is to ask before it takes new rows."""
        self._limited.add(partition)
        self._tell_limited(list(self._shards.values()))

    def unlimit(self, partition: str) -> None:
        """The partition is gone, and its quota with it."""
        if partition in self._limited:
            self._limited.remove(partition)
            self._tell_limited(list(self._shards.values()))

    def _send(self, shard: ShardLink, message: Message) -> None:
        assert self._server is not None
        self._server.send(shard.peer, message)

    def order_free(self, effect: FreeRows) -> None:
        shard = self._shards.get(effect.slot)
        if shard is None:
            return  # asked again by slot_joined when the shard is back
        arrays = ArrayWriter()
        body = {
            "partition": effect.partition,
            "uids": arrays.add(effect.uids),
            "fields": None if effect.fields is None else list(effect.fields),
        }
        self._send(
            shard,
            Message(op=ops.FREE, request_id=0, body=body, frames=arrays.frames),
        )

    def _register(self, request: Request) -> Reply:
        """A shard says hello, again and again: it is its heartbeat. It learns which event comes
        next, and that it must tell everything anew when the coordinator is another one."""
        body = request.body
        slot = request.number("slot")
        if self._lost.get(slot) == body["incarnation"]:
            raise RowsLost(0, 0, [slot])  # it lives, but what it held was written off
        self._lost.pop(slot, None)
        shard = self._shards.get(slot)
        is_new = shard is None or shard.incarnation != body["incarnation"]
        if shard is None or is_new:
            shard = self._shards[slot] = ShardLink(
                slot=slot,
                peer=request.peer,
                incarnation=str(body["incarnation"]),
                endpoints=list(body["endpoints"]),
                facts=dict(body["facts"]),
            )
            self._carry_out(self._plane.slot_joined(slot, now_s=time.monotonic()))
            self._on_joined()
        shard.peer = request.peer
        if is_new:
            self._tell_limited([shard])
        return Reply(body={"next_event": shard.next_event, "incarnation": self._incarnation})

    def _event(self, request: Request) -> Reply:
        """One numbered event of a shard's stream. Answered with the number that comes next, which
        acknowledges all before it and asks for a resend when it is not what the shard expects."""
        shard = self._shards.get(request.number("slot"))
        if shard is None:
            return Reply(body={"next_event": 0, "incarnation": self._incarnation})
        if request.body["number"] == shard.next_event:
            shard.next_event += 1
            self._carry_out(self._apply_event(shard.slot, request))
        return Reply(body={"next_event": shard.next_event, "incarnation": self._incarnation})

    def _apply_event(self, slot: int, request: Request) -> list[Effect]:
        body, arrays = request.body, ArrayReader(request.frames)
        now_s, partition, uids = (
            time.monotonic(),
            str(body["partition"]),
            arrays.int64s(body["uids"]),
        )
        if body["kind"] == ops.CLEARED:
            return self._plane.cleared(now_s=now_s, slot=slot, partition=partition, uids=uids)
        return self._plane.commit(
            now_s=now_s,
            slot=slot,
            partition=partition,
            uids=uids,
            fields={str(name): spec_from_wire(spec) for name, spec in body["fields"].items()},
            tags=read_tags(body["tags"], arrays),
            nbytes=body["nbytes"],
        )

    def _tell_limited(self, shards: Sequence[ShardLink]) -> None:
        """Name the partitions that have a quota to shards."""
        body = {"partitions": sorted(self._limited)}
        for shard in shards:
            self._send(shard, Message(op=ops.LIMITED, body=body))

    def _admit(self, request: Request) -> None:
        """A shard asks for room for new rows."""
        body, now_s = request.body, time.monotonic()
        self._park(
            request,
            self._plane.admit(
                now_s=now_s,
                waiter_id=request.key,
                client_id=request.peer,
                slot=request.number("slot"),
                partition=str(body["partition"]),
                num_rows=request.number("num_rows"),
                num_bytes=request.number("num_bytes"),
                deadline_s=now_s + request.seconds(),
            ),
        )

    def _return_room(self, request: Request) -> Reply:
        """Room that was admitted and will not be used."""
        body = request.body
        effects = self._plane.return_credit(
            now_s=time.monotonic(),
            slot=request.number("slot"),
            partition=str(body["partition"]),
            num_rows=request.number("num_rows"),
            num_bytes=request.number("num_bytes"),
        )
        self._carry_out(effects)
        return Reply(body={})
