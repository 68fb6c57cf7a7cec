"""A shard's edge: messages in, `Store` calls, bytes into and out of the backend, events out."""

from __future__ import annotations

import logging
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.arena_address import boot_id
from transferqueue.backends.arena_owner import pid_namespace
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.registry import open_backend
from transferqueue.errors import Malformed, StorageFull, TransferQueueError
from transferqueue.net.server import Reply, Request, Server
from transferqueue.shard.outbox import Event, Outbox
from transferqueue.shard.peers import MappingPeers
from transferqueue.shard.store import Committed, FoundColumn, Reservation, Store
from transferqueue.shard.waiting_puts import WaitingPut, WaitingPuts
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.format import ERROR_OP, Message, decode_error
from transferqueue.wire.get import GotColumn
from transferqueue.wire.put import PutPlan
from transferqueue.wire.tags import write_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transferqueue.net.keys import ServiceKeys
from transferqueue.net.lent import Lent

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5

_MUTATING = frozenset({ops.PUT, ops.COMMIT, ops.ABORT, ops.CLEAR, ops.RELEASE})

MAP_FROM_BYTES = 64 << 10
"""Columns of a get from this size on are left in place for a reader that can map them. Smaller
ones are sent: copying them costs less than the lease that a mapping needs."""

_Cleared = tuple[str, np.ndarray]  # partition, uids


