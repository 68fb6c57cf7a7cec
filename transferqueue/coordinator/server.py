"""The coordinator's edge: messages in, `ControlPlane` calls, effects out."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING

from transferqueue.coordinator.answers import answer_message
from transferqueue.coordinator.checkpoints import Checkpoints
from transferqueue.coordinator.control_plane import ControlPlane
from transferqueue.coordinator.declarations import Declarations
from transferqueue.coordinator.dump import dump, live_bytes
from transferqueue.coordinator.effects import Effect, FreeRows, Grant, Refuse
from transferqueue.coordinator.gate import Gate
from transferqueue.coordinator.greetings import Greetings
from transferqueue.coordinator.journal import copies_record
from transferqueue.coordinator.leases import Ending
from transferqueue.coordinator.opening import open_journal
from transferqueue.coordinator.parked import ParkedRequests
from transferqueue.coordinator.requests import claim_id_of
from transferqueue.coordinator.samplers import SamplerRegistry
from transferqueue.coordinator.second_copies import SecondCopies, SlotCopies
from transferqueue.coordinator.shard_links import ShardLinks
from transferqueue.coordinator.status import Status
from transferqueue.coordinator.time_limit import TimeLimit
from transferqueue.coordinator.upkeep import Upkeep
from transferqueue.errors import ClaimError, TransferQueueError
from transferqueue.homes import NAMED, Homes
from transferqueue.net.lent import Lent
from transferqueue.net.served import Served
from transferqueue.net.server import Reply, Request, Server
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader
from transferqueue.wire.tags import read_tags

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.checkpoint.restore_plan import SavedPlane
    from transferqueue.coordinator.replay import Replay
    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.journal.records import Record
    from transferqueue.net.keys import ServiceKeys

MAX_IDLE_S = 1.0

SAMPLER_LIMIT_S = 1.0
"""For a sampler of somebody else to choose; nobody is served meanwhile."""


class CoordinatorServer(Served):
    """Serves one `ControlPlane`. Everything it knows comes from the shards' streams."""

    def __init__(
        self,
        *,
        service_id: str,
        endpoints: Sequence[str],
        keys: ServiceKeys | None,
        num_shards: int,
        journal_path: str | None = None,
        epoch: int = 0,
        samplers: Sequence[type[Sampler]] = (),
        life: int = 0,
        homes: Homes = NAMED,
        saved: SavedPlane | None = None,
        replicas: int = 1,
        takeover_s: float | None = None,
    ) -> None:
        """``journal_path``: where to write down what a successor needs, if there will be one.
        ``epoch``: how many coordinators of this service there were before. ``samplers``: classes
        that claims may name besides the built-in and the installed ones. ``life``, ``homes`` and
        ``saved``: of a service that is restored from a checkpoint. ``replicas`` and ``takeover_s``:
        see `ServiceConfig`."""
        self.service_id = service_id
        self.failure: TransferQueueError | None = None
        self.incarnation = secrets.token_hex(8)
        self._num_shards = num_shards
        limit = TimeLimit(SAMPLER_LIMIT_S)
        self._plane = ControlPlane(
            samplers=SamplerRegistry(samplers, within=limit.run), homes=homes
        )
        self._opened = open_journal(self._plane, journal_path, epoch=epoch, saved=saved)
        self._journal = self._opened.journal
        self._journal.begin(self._dump)
        self._gate = Gate(
            is_open=not self._opened.is_successor,
            limit_s=time.monotonic() + self._opened.patience_s,
        )
        known = {slot: SlotCopies.from_plain(c) for slot, c in self._opened.found.copies.items()}
        self._copies = SecondCopies(replicas, takeover_s, known)
        self._links = ShardLinks(
            plane=self._plane,
            copies=self._copies,
            num_shards=num_shards,
            give_up=lambda slot: self._upkeep.lose_shard(slot),
            incarnation=self.incarnation,
            carry_out=self._carry_out,
            park=self._park,
            on_joined=self._greet,
            on_changed=lambda: self._greetings.answer(self._server),
            on_heard=lambda: self._declarations.heard(),
            journal=self._journal,
        )
        self._granted: Lent[int] = Lent()
        self._greetings = Greetings(
            service_id=service_id,
            incarnation=self.incarnation,
            num_shards=num_shards,
            links=self._links,
            homes=homes,
            probe=lambda request: self._server.probe(request),
        )
        self._checkpoints = Checkpoints(
            service_id=service_id,
            life=life,
            links=self._links,
            dump=self._dump_for_checkpoint,
            num_slots=lambda: self._plane.next_slot,
        )
        guarded = self._gate.guard(
            {
                ops.CLAIM: self._claim,
                ops.ACK: self._ack,
                ops.GIVE_BACK: self._give_back,
                ops.EXTEND: self._extend,
                ops.WAIT: self._wait,
                ops.SELECT: self._select,
                ops.UPDATE_TAGS: self._update_tags,
                **self._checkpoints.client_handlers,
            }
        )
        self._server = Server(
            endpoints=endpoints,
            keys=keys,
            handlers={ops.HELLO: self._greetings.hello, **guarded},
            mutating=ops.CHANGING,
            on_cancel=self._cancel,
        )
        self._parked = ParkedRequests(self._server.probe)
        self._declarations = Declarations(
            plane=self._plane,
            links=self._links,
            journal=self._journal,
            server=self._server,
            carry_out=self._carry_out,
        )
        self._upkeep = Upkeep(
            plane=self._plane,
            links=self._links,
            journal=self._journal,
            carry_out=self._carry_out,
            greet=self._greet,
        )
        status = Status(
            service_id=service_id,
            plane=self._plane,
            links=self._links,
            parked=self._parked,
            gate=self._gate,
            journal=self._journal,
            stages=self._upkeep.stages,
            server=self._server,
        )
        later = self._upkeep.handlers | self._declarations.handlers
        guarded = self._gate.guard(later) | {ops.STATUS: status.handle}
        self._server.add_handlers(self._links.handlers | self._checkpoints.shard_handlers | guarded)
        self._links.attach(self._server)
        self._checkpoints.attach(self._server)
        self.endpoints = self._server.endpoints
        self._resume(self._opened.found)

    def _resume(self, found: Replay) -> None:
        """Go on where an earlier coordinator was killed."""
        for key, record in found.answers.items():
            self._server.remember(key, Reply(body=record.body["body"], frames=record.frames))
        for claim_id, key in found.requests.items():
            self._granted.note(key, claim_id)
        self._journal.resume(found.requests)
        self._links.lost.update(found.lost)
        self._plane.next_slot = max(self._plane.next_slot, self._num_shards)
        self._awaited = self._plane.next_slot  # the slots that may have rows, joined ones too
        self._links.declare(self._plane.partitions.terms())

    def _dump(self) -> Iterator[Record]:
        yield from dump(self._plane, self._journal.requests, self._links.lost, time.monotonic())
        yield from (copies_record(slot, of.to_plain()) for slot, of in self._copies.slots.items())
        yield from self._journal.answers(self._plane.leases.is_out)

    def _dump_for_checkpoint(self) -> Iterator[Record]:
        """Shards that are lost are not part of what is restored."""
        return dump(self._plane, {}, {}, time.monotonic(), every_row=True)

    def run(self) -> None:
        self._server.run(self._tick)

    def drain(self) -> None:
        """Nothing: samples lie on shards."""

    def close(self, *, keep: bool = False) -> None:
        """``keep``: leave the journal for a successor."""
        self._checkpoints.close()
        self._server.close()
        self._opened.close(keep=keep)

    # -- time and effects -----------------------------------------------------------------------

    def _tick(self, now_s: float) -> float:
        if not self._gate.is_open and now_s >= self._gate.limit_s:
            self._gate.open(self._server)
        self._journal.tick(now_s, lambda: live_bytes(self._plane))
        due_s = self._plane.next_deadline_s()
        if due_s is not None and due_s <= now_s:
            self._carry_out(self._plane.tick(now_s))
            due_s = self._plane.next_deadline_s()
        self._forget_the_gone(now_s)
        self._checkpoints.tick(now_s)
        self._links.copies.tick(now_s)
        parts = (self._parked, self._greetings, self._checkpoints, self._links.copies)
        due = [at for at in (due_s, *(part.next_s() for part in parts)) if at is not None]
        return min(MAX_IDLE_S, max(0.0, min(due) - now_s)) if due else MAX_IDLE_S

    def _forget_the_gone(self, now_s: float) -> None:
        """Free the places of those that ended, or lost their connection, while they waited."""
        for request in (*self._parked.gone(now_s), *self._greetings.gone(now_s)):
            if not self._links.is_shard(request.peer):  # what a shard asks it asks once
                self._server.forget(request)
                self._cancel(request.key)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, FreeRows):
                self._links.order_free(effect)
                continue
            request = self._parked.pop(effect.waiter_id)
            if request is None:
                continue
            if isinstance(effect, Refuse):
                self._server.refuse(request, effect.error)
            elif isinstance(effect.payload, Grant):
                self._hand_out(request, effect.payload)
            else:
                self._server.reply(request, answer_message(effect.payload))

    def _hand_out(self, request: Request, grant: Grant) -> None:
        """Answer a claim. When nobody is connected to hear it, it is as if it had not been made;
        otherwise its rows would be out until the lease ends."""
        reply = answer_message(grant)
        self._granted.note(request.key, grant.claim_id)
        self._write_down(request, grant, reply)
        if not self._server.reply(request, reply):
            self._server.forget(request)
            self._cancel(request.key)

    def _write_down(self, request: Request, grant: Grant, reply: Reply) -> None:
        now_s = time.monotonic()
        lease = self._plane.leases.get(grant.claim_id, now_s)
        claims = self._plane.partitions.known(grant.partition).claims
        self._journal.granted(lease, claims, now_s, (request.key, reply))

    def _park(self, request: Request, effects: Sequence[Effect]) -> None:
        """Keep the request until one of the effects, now or later, answers it."""
        self._parked.add(request)
        self._carry_out(effects)

    def _cancel(self, key: tuple[bytes, int]) -> None:
        self._greetings.cancel(key)
        self._checkpoints.cancel(key)
        self._gate.cancel(key)
        self._declarations.cancel(key)
        now_s = time.monotonic()
        if self._parked.pop(key) is not None:
            self._carry_out(self._plane.cancel(key, now_s=now_s))
        claim_id = self._granted.take_back(key)
        if claim_id is not None:
            with contextlib.suppress(ClaimError):
                effects = self._plane.give_back(claim_id, now_s=now_s, ending=Ending.UNHEARD)
                self._journal.given_back(claim_id, now_s, ending=Ending.UNHEARD)
                self._carry_out(effects)

    # -- clients and shards ---------------------------------------------------------------------

    def _greet(self) -> None:
        if self._greetings.are_all_here:
            if not self._gate.is_open and self._links.are_settled(self._awaited):
                self._gate.open(self._server)
            self._greetings.answer(self._server)

    # -- operations -----------------------------------------------------------------------------

    def _claim(self, request: Request) -> None:
        body, arrays = request.body, ArrayReader(request.frames)
        now_s = time.monotonic()
        self._park(
            request,
            self._plane.claim(
                now_s=now_s,
                waiter_id=request.key,
                client_id=str(body["client"]),
                partition=str(body["partition"]),
                task=str(body["task"]),
                fields=list(body["fields"]),
                n=request.number("n"),
                uids=arrays.int64s(body["uids"]) if body["uids"] is not None else None,
                sampler=body["sampler"],
                where=body["where"],
                deadline_s=request.received_s + request.seconds(),
                lease_s=request.seconds("lease_s"),
                allow_partial=bool(body["allow_partial"]),
            ),
        )

    def _ack(self, request: Request) -> Reply:
        """Body: ``claim_id``, ``drop``: uids that are of no use to anybody any more, or nil."""
        claim_id, now_s = claim_id_of(request.body), time.monotonic()
        drop = ArrayReader(request.frames).get_optional(request.body["drop"])
        effects = self._plane.ack(claim_id, now_s=now_s, drop=drop)
        reply = Reply(body={})
        self._journal.acked(claim_id, now_s, (request.key, reply), drop=drop)
        self._carry_out(effects)
        return reply

    def _give_back(self, request: Request) -> Reply:
        claim_id, now_s = claim_id_of(request.body), time.monotonic()
        effects = self._plane.give_back(claim_id, now_s=now_s)
        reply = Reply(body={})
        self._journal.given_back(claim_id, now_s, (request.key, reply))
        self._carry_out(effects)
        return reply

    def _extend(self, request: Request) -> Reply:
        now_s = time.monotonic()
        lease_s = request.seconds("lease_s")
        claim_id = claim_id_of(request.body)
        deadline_s = self._plane.extend(claim_id, lease_s, now_s=now_s)
        reply = Reply(body={"lease_s": deadline_s - now_s})
        self._journal.extended(claim_id, lease_s, now_s, (request.key, reply))
        return reply

    def _wait(self, request: Request) -> None:
        body, now_s = request.body, time.monotonic()
        self._park(
            request,
            self._plane.wait(
                now_s=now_s,
                waiter_id=request.key,
                client_id=str(body.get("client") or request.peer_name),
                partition=str(body["partition"]),
                uids=ArrayReader(request.frames).int64s(body["uids"]),
                fields=list(body["fields"]),
                deadline_s=request.received_s + request.seconds(),
            ),
        )

    def _select(self, request: Request) -> None:
        body, now_s = request.body, time.monotonic()
        self._park(
            request,
            self._plane.select(
                now_s=now_s,
                waiter_id=request.key,
                client_id=str(body.get("client") or request.peer_name),
                partition=str(body["partition"]),
                where=body["where"],
                fields=list(body["fields"]),
                order_by=body["order_by"],
                descending=bool(body["descending"]),
                n=body["n"],
                min_rows=request.number("min_rows"),
                deadline_s=request.received_s + request.seconds(),
            ),
        )

    def _update_tags(self, request: Request) -> Reply:
        body, arrays, now_s = request.body, ArrayReader(request.frames), time.monotonic()
        name, uids = str(body["partition"]), arrays.int64s(body["uids"])
        tags = read_tags(body["tags"], arrays)
        effects = self._plane.update_tags(now_s=now_s, partition=name, uids=uids, tags=tags)
        quota = self._plane.partitions.known(name).quota
        reply, rows_put = Reply(body={}), quota.rows_put
        told = (request.key, reply)
        self._journal.tagged(name, uids, tags, rows_put=rows_put, now_s=now_s, told=told)
        self._carry_out(effects)
        return reply
