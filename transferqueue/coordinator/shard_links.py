"""The coordinator's edge towards the shards: their streams in, orders out."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.coordinator.answers import spec_from_wire
from transferqueue.coordinator.copy_links import CopyLinks
from transferqueue.coordinator.requests import committed_tags
from transferqueue.coordinator.shard_link import ShardLink
from transferqueue.errors import RowsLost, TagTypeMismatch, UnknownBackend
from transferqueue.net.server import Handler, Reply, Request, Server
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.format import Message
from transferqueue.wire.ops import SHARDS_EPOCH
from transferqueue.wire.tags import SITE_TAG, read_tags
from transferqueue.wire.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from transferqueue.coordinator.control_plane import ControlPlane
    from transferqueue.coordinator.effects import Effect, FreeRows
    from transferqueue.coordinator.journal import CoordinatorJournal
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.second_copies import SecondCopies


class ShardLinks:
    """Every shard that has come. ``carry_out`` takes effects of the control plane, ``park`` those
    that will answer a request, ``on_joined`` hears of a new shard, ``on_changed`` that the
    directory is another one, ``on_heard`` that ``terms_heard`` may be. ``give_up``: a slot's rows
    are lost. ``copies``: see there."""

    def __init__(
        self,
        *,
        plane: ControlPlane,
        copies: SecondCopies,
        num_shards: int,
        give_up: Callable[[int], None],
        incarnation: str,
        carry_out: Callable[[Sequence[Effect]], None],
        park: Callable[[Request, Sequence[Effect]], None],
        on_joined: Callable[[], None],
        on_changed: Callable[[], None],
        on_heard: Callable[[], None],
        journal: CoordinatorJournal,
    ) -> None:
        self._plane = plane
        self._incarnation = incarnation
        self._carry_out = carry_out
        self._park = park
        self._on_joined = on_joined
        self._on_changed = on_changed
        self._on_heard = on_heard
        self._journal = journal
        self._shards: dict[int, ShardLink] = {}
        self.lost: dict[int, str] = {}
        """Slots that were given up, with the incarnation of the shard that had them."""
        self._second = copies
        self.copies = CopyLinks(
            copies,
            shards=self._shards,
            num_shards=num_shards,
            slots=lambda: set(range(plane.next_slot)) - self.lost.keys(),
            uids_of=plane.partitions.homes.new_uids_of,
            journal=journal,
            lose=give_up,
            on_changed=self._changed,
        )
        self._terms = Terms()
        self._num_terms = 0
        self._server: Server | None = None
        self._num_changes = 0
        self.handlers: dict[str, Handler] = {
            ops.REGISTER: self._register,
            ops.EVENT: self._event,
            ops.ADMIT: self._admit,
            ops.RETURN_ROOM: self._return_room,
            **self.copies.handlers,
        }

    def attach(self, server: Server) -> None:
        """The server over which orders go; once, before it runs."""
        self._server = server
        self._say_epoch()

    @property
    def epoch(self) -> str:
        """Another one whenever what `directory` tells is another: clients that hear of it, with
        any answer, ask for the directory again."""
        return f"{self._incarnation}.{self._num_changes}"

    def _changed(self) -> None:
        self._num_changes += 1
        self._say_epoch()
        self._on_changed()

    def _say_epoch(self) -> None:
        assert self._server is not None
        self._server.with_every_answer[SHARDS_EPOCH] = self.epoch

    @property
    def terms_heard(self) -> list[int]:
        """Of each shard that has come, the number of the terms that it knows."""
        return [shard.terms_heard for shard in self._shards.values()]

    def check_backends(self, names: Iterable[str]) -> None:
        """UnknownBackend unless every shard has them."""
        of_shards = [list(shard.facts["backends"]) for shard in self._shards.values()]
        for name in names:
            for known in of_shards:
                if name not in known:
                    raise UnknownBackend(name, known)

    def are_settled(self, num_shards: int) -> bool:
        """Whether each of the first so many slots has a shard that has come and told all that it
        holds, or one that nobody waits for any more."""
        come = {slot for slot, shard in self._shards.items() if shard.told is None}
        return (come | self.lost.keys()) >= set(range(num_shards))

    def is_shard(self, peer: bytes) -> bool:
        """Whether this peer is the stream of a shard."""
        return any(shard.peer == peer for shard in self._shards.values())

    def lose(self, slot: int) -> str:
        """The shard of this slot is gone for good. Another one may take the slot. Returns the
        incarnation of the one that is gone, if it was here."""
        shard = self._shards.pop(slot, None)
        self.lost[slot] = "" if shard is None else shard.incarnation
        self._second.lose(slot)
        self.copies.look_again(time.monotonic())
        self._changed()
        self._on_heard()
        return self.lost[slot]

    @property
    def slots(self) -> list[int]:
        return sorted(self._shards)

    @property
    def incarnations(self) -> dict[int, str]:
        """Of each shard that has come."""
        return {slot: shard.incarnation for slot, shard in self._shards.items()}

    @property
    def next_events(self) -> dict[int, int]:
        """Of each shard, the number of the event that is heard next."""
        return {slot: shard.next_event for slot, shard in self._shards.items()}

    def heard_s(self, slot: int) -> float:
        """When a shard that has come said something last."""
        return self._shards[slot].heard_s

    def order_step(self, slot: int, body: dict[str, Any]) -> None:
        """Have a shard carry out a step of a checkpoint; one that is away misses it."""
        shard = self._shards.get(slot)
        if shard is not None:
            self._send(shard, Message(op=ops.SAVE, body=body))

    def directory(self) -> list[dict[str, Any]]:
        """What clients need to reach each shard."""
        return [
            {
                "slot": slot,
                "endpoints": shard.endpoints,
                "guard": self.copies.guard_of(slot),
                **shard.facts,
            }
            for slot, shard in sorted(self._shards.items())
        ]

    def declare(self, terms: Terms) -> int:
        """What shards have to know of partitions from now on. Returns its number: shards that know
        of it say so in ``terms_heard``."""
        if terms != self._terms:
            self._terms = terms
            self.ask()
        return self._num_terms

    def ask(self) -> int:
        """Have every shard tell what it has done so far. Returns the number of the question: shards
        of whom all has come that was done before they heard it say so in ``terms_heard``."""
        self._num_terms += 1
        self._tell_terms(list(self._shards.values()))
        return self._num_terms

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
        if self.lost.get(slot) == body["incarnation"]:
            raise RowsLost(0, 0, [slot])  # it lives, but what it held was written off
        self.copies.came(slot, body)
        shard = self._shards.get(slot)
        if self.lost.pop(slot, None) is not None:
            self._journal.found(slot, request.received_s)
        is_new = shard is None or shard.incarnation != body["incarnation"]
        if shard is None or is_new:
            shard = self._shards[slot] = ShardLink(
                slot=slot,
                peer=request.peer,
                incarnation=str(body["incarnation"]),
                lineage=str(body.get("lineage") or ""),
                endpoints=list(body["endpoints"]),
                facts=dict(body["facts"]),
            )
            self._carry_out(self._plane.slot_joined(slot, now_s=time.monotonic()))
        shard.peer, shard.heard_s = request.peer, request.received_s
        if is_new or shard.facts != body["facts"]:
            shard.facts = dict(body["facts"])
            self.copies.look_again(request.received_s)
            self._changed()
        if is_new:
            self._tell_terms([shard])
        self._note_heard(shard, body)
        answer = {
            "next_event": shard.next_event,
            "incarnation": self._incarnation,
            "beat": body["beat"],
        }
        if "copies" in body:
            answer["copies"] = self.copies.hear(slot, body["copies"], request.received_s)
        return Reply(body=answer)

    def _note_heard(self, shard: ShardLink, body: Mapping[str, Any]) -> None:
        """What it knows counts once everything has come that it had told before it said so: an
        event may have been lost with a connection, and this not."""
        by, number = body["terms_heard"]
        to, next_event = body["told"]
        is_all_here = to == self._incarnation and shard.next_event >= int(next_event)
        if by == self._incarnation and is_all_here:
            shard.terms_heard = int(number)
        self._on_heard()

    def _event(self, request: Request) -> Reply:
        """One numbered event of a shard's stream. Answered with the number that comes next, which
        acknowledges all before it and asks for a resend when it is not what the shard expects."""
        shard = self._shards.get(request.number("slot"))
        if shard is None:
            return Reply(body={"next_event": 0, "incarnation": self._incarnation})
        is_for_me = request.body["to"] == self._incarnation
        if is_for_me and request.body["number"] == shard.next_event:
            shard.next_event += 1
            if request.body["kind"] == ops.WHOLE:
                self._carry_out(self._whole(shard, request.number("next_uid")))
            else:
                self._carry_out(self._apply_event(shard, request))
        return Reply(body={"next_event": shard.next_event, "incarnation": self._incarnation})

    def _whole(self, shard: ShardLink, next_uid: int) -> list[Effect]:
        """A shard has told of all of its rows."""
        told, shard.told = shard.told, None
        uids = np.unique(np.concatenate([np.empty(0, np.int64), *(told or ())]))
        effects = self._plane.slot_told(shard.slot, uids, next_uid=next_uid, now_s=time.monotonic())
        self._on_joined()
        return effects

    def _apply_event(self, shard: ShardLink, request: Request) -> list[Effect]:
        slot = shard.slot
        body, arrays = request.body, ArrayReader(request.frames)
        now_s, partition, uids = (
            time.monotonic(),
            str(body["partition"]),
            arrays.int64s(body["uids"]),
        )
        if body["kind"] == ops.COMMITTED and shard.told is not None:
            shard.told.append(uids)
        if body["kind"] == ops.CLEARED:
            return self._plane.cleared(now_s=now_s, slot=slot, partition=partition, uids=uids)
        tags = read_tags(body["tags"], arrays)
        untold = self._untold(partition, uids)
        # Where a put was made is told to people alone: it is not worth a record.
        site = {SITE_TAG: tags.pop(SITE_TAG)} if SITE_TAG in tags else {}
        fresh = {} if body["again"] else tags
        effects = self._plane.commit(
            now_s=now_s,
            slot=slot,
            partition=partition,
            uids=uids,
            fields={str(name): spec_from_wire(spec) for name, spec in body["fields"].items()},
            tags={**fresh, **site},
            nbytes=body["nbytes"],
        )
        made = self._plane.partitions.made(partition)
        if fresh or (made.policy.samples_per_insert is not None and shard.told is None):
            rows_put = made.quota.rows_put
            self._journal.tagged(partition, uids, fresh, rows_put=rows_put, now_s=now_s)
        elif made.policy.ttl_s is not None and len(untold):
            rows_put = made.quota.rows_put
            self._journal.tagged(partition, untold, {}, rows_put=rows_put, now_s=now_s)
        return effects + (self._fill_tags(made, uids, tags, now_s) if body["again"] else [])

    def _untold(self, partition: str, uids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows that come now, of which a successor has to know since when they are there."""
        known = self._plane.partitions.get(partition)
        if known is None or known.policy.ttl_s is None:
            return uids[:0]
        return uids[known.table.find(uids) < 0]

    def _fill_tags(
        self, made: Partition, uids: NDArray[np.int64], tags: Mapping[str, Any], now_s: float
    ) -> list[Effect]:
        """Tags of a put that was perhaps heard of before: what rows have since been given stays."""
        effects: list[Effect] = []
        parsed, _ = committed_tags(tags, np.arange(len(uids)))
        for name, values in parsed.items():
            at = made.lacking(name, uids)
            if len(at):
                missing = {name: values.take(at)}
                with contextlib.suppress(TagTypeMismatch):
                    effects += made.update_tags(uids[at], missing, now_s)
                    filled = {name: values.take(at).to_column()}
                    rows_put = made.quota.rows_put
                    self._journal.tagged(
                        made.name, uids[at], filled, rows_put=rows_put, now_s=now_s
                    )
        return effects

    def _tell_terms(self, shards: Sequence[ShardLink]) -> None:
        body = {
            "terms": self._terms.to_plain(),
            "from": self._incarnation,
            "number": self._num_terms,
        }
        for shard in shards:
            self._send(shard, Message(op=ops.TERMS, body=body))

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
