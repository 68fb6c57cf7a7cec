"""Gets of rows whose home does not answer: its guard answers from the mirror.

Nothing of a mirror is mapped by clients, since nobody would know of their leases when this process
has been killed: bytes go with the answer, or are asked for in chunks.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from transferqueue.errors import NoSecondCopy, TransferExpired
from transferqueue.replication.keeper import FIRST_EPOCH
from transferqueue.replication.relied_on import ReliedOn
from transferqueue.shard.device_loans import DeviceLoans
from transferqueue.shard.gets import Gets
from transferqueue.shard.journal import ShardJournal
from transferqueue.shard.moved_bytes import MovedBytes
from transferqueue.shard.reach import Memories
from transferqueue.shard.store import EPOCH_SHIFT
from transferqueue.shard.windows import Windows
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.server import Handler, Reply, Request, Server
    from transferqueue.replication.changes import Key
    from transferqueue.replication.keeper import Keeper, Kept
    from transferqueue.shard.peers import MappingPeers


class MirrorGets:
    """The same operations as `Gets`, for every mirror that a guard keeps. ``on_asked`` hears that
    the coordinator is to be asked which mirrors may be read (`ReliedOn`); gets wait for it."""

    def __init__(
        self,
        keeper: Keeper,
        *,
        server: Server,
        backend: SeveralBackends,
        peers: MappingPeers,
        on_free: Callable[[], None],
        on_asked: Callable[[], None],
    ) -> None:
        self._on_asked = on_asked
        self._relied_on = ReliedOn()
        self._waiting: list[tuple[int, Request]] = []
        """Gets, by slot, of mirrors that it is not known of whether they may be read."""
        self._keeper = keeper
        self._server = server
        self._backend = backend
        self._peers = peers
        self._on_free = on_free
        self._moved = MovedBytes()
        self._gets: dict[int, Gets] = {}
        """By the number that the leases of a mirror begin with."""

    def beside(self, own: Mapping[str, Handler]) -> dict[str, Handler]:
        """Handlers that serve a request of a mirror, and leave the others to ``own``."""

        def get(request: Request) -> Reply | None:
            copy_of = request.body.get("copy_of")
            return own[ops.GET](request) if copy_of is None else self._get(request, copy_of)

        return {
            ops.GET: get,
            ops.READ: self._by_lease(ops.READ, own),
            ops.READ_DONE: self._by_lease(ops.READ_DONE, own),
        }

    def _get(self, request: Request, slot: int) -> Reply | None:
        kept = self._keeper.complete(slot)
        if kept is None:
            raise NoSecondCopy(slot)
        body = request.body
        if kept.mirror.lost.are_of(str(body["partition"]), [*body["fields"], *body["optional"]]):
            raise NoSecondCopy(slot)  # a field that it lacks is not one that nobody put
        if self._relied_on.may_read(slot, kept.generation, time.monotonic()):
            return self._got(request, kept)
        self._waiting.append((slot, request))
        self._on_asked()
        return None

    def asked_for(self) -> list[list[Any]]:
        """Slot and generation of the mirrors that somebody reads, or wants to."""
        return self._relied_on.to_ask(time.monotonic())

    def hear(self, answers: Iterable[Sequence[Any]], asked_s: float) -> None:
        """See `ReliedOn.hear`. Gets that waited go on."""
        refused = self._relied_on.hear(answers, asked_s)
        waiting, self._waiting = self._waiting, []
        for slot, request in waiting:
            with self._server.answering(request):
                kept = self._keeper.complete(slot)
                if kept is not None and kept.generation in refused:
                    raise NoSecondCopy(slot)
                reply = self._get(request, slot)
                if reply is not None:
                    self._server.reply(request, reply)

    def _got(self, request: Request, kept: Kept) -> Reply | None:
        gets = self._gets.get(kept.epoch)
        if gets is None:
            gets = self._gets[kept.epoch] = Gets(
                server=self._server,
                store=kept.mirror.store,
                backend=self._backend,
                peers=self._peers,
                moved=self._moved,
                journal=ShardJournal(None, slot=kept.mirror.store.slot, answers={}),
                memories=Memories(slot=kept.mirror.store.slot),
                loans=DeviceLoans(None),
                windows=Windows({}, self._backend),
                on_free=self._on_free,
            )
        return gets.handlers[ops.GET](replace(request, body={**request.body, "reader": None}))

    def _by_lease(self, op: str, own: Mapping[str, Handler]) -> Handler:
        def handle(request: Request) -> Reply | None:
            lease_id = request.number("lease_id")
            epoch = lease_id >> EPOCH_SHIFT
            if epoch < FIRST_EPOCH:
                return own[op](request)
            gets = self._gets.get(epoch)
            if gets is None:
                raise TransferExpired("get", lease_id, -1)
            return gets.handlers[op](request)

        return handle

    def cancel(self, key: Key) -> None:
        """A client gave a request up."""
        self._waiting = [one for one in self._waiting if one[1].key != key]
        for gets in self._gets.values():
            gets.cancel(key)

    def tick(self, now_s: float) -> None:
        """Forget mirrors that are not kept any more; see `Gets.tick`."""
        for epoch in [e for e in self._gets if self._keeper.by_epoch(e) is None]:
            del self._gets[epoch]
        for gets in self._gets.values():
            gets.tick(now_s)

    def next_s(self) -> float | None:
        """When `tick` is due."""
        due = (gets.next_s() for gets in self._gets.values())
        return min((at_s for at_s in due if at_s is not None), default=None)
