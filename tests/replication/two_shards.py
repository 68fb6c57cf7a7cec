"""A home and its guard, and the messages between them, without processes and without a clock."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.several import Member, SeveralBackends
from transferqueue.errors import FieldExists, RowsGone
from transferqueue.fields import FieldSpec
from transferqueue.net.server import Reply, Request
from transferqueue.process_id import this_process
from transferqueue.replication.changes import READER, Kind
from transferqueue.replication.guard_link import Guard as GuardOfLink
from transferqueue.replication.guard_link import GuardLink
from transferqueue.replication.home import TwoCopies
from transferqueue.replication.keeper import Keeper
from transferqueue.replication.on_record import OnRecord
from transferqueue.shard.backend_choice import BackendChoice
from transferqueue.shard.store import Store
from transferqueue.wire.format import Message
from transferqueue.wire.put import ColumnPlan, PutPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RAGGED = FieldSpec(dtype="uint8", shape=(-1,), ragged_dim=0)
SLOT = 3
SILENCE_S = 5.0

State = dict[str, dict[int, dict[str, bytes]]]
"""partition -> uid -> field -> bytes"""


@dataclass(frozen=True, kw_only=True)
class Put:
    """``uids`` ``None``: new rows. ``cells``: field -> bytes of each row."""

    number: int
    """Of all puts."""

    partition: str
    uids: tuple[int, ...] | None
    cells: dict[str, tuple[bytes, ...]]

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.cells.values())))

    def apply(self, model: Model) -> None:
        rows = model.rows.setdefault(self.partition, {})
        if self.uids is None:
            uids: Sequence[int] = range(model.next_uid, model.next_uid + self.num_rows)
            model.next_uid += self.num_rows
        else:
            uids = self.uids
            if any(uid not in rows for uid in uids):
                return
        for number, uid in enumerate(uids):
            rows.setdefault(uid, {}).update({f: cells[number] for f, cells in self.cells.items()})

    def plan(self) -> PutPlan:
        columns = [
            ColumnPlan(
                name=name,
                spec=RAGGED,
                lengths=np.array([len(cell) for cell in cells], dtype=np.int64),
                nbytes=sum(map(len, cells)),
            )
            for name, cells in self.cells.items()
        ]
        return PutPlan(
            partition=self.partition,
            num_rows=self.num_rows,
            uids=None if self.uids is None else np.array(self.uids, dtype=np.int64),
            columns=columns,
            tags={"number": 7},
            overwrite=True,
        )


@dataclass(frozen=True, kw_only=True)
class Clear:
    """``uids`` ``None``: all."""

    partition: str
    uids: tuple[int, ...] | None

    def apply(self, model: Model) -> None:
        rows = model.rows.get(self.partition, {})
        for uid in list(rows) if self.uids is None else self.uids:
            rows.pop(uid, None)


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Fields are released."""

    partition: str
    uids: tuple[int, ...]
    fields: tuple[str, ...]

    def apply(self, model: Model) -> None:
        rows = model.rows.get(self.partition, {})
        for uid in self.uids:
            for name in self.fields:
                rows.get(uid, {}).pop(name, None)


Change = Put | Clear | Strip


@dataclass
class Model:
    """What a home shows."""

    next_uid: int
    rows: State = field(default_factory=dict)

    def after(self, changes: Sequence[Change]) -> Model:
        rows = {name: {uid: dict(c) for uid, c in part.items()} for name, part in self.rows.items()}
        made = Model(self.next_uid, rows)
        for change in changes:
            change.apply(made)
        return made

    @property
    def state(self) -> State:
        return {name: rows for name, rows in self.rows.items() if rows}


def heap(budget_bytes: int) -> SeveralBackends:
    member = Member(name="heap", backend=HeapBackend(budget_bytes), budget_bytes=budget_bytes)
    return SeveralBackends([member])


def state_of(store: Store, backend: SeveralBackends) -> State:
    found: State = {}
    for name, table in store.partitions.items():
        rows: dict[int, dict[str, bytes]] = {uid: {} for uid in table.uids().tolist()}
        for column, present, cells in table.columns():
            sizes = cells.lengths * store.slabs.unit_bytes[cells.slabs]
            uids = table.uids()[present]
            for uid, start, size in zip(
                uids.tolist(), cells.starts.tolist(), sizes.tolist(), strict=True
            ):
                at = np.array([start], dtype=np.int64), np.array([size], dtype=np.int64)
                rows[uid][column] = backend.read_ranges(*at).tobytes() if size else b""
        if rows:
            found[name] = rows
    return found


