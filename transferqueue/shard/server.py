"""One shard: a `Store` over one backend, served to clients and reported to the coordinator."""

from __future__ import annotations

import logging
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from transferqueue.net.served import Served
from transferqueue.net.server import Server
from transferqueue.process_id import boot_id, pid_namespace
from transferqueue.replication.fetching import Fetcher
from transferqueue.replication.home import Copies
from transferqueue.replication.shard_part import ShardPart
from transferqueue.shard.account import account, tags_left
from transferqueue.shard.checkpoints import ShardCheckpoints
from transferqueue.shard.clears import Clears
from transferqueue.shard.device_loans import DeviceLoans
from transferqueue.shard.gets import Gets
from transferqueue.shard.hold import Hold
from transferqueue.shard.inquiries import Inquiries
from transferqueue.shard.moved_bytes import MovedBytes
from transferqueue.shard.opening import open_shard
from transferqueue.shard.peers import MappingPeers
from transferqueue.shard.put_room import PutRoom
from transferqueue.shard.puts import Budget, Puts
from transferqueue.shard.reach import Memories
from transferqueue.shard.snapshot import snapshot
from transferqueue.shard.spill import Spill
from transferqueue.shard.status import ShardStatus
from transferqueue.shard.uplink import Uplink
from transferqueue.shard.windows import Windows
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from transferqueue.errors import TransferQueueError
    from transferqueue.journal.records import Record
    from transferqueue.shard.recovery import Recovery
    from transferqueue.shard.settings import ShardSettings
    from transferqueue.wire.terms import Terms

_log = logging.getLogger(__name__)

_MUTATING = frozenset({ops.PUT, ops.COMMIT, ops.ABORT, ops.CLEAR, ops.RELEASE, ops.READ_DONE})