class ShardServer:
    """Serves one `Store` over one backend, and tells the coordinator what is in it."""

    def __init__(
        self,
        *,
        service_id: str,
        slot: int,
        endpoints: Sequence[str],
        coordinator: str,
        keys: ServiceKeys | None,
        backend: str,
        budget_bytes: int,
        arena_dir: str,
    ) -> None:
        self.slot = slot
        self.incarnation = secrets.token_hex(8)
        self._budget_bytes = budget_bytes
        self._backend = open_backend(
            backend,
            BackendConfig(
                service_id=service_id, slot=slot, budget_bytes=budget_bytes, directory=arena_dir
            ),
        )
        self._store = Store(slot=slot, space=self._backend)
        self._waiting = WaitingPuts()
        self._put_deadlines: dict[int, float] = {}
        self._lent_puts: Lent[int] = Lent()
        self._lent_leases: Lent[tuple[str, int]] = Lent()
        self._outbox = Outbox()
        self._next_heartbeat_s = 0.0
        self._server = Server(
            endpoints=endpoints,
            keys=keys,
            handlers={
                ops.PUT: self._put,
                ops.COMMIT: self._commit,
                ops.ABORT: self._abort,
                ops.GET: self._get,
                ops.CLEAR: self._clear,
                ops.RELEASE: self._release,
                ops.STATUS: self._status,
            },
            mutating=_MUTATING,
            on_cancel=self._cancel,
        )
        self.endpoints = self._server.endpoints
        self._peers = MappingPeers(self._server.watch, self._server.unwatch, self._peer_gone)
        self._uplink = self._server.open_stream(coordinator, keys)
        self._server.watch(self._uplink.socket, self._hear_coordinator)

    def watch(self, readable: int, callback: Callable[[], None]) -> None:
        self._server.watch(readable, callback)

    def run(self) -> None:
        self._server.run(self._tick)

    def stop(self) -> None:
        self._server.stop()

    def close(self) -> None:
        self._peers.close()
        self._uplink.close()
        self._server.close()
        self._backend.close()

    # -- time -----------------------------------------------------------------------------------

    def _tick(self, now_s: float) -> float:
        for put in self._waiting.expire(now_s):
            self._server.refuse(put.request, self._full(put.plan, now_s - put.since_s))
        self._abandon_late_puts(now_s)
        self._send_events()
        if now_s >= self._next_heartbeat_s:
            self._next_heartbeat_s = now_s + HEARTBEAT_S
            self._register()
        due_s = min(
            self._next_heartbeat_s,
            self._waiting.next_deadline_s() or self._next_heartbeat_s,
        )
        return due_s - now_s

    def _abandon_late_puts(self, now_s: float) -> None:
        """Give back what a writer reserved and did not commit within its deadline."""
        late = [put_id for put_id, deadline_s in self._put_deadlines.items() if deadline_s < now_s]
        for put_id in late:
            del self._put_deadlines[put_id]
            self._store.abort(put_id)
        if late:
            self._admit_waiting()

    def _cancel(self, key: tuple[bytes, int]) -> None:
        """A client gave a request up: nobody will use what it waits for, or what it was lent."""
        self._waiting.remove(key)
        put_id = self._lent_puts.take_back(key)
        if put_id is not None:
            self._store.abort(put_id)
        lease = self._lent_leases.take_back(key)
        if lease is not None:
            reader, lease_id = lease
            self._store.release(reader, [lease_id])
        self._admit_waiting()

    # -- put ------------------------------------------------------------------------------------

    def _put(self, request: Request) -> Reply | None:
        """Body: a `PutPlan`, ``payload`` (a frame for each column), ``commit``, ``timeout_s``.

        With ``commit`` the rows are in when this is answered. Without it the put is held, under
        the ``put_id`` of the answer, until ``commit`` or ``abort`` names it. With ``writer``
        instead of ``payload`` the answer says where that process is to write each column.
        """
        plan = PutPlan.read(request.body, ArrayReader(request.frames))
        if request.body["payload"] is not None:
            self._payload_of(request, plan)  # sizes are checked before anything is reserved
        if plan.nbytes > self._budget_bytes:
            raise self._full(plan, 0.0)
        put = WaitingPut(
            request=request,
            plan=plan,
            since_s=request.received_s,
            deadline_s=request.received_s + float(request.body["timeout_s"]),
        )
        if len(self._waiting) or not self._try_put(put):
            self._waiting.add(put)
        return None

    def _try_put(self, put: WaitingPut) -> bool:
        """Whether the put is answered: done, or refused for good. False: no space now."""
        try:
            body = put.request.body
            is_mapped = body["payload"] is None
            writer = self._peers.key_of(body["writer"]) if is_mapped else put.request.peer.hex()
            reservation = self._store.reserve(put.plan, writer)
            if reservation is None:
                return False
            if is_mapped:
                reply = self._lend(reservation)
                self._lent_puts.note(put.request.key, reservation.put_id)
            else:
                self._fill(reservation, self._payload_of(put.request, put.plan))
                reply = self._finish_put(reservation, put)
        except TransferQueueError as error:
            self._server.refuse(put.request, error)
        else:
            self._server.reply(put.request, reply)
        return True

    def _lend(self, reservation: Reservation) -> Reply:
        """Where the writer is to put the bytes. No deadline of time: while its process lives it
        may still be writing, so only its commit, its abort or its end give the space on."""
        arrays = ArrayWriter()
        body = {"put_id": reservation.put_id, "addresses": arrays.add(reservation.addresses)}
        return Reply(body=body, frames=arrays.frames)

    def _finish_put(self, reservation: Reservation, put: WaitingPut) -> Reply:
        if put.request.body["commit"]:
            return self._commit_reply(reservation.put_id)
        self._put_deadlines[reservation.put_id] = put.deadline_s
        return Reply(body={"put_id": reservation.put_id})

    def _payload_of(self, request: Request, plan: PutPlan) -> list[np.ndarray]:
        arrays = ArrayReader(request.frames)
        payload = [arrays.get_bytes(frame) for frame in request.body["payload"]]
        if [len(block) for block in payload] != [column.nbytes for column in plan.columns]:
            raise Malformed("the payload frames are not the columns' bytes")
        return payload

    def _fill(self, reservation: Reservation, payload: Sequence[np.ndarray]) -> None:
        for address, block in zip(reservation.addresses.tolist(), payload, strict=True):
            if len(block):
                self._backend.write(address, block.data)

    def _commit(self, request: Request) -> Reply:
        """Body: ``put_id``."""
        return self._commit_reply(_put_id(request))

    def _commit_reply(self, put_id: int) -> Reply:
        self._put_deadlines.pop(put_id, None)
        reservation = self._store.reservation(put_id)
        sizes = np.array([column.nbytes for column in reservation.plan.columns], dtype=np.int64)
        self._backend.seal(reservation.addresses, sizes)
        committed = self._store.commit(put_id)
        self._outbox.add(committed)
        first_uid = int(committed.uids[0]) if len(committed.uids) else 0
        return Reply(body={"first_uid": first_uid, "num_rows": len(committed.uids)})

    def _abort(self, request: Request) -> Reply:
        """Body: ``put_id``."""
        put_id = _put_id(request)
        self._put_deadlines.pop(put_id, None)
        self._store.abort(put_id)
        self._admit_waiting()
        return Reply(body={})

    def _admit_waiting(self) -> None:
        self._waiting.admit(self._try_put)

    def _full(self, plan: PutPlan, waited_s: float) -> StorageFull:
        return StorageFull(
            plan.nbytes,
            self._budget_bytes - self._backend.used_bytes,
            self._budget_bytes,
            waited_s,
            self.slot,
        )

    # -- get ------------------------------------------------------------------------------------

    def _get(self, request: Request) -> Reply:
        """Body: ``partition``, ``uids``, ``fields``, ``optional``, and ``reader``, the process that
        can map this shard's memory, or nil.

        Answered with the bytes; to a ``reader`` large columns as addresses, under ``lease_id``.
        """
        body = request.body
        found = self._store.find(
            str(body["partition"]),
            ArrayReader(request.frames).int64s(body["uids"]),
            list(body["fields"]),
            list(body["optional"]),
        )
        arrays = ArrayWriter()
        mapped = self._mapped_columns(body["reader"], found)
        columns = {
            name: self._got(column, is_mapped=name in mapped).write(arrays)
            for name, column in found.items()
            if column.specs
        }
        answer: dict[str, Any] = {"columns": columns, "lease_id": None}
        if mapped:
            reader = self._peers.key_of(body["reader"])
            lease_id = self._store.pin(reader, list(mapped.values()), time.monotonic())
            self._lent_leases.note(request.key, (reader, lease_id))
            answer["lease_id"] = lease_id
        return Reply(body=answer, frames=arrays.frames)

    def _mapped_columns(
        self, reader: Mapping[str, Any] | None, found: Mapping[str, FoundColumn]
    ) -> dict[str, FoundColumn]:
        if reader is None or not self._backend.capabilities.mappable:
            return {}
        return {
            name: column
            for name, column in found.items()
            if int(column.sizes.sum()) >= MAP_FROM_BYTES
        }

    def _release(self, request: Request) -> Reply:
        """Body: ``reader``, ``lease_ids``. Nothing of them is looked at any more."""
        lease_ids = ArrayReader(request.frames).int64s(request.body["lease_ids"])
        reader = self._peers.key_of(request.body["reader"])
        self._store.release(reader, lease_ids.tolist())
        self._admit_waiting()
        return Reply(body={})

    def _peer_gone(self, peer: str) -> None:
        self._store.peer_gone(peer)
        self._admit_waiting()

    def _got(self, column: FoundColumn, *, is_mapped: bool) -> GotColumn:
        has_lengths = any(spec.has_lengths for spec in column.specs)
        return GotColumn(
            specs=column.specs,
            spec_of_row=column.spec_of_row,
            present=column.present,
            lengths=column.cells.lengths if has_lengths else None,
            starts=column.cells.starts if is_mapped else None,
            payload=None if is_mapped else self._backend.read_ranges(column.cells.starts, column.sizes),
        )

    # -- clear ----------------------------------------------------------------------------------

    def _clear(self, request: Request) -> Reply:
        """Body: ``partition``, ``uids`` or nil for all. Rows not there are passed over."""
        uids = ArrayReader(request.frames)
        reference = request.body["uids"]
        gone = self._clear_rows(
            str(request.body["partition"]), None if reference is None else uids.int64s(reference)
        )
        return Reply(body={"num_rows": len(gone)})

    def _clear_rows(self, partition: str, uids: np.ndarray | None) -> np.ndarray:
        gone = self._store.clear(partition, uids)
        if len(gone):
            self._outbox.add((partition, gone))
            self._admit_waiting()
        return gone

    # -- coordinator ----------------------------------------------------------------------------

    def _register(self) -> None:
        self._uplink.send(
            Message(
                op=ops.REGISTER,
                request_id=0,
                body={
                    "slot": self.slot,
                    "incarnation": self.incarnation,
                    "endpoints": self.endpoints,
                    "facts": self._facts(),
                },
            )
        )
        self._outbox.heartbeat()

    def _facts(self) -> dict[str, Any]:
        """What a client needs to choose its way to this shard."""
        return {
            "boot_id": boot_id(),
            "pid": os.getpid(),
            "pid_namespace": pid_namespace(),
            "budget_bytes": self._budget_bytes,
            "arena": self._backend.client_access(),
        }

    def _send_events(self) -> None:
        for event in self._outbox.take_unsent():
            self._uplink.send(self._event_message(event))

    def _event_message(self, event: Event) -> Message:
        arrays = ArrayWriter()
        body = {"slot": self.slot, "number": event.number}
        if isinstance(event.what, Committed):
            body |= _committed_body(event.what, arrays)
        else:
            body |= _cleared_body(event.what, arrays)
        return Message(op=ops.EVENT, request_id=event.number, body=body, frames=arrays.frames)

    def _hear_coordinator(self) -> None:
        while (message := self._uplink.receive()) is not None:
            if message.op == ops.FREE:
                self._free(message)
            elif message.op == ERROR_OP:
                log.error("the coordinator refused: %s", decode_error(message.body))
            elif message.request_id == 0:
                self._outbox.answer_to_heartbeat(int(message.body["next_event"]))
            else:
                self._outbox.acknowledge(int(message.body["next_event"]))

    def _free(self, message: Message) -> None:
        """The coordinator says that nobody needs these rows any more."""
        uids = ArrayReader(message.frames).int64s(message.body["uids"])
        self._clear_rows(str(message.body["partition"]), uids)

    # -- status ---------------------------------------------------------------------------------

    def _status(self, request: Request) -> Reply:
        del request
        return Reply(
            body={
                "slot": self.slot,
                "pid": os.getpid(),
                "budget_bytes": self._budget_bytes,
                "used_bytes": self._backend.used_bytes,
                "rows": self._store.num_rows,
                "partitions": {
                    name: {"rows": len(table), "fields": table.fields}
                    for name, table in self._store.partitions.items()
                },
                "slabs": len(self._store.slabs),
                "leases": len(self._store.leases),
                "leased_bytes": self._store.leases.pinned_bytes(),
                "held_bytes": self._store.leases.held_bytes,
                "mapping_processes": len(self._peers),
                "puts_under_way": self._store.num_puts_under_way,
                "puts_waiting": len(self._waiting),
                "bytes_waiting": self._waiting.num_bytes,
                "events_unsent": len(self._outbox),
                "requests": dict(self._server.requests),
                "refusals": dict(self._server.refusals),
                "keys_refused": self._server.num_keys_refused,
            }
        )


def _put_id(request: Request) -> int:
    put_id = request.body["put_id"]
    if type(put_id) is not int:
        raise Malformed(f"put_id must be an int, got {put_id!r:.40}")
    return put_id


def _committed_body(committed: Committed, arrays: ArrayWriter) -> dict[str, Any]:
    return {
        "kind": ops.COMMITTED,
        "partition": committed.partition,
        "uids": arrays.add(committed.uids),
        "fields": {name: list(spec.to_wire()) for name, spec in committed.specs.items()},
        "nbytes": dict(committed.nbytes),
        "tags": write_tags(committed.tags, arrays),
    }


def _cleared_body(cleared: _Cleared, arrays: ArrayWriter) -> Mapping[str, Any]:
    partition, uids = cleared
    return {"kind": ops.CLEARED, "partition": partition, "uids": arrays.add(uids)}