class Wire:
    """One connection: what is on its way, each way."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.to_guard: deque[Message] = deque()
        self.to_home: deque[Message] = deque()
        self._heard: deque[Message] = deque()
        self.generations: set[str] = set()

    def send(self, message: Message) -> None:
        self.generations.add(str(message.body["generation"]))
        self.to_guard.append(message)

    def leave(self) -> None:
        """The home is dead: what was on its way has left its memory."""
        for message in self.to_guard:
            message.frames[:] = [bytes(frame) for frame in message.frames]

    def receive(self) -> Message | None:
        return self._heard.popleft() if self._heard else None

    def arrive(self) -> None:
        """One answer is there to be heard."""
        if self.to_home:
            self._heard.append(self.to_home.popleft())


class Register:
    """The coordinator: which mirror of the slot has everything, as its home said last."""

    def __init__(self) -> None:
        self.copy: str | None = None

    def hear(self, home: Home) -> None:
        """A heartbeat of the home, and the answer to it."""
        said = home.record.to_plain()
        self.copy = said["copy"]
        home.record.hear(said["number"])


class Guard:
    """A process that keeps mirrors."""

    def __init__(
        self,
        budget_bytes: int,
        epoch: int,
        *,
        backend: SeveralBackends | None = None,
        choice: BackendChoice | None = None,
    ) -> None:
        self.backend = backend or heap(budget_bytes)
        choice = choice or BackendChoice(self.backend.names, default=self.backend.default)
        self.keeper = Keeper(backend=self.backend, choice=choice, epoch=epoch, on_free=lambda: None)
        self.refused: set[int] = set()
        """Numbers of puts for which there was no room."""

    def serve(self, wire: Wire) -> None:
        """The next message of a connection."""
        if not wire.to_guard:
            return
        message = wire.to_guard.popleft()
        reply = self.handle(wire.name, message)
        wire.to_home.append(
            Message(op="ok", request_id=message.request_id, body=dict(reply.body), frames=[])
        )

    def handle(self, peer: bytes, message: Message) -> Reply:
        request = Request(
            peer=peer,
            request_id=message.request_id,
            op=message.op,
            body=message.body,
            frames=[bytes(frame) for frame in message.frames],
            received_s=0.0,
        )
        reply = self.keeper.handlers[message.op](request)
        assert reply is not None
        key, is_made = message.body.get("key"), reply.body.get("is_made", True)
        if key is not None and message.body["kind"] == Kind.PUT and not is_made:
            self.refused.add(key[1])
        return reply


class Home:
    """A shard whose store outlives it, as it does with a journal."""

    def __init__(self, store: Store, backend: SeveralBackends, epoch: int) -> None:
        self.store = store
        self.backend = backend
        self.wire = Wire(b"home-%d" % epoch)
        self.waiting: list[Change] = []
        self.guard_is_there = True
        self.copies = TwoCopies(
            store,
            answers=dict,
            tagged=list,
            send=lambda: self.link.send(),
            on_free=lambda: None,
            lost_sight=lambda: self.link.lost_sight(),
            completed=lambda: self.link.complete(),
        )
        self.record = OnRecord(lambda: None)
        self.link = GuardLink(
            slot=SLOT,
            epoch=epoch,
            backend=backend,
            copies=self.copies,
            arena=backend.client_access(),
            owner=this_process().to_plain(),
            bytes_per_s=1e9,
            silence_s=SILENCE_S,
            num_untold=lambda: 0,
            on_record=self.record,
        )
        guard = GuardOfLink(slot=0, stream=self.wire, is_there=lambda: self.guard_is_there)
        self.link.attach(guard, 0.0)

    @classmethod
    def empty(cls, backend: SeveralBackends) -> Home:
        return cls(Store(slot=SLOT, space=backend), backend, 0)

    def restarted(self, epoch: int) -> Home:
        """Its successor, which has found its journal."""
        self.wire.leave()
        for reservation in self.store.reservations():
            self.store.abort(reservation.put_id)
        self.store.peer_gone(READER)
        return Home(self.store, self.backend, epoch)

    def change(self, change: Change, made: Callable[[Change], None]) -> bool:
        """Whether it could be asked for. ``made`` hears when it is acknowledged."""
        if isinstance(change, Put):
            return self._put(change, made)
        self.waiting.append(change)
        if isinstance(change, Clear):
            self._clear(change, made)
        else:
            self._strip(change, made)
        return True

    def _put(self, put: Put, made: Callable[[Change], None]) -> bool:
        try:
            reservation = self.store.reserve(put.plan(), "writer")
        except (FieldExists, RowsGone):
            return False
        if reservation is None:
            return False
        for address, cells in zip(reservation.addresses.tolist(), put.cells.values(), strict=True):
            self.backend.write(address, memoryview(b"".join(cells)))
        sizes = [column.nbytes for column in reservation.plan.columns]
        self.backend.seal(reservation.addresses, np.array(sizes, np.int64))
        self.waiting.append(put)

        def carry_out() -> None:
            self.waiting.remove(put)
            with contextlib.suppress(RowsGone):
                self.store.commit(reservation.put_id)
                made(put)

        def refuse() -> None:
            self.waiting.remove(put)
            self.store.abort(reservation.put_id)

        key = (b"client", put.number)
        self.copies.put(reservation, key, carry_out=carry_out, refuse=refuse)
        return True

    def _clear(self, clear: Clear, made: Callable[[Change], None]) -> None:
        uids = None if clear.uids is None else np.array(clear.uids, dtype=np.int64)

        def carry_out() -> None:
            self.waiting.remove(clear)
            self.store.clear(clear.partition, uids)
            made(clear)

        self.copies.clear(clear.partition, uids, None, carry_out=carry_out)

    def _strip(self, strip: Strip, made: Callable[[Change], None]) -> None:
        uids = np.array(strip.uids, dtype=np.int64)

        def carry_out() -> None:
            self.waiting.remove(strip)
            self.store.release_fields(strip.partition, uids, strip.fields)
            made(strip)

        self.copies.strip(strip.partition, uids, strip.fields, carry_out=carry_out)