class ShardServer(Served):
    """Puts, gets, clears and status of one shard. Everything happens on one thread, `run`'s."""

    def __init__(
        self,
        settings: ShardSettings,
        *,
        on_hosted: Callable[[Sequence[Mapping[str, Any]]], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """``on_hosted`` hears, again and again, which slots of others are to be served here too,
        because nobody else does. ``should_stop``: whether its process ends while it still fetches
        its rows; then `Closed` is raised."""
        self._settings = settings
        self.slot = slot = settings.slot
        self.failure: TransferQueueError | None = None
        """Why it ended by itself."""
        self.incarnation = secrets.token_hex(8)
        self._budget = Budget(slot=slot, nbytes=settings.budget_bytes)
        coordinator, keys, copies = settings.coordinator, settings.keys, settings.copies
        fetcher = Fetcher(
            slot=slot,
            lineage=settings.lineage,
            coordinator=coordinator,
            keys=keys,
            should_stop=should_stop,
        )
        opened = open_shard(
            settings.storage,
            epoch=settings.epoch,
            beginning=settings.beginning,
            fetch=fetcher if copies else None,
        )
        self._on_hosted = on_hosted
        self.epoch = opened.epoch
        self._backend = opened.backend
        self._store = opened.found.store
        self._journal = opened.journal
        self._terms = opened.found.terms
        self._hold = Hold(lambda request: self._checkpoints.may_pass(request))
        self._server = Server(
            endpoints=settings.endpoints,
            keys=keys,
            handlers={},
            mutating=_MUTATING,
            on_cancel=self._cancel,
        )
        self.endpoints = self._server.endpoints
        self._windows = Windows.opened(
            self._backend,
            settings.transports,
            service_id=settings.service_id,
            slot=slot,
            endpoints=self.endpoints,
            encrypt=keys is None or keys.encrypted,
        )
        self._peers = MappingPeers(
            self._server.watch, self._server.unwatch, self._peer_gone, self._journal.peer
        )
        self._uplink = Uplink(
            self._server.open_stream(coordinator, keys),
            slot=slot,
            registration=self._registration(),
            on_free=lambda partition, uids: self._clears.clear_rows(partition, uids),
            on_release=lambda *fields_of: self._clears.release_fields(*fields_of),
            on_terms=self._hear_terms,
            on_admission=lambda message: self._puts.admission.hear(message),
            on_new=self._coordinator_is_new,
            on_save=lambda message: self._checkpoints.hear(message, time.monotonic()),
            left_of=lambda committed: tags_left(self._store, committed),
            account=lambda: account(self._store),
            more=self._beat,
            on_beat=self._hear_beat,
            on_refused=self._refused,
        )
        self._server.watch(self._uplink.stream.socket, self._uplink.hear)
        self._second: ShardPart | None = None
        if copies is not None:
            self._second = ShardPart(
                copies,
                server=self._server,
                keys=keys,
                store=self._store,
                backend=self._backend,
                peers=self._peers,
                epoch=self.epoch,
                answers=self._journal.answers,
                unsent=self._uplink.unsent,
                num_unsent=lambda: self._uplink.num_unsent,
                on_free=lambda: self._puts.admit(),
                on_news=self._uplink.beat_soon,
            )
        self._copies: Copies = Copies() if self._second is None else self._second.copies
        self._loans = DeviceLoans(self._backend)
        memories = Memories.of(slot, self._backend)
        self._moved = MovedBytes()
        self._puts = Puts(
            server=self._server,
            moved=self._moved,
            store=self._store,
            backend=self._backend,
            peers=self._peers,
            budget=self._budget,
            journal=self._journal,
            memories=memories,
            on_commit=self._uplink.add,
            send=self._uplink.stream.send,
            hold=self._hold,
            copies=self._copies,
            room=PutRoom(
                self._backend, slot, None if self._second is None else self._second.kept_bytes
            ),
            windows=self._windows,
        )
        self._gets = Gets(
            server=self._server,
            moved=self._moved,
            store=self._store,
            backend=self._backend,
            peers=self._peers,
            journal=self._journal,
            memories=memories,
            loans=self._loans,
            windows=self._windows,
            on_free=self._puts.admit,
        )
        self._checkpoints = ShardCheckpoints(
            slot=slot,
            store=self._store,
            backend=self._backend,
            server=self._server,
            hold=self._hold,
            send=self._uplink.stream.send,
            next_event=lambda: self._uplink.next_event,
            on_free=self._puts.admit,
            is_settled=lambda: self._copies.num_waiting == 0,
        )
        self._spill = Spill.of(
            self._backend,
            settings.spill,
            settings.budget_bytes,
            store=self._store,
            journal=self._journal,
            wanted=lambda: self._puts.bytes_wanted(self._backend.default),
            on_free=self._puts.admit,
        )
        inquiries = Inquiries(
            store=self._store,
            backend=self._backend,
            peers=self._peers,
            budget=self._budget,
            puts=self._puts,
        )
        self._clears = Clears(
            server=self._server,
            store=self._store,
            journal=self._journal,
            copies=self._copies,
            on_clear=lambda partition, gone: self._uplink.add((partition, gone)),
            on_free=self._puts.admit,
        )
        clears = self._hold.guard({ops.CLEAR: self._clears.clear})
        handlers = self._puts.handlers | self._gets.handlers | clears
        if self._second is not None:
            handlers |= self._second.handlers(self._gets.handlers)
        for op in ops.ENDING_LEASES:
            handlers[op] = self._gets.lease_ends.along(handlers[op])
        status = ShardStatus(
            slot=slot,
            epoch=self.epoch,
            budget=self._budget,
            backend=self._backend,
            store=self._store,
            journal=self._journal,
            peers=self._peers,
            puts=self._puts,
            gets=self._gets,
            loans=self._loans,
            spill=self._spill,
            second=self._second,
            uplink=self._uplink,
            moved=self._moved,
            server=self._server,
        )
        self._server.add_handlers(handlers | inquiries.handlers | {ops.STATUS: status.answer})
        self._resume(opened.found)
        if settings.draining:
            self.drain()

    def _resume(self, found: Recovery) -> None:
        """Go on where an earlier process of this shard was killed."""
        self._puts.admission.limit(found.terms.limited)
        self._copies.one_copy = found.terms.one_copy
        self._puts.resume(found)
        self._gets.resume(found)
        for committed in found.tagged():
            self._uplink.add(committed)
        for ended in self._peers.resume(found.peers):
            self._peer_gone(ended)

    def _coordinator_is_new(self) -> None:
        """It knows of no put that waits, and of no checkpoint."""
        self._checkpoints.abandon()
        self._puts.admission.ask_again(time.monotonic())

    def _registration(self) -> dict[str, Any]:
        """Who this is, and what a client needs to choose its way here."""
        return {
            "slot": self.slot,
            "incarnation": self.incarnation,
            "lineage": self._settings.lineage,
            "endpoints": self.endpoints,
            "facts": {
                "boot_id": boot_id(),
                "pid": os.getpid(),
                "pid_namespace": pid_namespace(),
                "budget_bytes": self._budget.nbytes,
                "arena": self._backend.client_access(),
                "devices": self._backend.device_accesses(),
                "transports": self._windows.facts,
                "files": self._backend.files(),
                "backends": self._store.choice.names,
                "draining": False,
                "node": self._settings.node or boot_id(),
            },
        }

    def _beat(self) -> dict[str, Any]:
        return {} if self._second is None else {"copies": self._second.beat()}

    def _hear_beat(self, said: Mapping[str, Any], asked_s: float) -> None:
        copies = said.get("copies")
        if self._second is not None and copies is not None:
            self._second.hear(copies, asked_s)
        if self._on_hosted is not None and copies is not None:
            self._on_hosted(copies["hosted"])

    def _refused(self, error: TransferQueueError) -> None:
        """The coordinator knows another shard of this slot, or has given this one up: nobody may
        be served here any more."""
        _log.error("shard %d ends: %s", self.slot, error)
        self.failure = error
        self.stop()

    def drain(self) -> None:
        """Take no new samples from now on: this shard is to go. Those that are here stay readable
        and take more fields. Safe from signal handlers; idempotent."""
        self._puts.is_draining = True
        self._uplink.say("draining", value=True)
        self._server.wake()

    def run(self) -> None:
        self._server.run(self._tick)

    def close(self, *, keep: bool = False) -> None:
        """``keep``: leave the rows for a successor."""
        self._checkpoints.close()
        self._peers.close()
        if self._second is not None:
            self._second.close()
        self._uplink.close()
        self._windows.close()
        self._server.close()
        self._journal.close()
        self._backend.close(keep=keep)

    def _tick(self, now_s: float) -> float:
        self._puts.tick(now_s)
        self._gets.tick(now_s)
        self._checkpoints.tick(now_s)
        if self._spill is not None:
            self._spill.tick(now_s)
        if self._loans.tick(now_s):
            self._puts.admit()
        if self._second is not None:
            self._second.tick(now_s)
        self._uplink.tick(now_s)
        self._journal.tick(now_s, self._size, self._snapshot)
        due = (
            self._uplink.next_heartbeat_s,
            self._puts.next_s(),
            self._gets.next_s(),
            self._checkpoints.next_s(),
            self._loans.next_s(),
            None if self._spill is None else self._spill.next_s(),
            None if self._second is None else self._second.next_s(),
            self._backend.tick(now_s),
        )
        return max(0.0, min([at_s for at_s in due if at_s is not None]) - now_s)

    def _size(self) -> tuple[int, int]:
        cells = sum(len(t) * len(t.fields) for t in self._store.partitions.values())
        return len(self._store.slabs), cells

    def _snapshot(self) -> Iterator[Record]:
        return snapshot(
            self._store,
            epoch=self.epoch,
            terms=self._terms,
            peers=self._peers.processes,
            puts=self._journal.reservations(),
            answers=self._journal.answers,
            unsent=self._uplink.unsent(),
        )

    def _hear_terms(self, terms: Terms) -> None:
        """What the coordinator says of partitions."""
        if terms != self._terms:
            self._terms = terms
            self._journal.told(terms)
        self._puts.admission.limit(terms.limited)
        self._store.choice.declare(terms.backends)
        self._copies.declare(terms.one_copy)

    # -- what ends without an answer ------------------------------------------------------------

    def _cancel(self, key: tuple[bytes, int]) -> None:
        """A client gave a request up: what it did, or was lent, is undone."""
        self._gets.cancel(key)
        self._hold.cancel(key)
        if self._second is not None:
            self._second.cancel(key)
        self._copies.after_waiting(lambda: self._undo(key))

    def _undo(self, key: tuple[bytes, int]) -> None:
        made = self._puts.cancel(key)
        if made is not None:
            self._clears.clear_rows(made.partition, made.uids)
        self._puts.admit()

    def _peer_gone(self, peer: str) -> None:
        """A process that had memory mapped has ended."""
        self._copies.after_waiting(lambda: self._take_back(peer))

    def _take_back(self, peer: str) -> None:
        self._journal.gone(peer)
        self._loans.process_gone(peer, self._store.reservations(), time.monotonic())
        self._store.peer_gone(peer)
        self._puts.admit()
