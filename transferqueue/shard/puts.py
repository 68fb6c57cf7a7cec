"""A shard's edge for puts: space is reserved, bytes come, and then all of it is visible or none.

Bytes come in one of three ways: with the request, when they are few; written by the client into
the mapped arena, on this host; else in chunks. Of one put some columns may come by the second way
and others, that go to a backend which nobody maps, by the third.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Malformed, ShardDraining
from transferqueue.net.lent import Lent
from transferqueue.net.server import Reply
from transferqueue.shard.admission import Admission, Room
from transferqueue.shard.chunked_puts import ChunkedPuts
from transferqueue.shard.commits import COMMIT_GRACE_S, Commits
from transferqueue.shard.deadlines import Deadlines
from transferqueue.shard.ended_clients import PutsOfEndedClients
from transferqueue.shard.moved_bytes import MovedBytes, way_of_put
from transferqueue.shard.new_rows import NewRows
from transferqueue.shard.reach import ARENA
from transferqueue.shard.waiting_puts import WaitingPut, WaitingPuts
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.put import BY_WRITE, PutPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.server import Handler, Request, Server
    from transferqueue.replication.home import Copies
    from transferqueue.shard.hold import Hold
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.peers import MappingPeers
    from transferqueue.shard.put_room import PutRoom
    from transferqueue.shard.reach import Memories
    from transferqueue.shard.recovery import Recovery
    from transferqueue.shard.store import Committed, Reservation, Store
    from transferqueue.shard.windows import Windows
    from transferqueue.wire.format import Message

TRY_AGAIN_S = 0.25
"""How often puts that wait are tried although nothing was freed here: the directory of the arena
may have been full, and others share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The space of one shard, for its error messages."""

    slot: int
    nbytes: int


class Puts:
    """The requests that make up puts. ``on_commit`` hears what became visible, in order; ``send``
    carries what `Admission` asks to the coordinator. ``memories``: what processes of this host can
    have mapped or open. ``copies``: where commits pass through."""

    def __init__(
        self,
        *,
        server: Server,
        moved: MovedBytes,
        store: Store,
        backend: SeveralBackends,
        peers: MappingPeers,
        budget: Budget,
        journal: ShardJournal,
        memories: Memories,
        on_commit: Callable[[Committed], None],
        send: Callable[[Message], None],
        hold: Hold,
        copies: Copies,
        room: PutRoom,
        windows: Windows,
    ) -> None:
        self._room = room
        self._windows = windows
        self._hold = hold
        self._copies = copies
        self._server = server
        self._moved = moved
        self._store = store
        self._backend = backend
        self._peers = peers
        self._budget = budget
        self._journal = journal
        self._memories = memories
        self._on_commit = on_commit
        self._commits = Commits(
            server=server,
            store=store,
            backend=backend,
            journal=journal,
            copies=copies,
            give_up=self._give_up,
            on_commit=self._committed,
        )
        self._waiting = WaitingPuts()
        self.admission = Admission(slot=budget.slot, server=server, send=send, enter=self._enter)
        self._of_ended = PutsOfEndedClients(server, self._waiting, self.admission)
        self._rooms: dict[int, Room] = {}  # by put_id, until its commit
        self._try_again_s = 0.0
        self._deadlines = Deadlines(server.probe)
        self._chunked = ChunkedPuts(
            store=store, backend=backend, journal=journal, deadlines=self._deadlines
        )
        self._lent: Lent[int] = Lent()
        self.handlers: dict[str, Handler] = {
            ops.PUT: self._put,
            ops.WRITE: self._chunked.write,
            **hold.guard({ops.COMMIT: self._commit}),
            ops.ABORT: self._abort,
        }
        self.is_draining = False
        """Whether samples that are not here yet are refused. Fields of those that are come in."""

    def resume(self, found: Recovery) -> None:
        """Go on with what an earlier process of this shard had answered."""
        for key, (partition, first_uid, num_rows) in found.answers.items():
            body = {"first_uid": first_uid, "num_rows": num_rows}
            self._server.remember(key, Reply(body=body))
            if partition is not None:
                rows = NewRows(partition=partition, first_uid=first_uid, num_rows=num_rows)
                self._commits.made.note(key, rows)
        for put_id, record in found.puts.items():
            key = bytes(record.body["key"][0]), int(record.body["key"][1])
            self._lent.note(key, put_id)
            is_lent = bool(record.body["lent"])
            reservation = self._store.reservation(put_id)
            mapped = ARENA.of(self._backend, reservation.addresses)  # nothing else outlives it
            self._server.remember(key, _set_aside(reservation, mapped if is_lent else None))
            if not record.body["filled"]:
                self._chunked.expect(reservation, np.flatnonzero(~mapped))
            if not is_lent:
                self._deadlines.add(put_id, float(record.body["deadline_s"]) + COMMIT_GRACE_S)
        self._journal.keep(found.puts)

    @property
    def waiting(self) -> Iterable[WaitingPut]:
        """Puts that wait for space, in the order they came."""
        return self._waiting

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def bytes_wanted(self, number: int) -> int:
        """Of the first put that waits for space of this backend; 0 when none does."""
        first = None if self._hold.is_on else self._waiting.first_for(number)
        return 0 if first is None else first.needs[number]

    @property
    def bytes_waiting(self) -> int:
        return self._waiting.num_bytes

    def report(self) -> dict[str, Any]:
        """For ``status``."""
        return {
            "draining": self.is_draining,
            "puts_waiting": self.num_waiting,
            "bytes_waiting": self.bytes_waiting,
            "puts_over_quota": len(self.admission),
        }

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Refuse puts that waited too long for space; give back what clients left behind."""
        if self._waiting or self.admission:
            self._tick_waiting(now_s)
        if self._rooms:
            self._give_back_rooms_of_ended_puts()
        self._commits.tick(now_s)
        late = self._deadlines.pass_by(now_s)
        for put_id in late:
            self._give_up(put_id)
        if late:
            self.admit()

    def _tick_waiting(self, now_s: float) -> None:
        self.admission.tick(now_s)
        for put in self._of_ended.take_out(now_s):
            self._give_room_back(put)
            self._try_again_s = now_s
        if self._waiting and now_s >= self._try_again_s:
            self._try_again_s = now_s + TRY_AGAIN_S
            self.admit()
        for put in self._waiting.expire(now_s):
            self._server.refuse(put.request, self._room.full(put, now_s - put.since_s))
            self._give_room_back(put)

    def next_s(self) -> float | None:
        """When `tick` is due."""
        due = [self._deadlines.next_s(), self._commits.next_s()]
        if self._waiting or self.admission:
            due += [
                self._waiting.next_deadline_s(),
                self.admission.next_s(),
                self._of_ended.next_s(),
                self._try_again_s if self._waiting else None,
            ]
        return min([at_s for at_s in due if at_s is not None], default=None)

    def cancel(self, key: tuple[bytes, int]) -> NewRows | None:
        """The client gave a request up and will never hear its answer: nothing of it may stay.

        Returns the samples that it made, which are to be cleared.
        """
        self.admission.cancel(key)
        for put in self._waiting.remove(key):
            self._give_room_back(put)
        put_id = self._lent.take_back(key)
        if put_id is not None:
            self._give_up(put_id)
        return self._commits.cancel(key)

    def admit(self) -> None:
        """Space came free: offer it to the puts that wait."""
        if not self._hold.is_on:
            self._waiting.admit(self._try_put)

    # -- reserve --------------------------------------------------------------------------------

    def _put(self, request: Request) -> None:
        """Body: a `PutPlan`, ``payload``, ``writer``, ``commit``, ``timeout_s``.

        ``payload`` is a frame with the bytes of all columns; with ``commit`` the rows are in when
        this is answered, else they are held under the ``put_id`` of the answer until ``commit`` or
        ``abort`` names it. Without ``payload`` the answer has a ``put_id`` too: the process
        ``writer`` is told where to write each column, or, if that is nil, the bytes come by
        ``write``. So do those of columns whose address is -1; of all, where no addresses come.
        ``window`` names a transport of the client, and in the answer is an `OpenWindow` to all
        columns, where the shard has it too and the bytes have their place already.
        """
        body = request.body
        plan = PutPlan.read(body, ArrayReader(request.frames))
        if body["payload"] is not None:
            _payload_of(request, plan)  # sizes are checked before anything is reserved
        if self.is_draining and plan.uids is None:
            raise ShardDraining(self._budget.slot)
        put = WaitingPut(
            request=request,
            plan=plan,
            since_s=request.received_s,
            deadline_s=request.received_s + request.seconds(),
            needs=self._store.choice.bytes_of(plan),
        )
        if not self._room.may_ever_hold(put.needs):
            raise self._room.full(put, 0.0)
        self._of_ended.come(request.received_s)
        if self.admission.concerns(plan):
            self.admission.ask(put, request.received_s)
        else:
            self._try_or_wait(put)

    def _try_or_wait(self, put: WaitingPut) -> None:
        if self._hold.is_on or self._waiting.are_ahead_of(put):
            self._waiting.add(put)
        elif lacking := self._try_put(put):
            self._waiting.add(put, lacking)

    def _enter(self, put: WaitingPut) -> None:
        """There is room for the put in its partition; now it needs space here."""
        self._try_or_wait(replace(put, is_admitted=True))

    def _give_room_back(self, put: WaitingPut) -> None:
        if put.is_admitted:
            self.admission.give_back(Room.of(put.plan))

    def _give_back_rooms_of_ended_puts(self) -> None:
        """Puts that were given up on any way: by their client, their process or their deadline."""
        ended = [put_id for put_id in self._rooms if not self._store.is_under_way(put_id)]
        for put_id in ended:
            self.admission.give_back(self._rooms.pop(put_id))

    def _try_put(self, put: WaitingPut) -> tuple[int, ...]:
        """Backends that have no room for the put now; none: it is answered, done or refused for
        good.

        This may be on the occasion of another request, so a failure is answered to the put's own.
        """
        is_reserved = False
        with self._server.answering(put.request):
            writer = put.request.body["writer"]
            self._memories.reached_by(writer)
            key = put.request.peer_name if writer is None else self._peers.key_of(writer)
            if lacking := self._room.lacking(put.needs):
                return lacking
            reservation = self._store.reserve(put.plan, key)
            if reservation is None:
                return self._backend.refused
            is_reserved = True
            if put.is_admitted:
                self._rooms[reservation.put_id] = Room.of(put.plan)
            try:
                reply = self._reserved(put, reservation)
            except BaseException:
                self._give_up(reservation.put_id)
                raise
            if reply is not None:
                self._server.reply(put.request, reply)
        if not is_reserved:
            self._give_room_back(put)
        return ()

    def _reserved(self, put: WaitingPut, reservation: Reservation) -> Reply | None:
        """``None``: it is answered when it is visible."""
        body = put.request.body
        self._moved.put(put.plan, way_of_put(body))
        if body["payload"] is not None:
            return self._fill(put, reservation)
        self._lent.note(put.request.key, reservation.put_id)
        reach = self._memories.reached_by(body["writer"])
        mapped = reach.of(self._backend, reservation.addresses)
        is_lent = body["writer"] is not None and bool(mapped.any())
        columns = np.flatnonzero(~mapped) if is_lent else np.arange(len(mapped))
        if is_lent:
            # No deadline: while its process lives it may be writing, so only its commit, its abort
            # or its end give the space on.
            self._write_down(put, reservation, is_lent=True, is_filled=not len(columns))
        else:
            final_s = put.deadline_s + COMMIT_GRACE_S
            self._deadlines.add(reservation.put_id, final_s, put.request)
        if len(columns) or not is_lent:
            self._chunked.expect(reservation, columns, put)
        if is_lent or (window := self._windows.to_write(body.get("window"), reservation)) is None:
            return _set_aside(reservation, mapped if is_lent else None)
        return Reply(body={"put_id": reservation.put_id, "window": window})

    def _write_down(
        self, put: WaitingPut, reservation: Reservation, *, is_lent: bool, is_filled: bool = True
    ) -> None:
        self._journal.reserved(
            reservation,
            put.request,
            is_lent=is_lent,
            is_filled=is_filled,
            deadline_s=put.deadline_s,
        )

    def _fill(self, put: WaitingPut, reservation: Reservation) -> Reply | None:
        payload = _payload_of(put.request, put.plan).data
        at = 0
        for address, column in zip(reservation.addresses.tolist(), put.plan.columns, strict=True):
            if column.nbytes:
                self._backend.write(address, payload[at : at + column.nbytes])
                at += column.nbytes
        if put.request.body["commit"]:
            self._commits.make_visible(put.request, reservation.put_id)
            return None
        self._write_down(put, reservation, is_lent=False)
        self._lent.note(put.request.key, reservation.put_id)
        final_s = put.deadline_s + COMMIT_GRACE_S
        self._deadlines.add(reservation.put_id, final_s, put.request)
        return _set_aside(reservation, None)

    # -- the end --------------------------------------------------------------------------------

    def _committed(self, put_id: int, committed: Committed) -> None:
        self._rooms.pop(put_id, None)  # used: the coordinator counts the rows themselves
        self._on_commit(committed)

    def _commit(self, request: Request) -> None:
        """Body: ``put_id``; ``by_window`` when all of its bytes have come through the window."""
        put_id = request.number("put_id")
        if request.body.get("by_window") and self._windows.has_put(put_id):
            self._windows.settle_put(put_id)
            self._chunked.came_otherwise(put_id)
        else:
            self._chunked.refuse_unless_complete(put_id)
        self._store.reservation(put_id)
        self._forget(put_id)
        self._commits.make_visible(request, put_id)

    def _abort(self, request: Request) -> Reply:
        """Body: ``put_id``."""
        put_id = request.number("put_id")
        self._copies.after_waiting(lambda: self._give_up(put_id))
        self.admit()
        return Reply(body={})

    def _give_up(self, put_id: int) -> None:
        self._forget(put_id)
        self._journal.aborted(put_id)
        self._store.abort(put_id)

    def _forget(self, put_id: int) -> None:
        self._windows.close_put(put_id)
        self._chunked.forget(put_id)
        self._deadlines.drop(put_id)


def _set_aside(reservation: Reservation, mapped: np.ndarray | None) -> Reply:
    """The answer to a put that holds space. ``mapped``: bool[columns], which of them the process
    that puts is to write where the answer says; ``None``: none."""
    if mapped is None:
        return Reply(body={"put_id": reservation.put_id})
    arrays = ArrayWriter()
    addresses = arrays.add(np.where(mapped, reservation.addresses, BY_WRITE))
    answer = {"put_id": reservation.put_id, "addresses": addresses}
    return Reply(body=answer, frames=arrays.frames)


def _payload_of(request: Request, plan: PutPlan) -> np.ndarray:
    payload = ArrayReader(request.frames).get_bytes(request.body["payload"])
    if len(payload) != plan.nbytes:
        raise Malformed(f"a payload of {len(payload)} bytes for columns of {plan.nbytes}")
    return payload
