"""Puts that have all their bytes, on their way to be seen: on both copies, where there are two."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.errors import RowsGone, StorageFull, TransferExpired
from transferqueue.net.lent import Lent
from transferqueue.net.server import Reply
from transferqueue.shard.new_rows import NewRows
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.server import Request, Server
    from transferqueue.replication.home import Copies
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.store import Committed, Reservation, Store

TRY_AGAIN_S = 0.1
"""How often a put is tried for whose second copy there was no room."""

COMMIT_GRACE_S = 10.0
"""A commit that a client sent within its deadline may take so long to get here, and, where there
is no room for the second copy, may wait so long for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """A request to make a put visible. It is answered when that is done."""

    request: Request
    reservation: Reservation
    until_s: float
    """How long there is to wait for room for the second copy."""


class Commits:
    """``give_up`` gives a put back that cannot be committed. ``on_commit`` hears what became
    visible, in order, with the number of its put."""

    def __init__(
        self,
        *,
        server: Server,
        store: Store,
        backend: SeveralBackends,
        journal: ShardJournal,
        copies: Copies,
        give_up: Callable[[int], None],
        on_commit: Callable[[int, Committed], None],
    ) -> None:
        self._server = server
        self._store = store
        self._backend = backend
        self._journal = journal
        self._copies = copies
        self._give_up = give_up
        self._on_commit = on_commit
        self._without_room: list[_Commit] = []
        self._again_s = 0.0
        self.made: Lent[NewRows] = Lent()
        """The samples that requests have made."""

    def make_visible(self, request: Request, put_id: int) -> None:
        """Answers the request, now or later. What is on its way to the second copy nothing gives
        up: not its client, nor the end of a process (`Copies.after_waiting`)."""
        reservation = self._store.reservation(put_id)
        sizes = np.array([column.nbytes for column in reservation.plan.columns], dtype=np.int64)
        try:
            self._backend.seal(reservation.addresses, sizes)
            self._store.check_commit(put_id)
        except BaseException:
            self._give_up(put_id)
            raise
        patience_s = COMMIT_GRACE_S if request.op == ops.COMMIT else request.seconds()
        until_s = request.received_s + patience_s
        self._submit(_Commit(request=request, reservation=reservation, until_s=until_s))

    def _submit(self, commit: _Commit) -> None:
        self._copies.put(
            commit.reservation,
            commit.request.key,
            carry_out=lambda: self._carry_out(commit.request, commit.reservation),
            refuse=lambda: self._refuse(commit),
        )

    def _carry_out(self, request: Request, reservation: Reservation) -> None:
        with self._server.answering(request):
            try:
                self._store.check_commit(reservation.put_id)
                self._write_down(request, reservation)
            except BaseException as error:
                self._give_up(reservation.put_id)
                if not isinstance(error, RowsGone):  # which it is at the guard, too
                    self._copies.start_over()
                raise
            self._server.reply(request, self._shown(request, reservation))

    def _write_down(self, request: Request, reservation: Reservation) -> None:
        is_new = reservation.plan.uids is None and reservation.plan.num_rows > 0
        first_uid = self._store.next_uid if is_new else 0
        if request.op == ops.COMMIT:
            self._journal.committed(reservation, request.key, first_uid)
        else:
            self._journal.reserved(
                reservation, request, is_lent=False, deadline_s=0.0, first_uid=first_uid
            )

    def _shown(self, request: Request, reservation: Reservation) -> Reply:
        committed = self._store.commit(reservation.put_id)
        self._on_commit(reservation.put_id, committed)
        first_uid = int(committed.uids[0]) if len(committed.uids) else 0
        rows = NewRows(
            partition=committed.partition, first_uid=first_uid, num_rows=len(committed.uids)
        )
        if reservation.plan.uids is None:
            self.made.note(request.key, rows)
        return Reply(body={"first_uid": rows.first_uid, "num_rows": rows.num_rows})

    # -- no room for the second copy ------------------------------------------------------------

    def _refuse(self, commit: _Commit) -> None:
        now_s = time.monotonic()
        if now_s < commit.until_s:
            self._without_room.append(commit)
            self._again_s = now_s + TRY_AGAIN_S
            return
        self._give_up(commit.reservation.put_id)
        waited_s = now_s - commit.request.received_s
        nbytes = commit.reservation.plan.nbytes
        free, capacity = self._copies.guard_free_bytes, self._copies.guard_bytes
        self._server.refuse(
            commit.request, StorageFull(nbytes, free, capacity, waited_s, self._copies.guard)
        )

    def cancel(self, key: tuple[bytes, int]) -> NewRows | None:
        """The client of a request gave up. Returns the samples that it has made."""
        for commit in [one for one in self._without_room if one.request.key == key]:
            self._without_room.remove(commit)
            self._give_up(commit.reservation.put_id)
        return self.made.take_back(key)

    def tick(self, now_s: float) -> None:
        """Try again those that had no room."""
        if self._without_room and now_s >= self._again_s:
            commits, self._without_room = self._without_room, []
            for commit in commits:
                self._try_again(commit)

    def _try_again(self, commit: _Commit) -> None:
        put_id = commit.reservation.put_id
        if self._store.is_under_way(put_id):
            self._submit(commit)
        else:
            self._server.refuse(commit.request, TransferExpired("put", put_id, self._store.slot))

    def next_s(self) -> float | None:
        """When `tick` is due."""
        return self._again_s if self._without_room else None
