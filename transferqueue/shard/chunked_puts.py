"""Puts of which some columns, or all, come in chunks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.errors import Malformed, TransferExpired
from transferqueue.net.server import Reply
from transferqueue.shard.transfers import IncomingPut

if TYPE_CHECKING:
    import numpy as np

    from transferqueue.backends.base import Backend
    from transferqueue.net.server import Request
    from transferqueue.shard.deadlines import Deadlines
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.store import Reservation, Store
    from transferqueue.shard.waiting_puts import WaitingPut


@dataclass(frozen=True, slots=True, kw_only=True)
class _Incoming:
    put: WaitingPut | None
    """``None``: an earlier process of this shard began it, and took chunks that are not known."""
    chunks: IncomingPut


class ChunkedPuts:
    """Takes their chunks. ``deadlines`` are those of puts whose client nobody can watch."""

    def __init__(
        self, *, store: Store, backend: Backend, journal: ShardJournal, deadlines: Deadlines
    ) -> None:
        self._store = store
        self._backend = backend
        self._journal = journal
        self._deadlines = deadlines
        self._incoming: dict[int, _Incoming] = {}

    def expect(
        self, reservation: Reservation, columns: np.ndarray, put: WaitingPut | None = None
    ) -> None:
        """The bytes of these columns, int64, come in chunks. ``put``: `_Incoming`."""
        sizes = [reservation.plan.columns[at].nbytes for at in columns.tolist()]
        chunks = IncomingPut(sizes, reservation.addresses[columns])
        self._incoming[reservation.put_id] = _Incoming(put=put, chunks=chunks)

    def forget(self, put_id: int) -> None:
        self._incoming.pop(put_id, None)

    def refuse_unless_complete(self, put_id: int) -> None:
        """`InvalidInput` for a commit that comes before all of the bytes; `TransferExpired` where
        the client cannot know which are missing."""
        incoming = self._incoming.get(put_id)
        if incoming is None:
            return
        if incoming.put is None and not incoming.chunks.is_complete:
            raise TransferExpired("put", put_id, self._store.slot)
        incoming.chunks.refuse_unless_complete()

    def came_otherwise(self, put_id: int) -> None:
        """All of the bytes are in their place, and did not come in chunks."""
        self._write_down(self._store.reservation(put_id), self._incoming[put_id])

    def write(self, request: Request) -> Reply:
        """Body: ``put_id``, ``chunk``; the bytes of the chunk in any frames.

        The same chunk may come again: its answer was lost.
        """
        put_id, chunk = request.number("put_id"), request.number("chunk")
        reservation = self._store.reservation(put_id)
        incoming = self._incoming.get(put_id)
        if incoming is None and self._journal.is_complete(put_id):
            return Reply(body={})  # an earlier process of this shard took all of them
        if incoming is None:
            raise Malformed(f"put {put_id} does not come in chunks")
        chunks = incoming.chunks
        for address, block in chunks.places(chunk, request.frames):
            self._backend.write(address, block)
        chunks.note(chunk)
        if chunks.is_complete:
            self._write_down(reservation, incoming)
        self._deadlines.heard(put_id, time.monotonic(), more_to_come=not chunks.is_complete)
        return Reply(body={})

    def _write_down(self, reservation: Reservation, incoming: _Incoming) -> None:
        if self._journal.is_reserved(reservation.put_id):
            self._journal.filled(reservation.put_id)
        elif incoming.put is not None:
            put = incoming.put
            self._journal.reserved(
                reservation, put.request, is_lent=False, deadline_s=put.deadline_s
            )
