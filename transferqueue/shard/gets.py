"""A shard's edge for gets: what a client asks for is found, held under a lease, and sent or mapped.

Few bytes go with the answer. More are left where they lie: a client of this host reads them there,
any other asks for them chunk by chunk. Nothing that is held so is given out again before the
client is done with it, or is gone.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import TransferExpired
from transferqueue.net.lent import Lent
from transferqueue.net.server import Reply
from transferqueue.shard.commits import COMMIT_GRACE_S
from transferqueue.shard.deadlines import Deadlines
from transferqueue.shard.device_loans import borrowed_until, lendable
from transferqueue.shard.file_gets import in_files
from transferqueue.shard.lease_ends import LeaseEnds
from transferqueue.shard.moved_bytes import MovedBytes, Way
from transferqueue.shard.send_credit import SendCredit
from transferqueue.shard.transfers import OutgoingGet
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.chunks import MAX_FRAMES, STREAM_FROM_BYTES
from transferqueue.wire.get import GetAnswer, GotColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.server import Handler, Request, Server
    from transferqueue.shard.device_loans import DeviceLoans
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.peers import MappingPeers
    from transferqueue.shard.reach import Memories, Reach
    from transferqueue.shard.recovery import Recovery
    from transferqueue.shard.store import FoundColumn, Store
    from transferqueue.shard.windows import Windows
    from transferqueue.wire.format import Buffer

MAP_FROM_BYTES = 64 << 10
"""Columns of a get from this size on are left in place for a reader that can map them. Smaller
ones are sent: copying them costs less than the lease that a mapping needs."""

SEND_LIMIT_BYTES = 64 << 20
"""Bytes that were brought together for readers and not sent yet."""


_Columns = Mapping[str, "FoundColumn"]


class Gets:
    """The requests that make up gets. ``on_free`` hears that space came free; ``memories``: what
    processes of this host can have mapped or open."""

    def __init__(
        self,
        *,
        server: Server,
        moved: MovedBytes,
        store: Store,
        backend: SeveralBackends,
        peers: MappingPeers,
        journal: ShardJournal,
        memories: Memories,
        loans: DeviceLoans,
        windows: Windows,
        on_free: Callable[[], None],
    ) -> None:
        self.lease_ends = LeaseEnds(
            store=store, peers=peers, journal=journal, loans=loans, on_free=on_free
        )
        self._loans = loans
        self._windows = windows
        self._server = server
        self._moved = moved
        self._store = store
        self._backend = backend
        self._peers = peers
        self._journal = journal
        self._memories = memories
        self._on_free = on_free
        self._outgoing: dict[int, _HeldGet] = {}
        self._deadlines = Deadlines(server.probe)
        self._lent: Lent[tuple[tuple[str, int], ...]] = Lent()
        self._credit = SendCredit(SEND_LIMIT_BYTES)
        self._parked: deque[Request] = deque()
        self.handlers: dict[str, Handler] = {
            ops.GET: self._get,
            ops.READ: self._read,
            ops.READ_DONE: self._read_done,
            ops.RELEASE: self.lease_ends.release,
        }

    def resume(self, found: Recovery) -> None:
        """Go on with what an earlier process of this shard had lent."""
        for key, lease in found.leases_of.items():
            self._lent.note(key, (lease,))

    @property
    def bytes_unsent(self) -> int:
        """Copies that wait to be sent."""
        return self._credit.used_bytes

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Serve readers that waited for credit; take back what clients left behind."""
        if self._credit.settle():
            parked, self._parked = self._parked, deque()
            for request in parked:
                self._read_again(request)
        late = self._deadlines.pass_by(now_s)
        for lease_id in late:
            self._end(lease_id)

    def _read_again(self, request: Request) -> None:
        with self._server.answering(request):
            reply = self._read(request)
            if reply is not None:
                self._server.reply(request, reply)

    def next_s(self) -> float | None:
        """When `tick` is due."""
        return self._deadlines.next_s()

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave a request up: what its answer lent is nobody's."""
        self._parked = deque(request for request in self._parked if request.key != key)
        for lent in self._lent.take_back(key) or ():
            self._take_back(*lent)

    # -- get ------------------------------------------------------------------------------------

    def _get(self, request: Request) -> Reply:
        """Body: ``partition``, ``uids``, ``fields``, ``optional``, ``timeout_s``, and ``reader``,
        the process that can map this shard's memory, or nil. ``borrow_s``: for how long a reader
        of device memory means to keep it; not there when it copies.

        Answered with the bytes of each column, with its addresses (to a ``reader``), or with
        neither: then they come by ``read``. What is left in place is held under ``lease_id``, and
        what is lent of device memory under ``loan_id``.
        ``window`` names a transport of the client, and ``files`` says that it is here: `_beside`.
        """
        body = request.body
        # A key that only reads lends itself no memory, and none to a process that it names.
        reader = None if request.is_reader else body["reader"]
        reach = self._memories.reached_by(reader)
        found = self._store.find(
            str(body["partition"]),
            ArrayReader(request.frames).int64s(body["uids"]),
            list(body["fields"]),
            list(body["optional"]),
        )
        found = {name: column for name, column in found.items() if column.specs}
        lent = lendable(found, self._backend, reach.devices, MAP_FROM_BYTES)
        rest = {name: column for name, column in found.items() if name not in lent}
        mapped = self._mapped(reach, rest)
        streamed = {} if mapped else _streamed(rest)
        sent = {n: c for n, c in rest.items() if n not in mapped and n not in streamed}
        in_place = {**lent, **mapped}
        sizes = self._count(str(body["partition"]), in_place, streamed, sent)
        in_payload = _stretches(sizes)
        in_ranges = _stretches({name: len(c.runs.starts) for name, c in in_place.items()})
        loan_id, lease_id = self._hold_all(request, lent, mapped, streamed)
        answer = GetAnswer(
            columns={
                name: _got(column, sent=in_payload.get(name), mapped=in_ranges.get(name))
                for name, column in found.items()
            },
            payload=self._backend.read_ranges(*_ranges(sent)) if sent else _NO_BYTES,
            ranges=_ranges(in_place),
            lease_id=lease_id,
            loan_id=loan_id,
            refs=self._loans.refs_of(loan_id),
        )
        arrays = ArrayWriter()
        body = answer.write(arrays)
        if streamed and lease_id is not None:
            body |= self._beside(request, lease_id, streamed, arrays)
        return Reply(body=body, frames=arrays.frames)

    def _beside(
        self, request: Request, lease_id: int, streamed: _Columns, arrays: ArrayWriter
    ) -> dict[str, Any]:
        """Other ways to what would go in chunks; the client may ask for those all the same.
        ``files``: where columns lie in files that it can read (`in_files`). ``window``: an
        `OpenWindow` to all of the bytes, for its transport."""
        found: dict[str, Any] = {}
        if request.body.get("files") and not request.is_reader:
            found = in_files(self._backend, streamed, arrays)
        if not found and request.body.get("window") is not None:
            runs = [column.runs for column in streamed.values()]
            window = self._windows.to_read(request.body["window"], lease_id, runs)
            found = {} if window is None else {"window": window}
        if found:
            self._deadlines.heard(lease_id, time.monotonic(), more_to_come=False)
        return found

    def _count(
        self, partition: str, mapped: _Columns, streamed: _Columns, sent: _Columns
    ) -> dict[str, int]:
        """The bytes of each column that goes with the answer."""
        sizes: dict[str, int] = {}
        ways = ((Way.INLINE, sent), (Way.MAPPED, mapped), (Way.STREAMED, streamed))
        for way, columns in ways:
            if columns:
                of_way = {name: column.runs.total_bytes for name, column in columns.items()}
                self._moved.got(partition, of_way, way)
                sizes = of_way if way is Way.INLINE else sizes
        return sizes

    def _mapped(self, reach: Reach, found: Mapping[str, FoundColumn]) -> dict[str, FoundColumn]:
        """The columns that the reader is to read where it has them mapped."""
        if not reach.arena:
            return {}
        here = {n: c for n, c in found.items() if self._backend.is_mappable(c.runs.starts)}
        large = {name: c for name, c in here.items() if c.runs.total_bytes >= MAP_FROM_BYTES}
        total = _num_bytes(found)
        if total - _num_bytes(here) > STREAM_FROM_BYTES:
            return {}  # what lies elsewhere is too much for one message: all of it is streamed
        return large if total - _num_bytes(large) <= STREAM_FROM_BYTES else here

    def _hold_all(
        self, request: Request, lent: _Columns, mapped: _Columns, streamed: _Columns
    ) -> tuple[int | None, int | None]:
        """The leases on what is lent of a device, and on what is mapped or comes in chunks."""
        loan = self._hold(request, lent, in_place=True) if lent else None
        held = mapped or streamed
        lease = self._hold(request, held, in_place=bool(mapped)) if held else None
        leases = tuple(one for one in (loan, lease) if one is not None)
        if leases:
            earlier = self._lent.note(request.key, leases)
            for one in earlier or ():  # its answer was lost, and it asked again
                if one not in leases:
                    self._take_back(*one)
        return None if loan is None else loan[1], None if lease is None else lease[1]

    def _hold(self, request: Request, columns: _Columns, *, in_place: bool) -> tuple[str, int]:
        """The reader, and its lease."""
        reader = self._peers.key_of(request.body["reader"]) if in_place else request.peer_name
        held = list(columns.values())
        again = self._lent_before(request, held)
        if again is not None:
            return reader, again
        lease_id = self._store.pin(reader, held, time.monotonic())
        if in_place:
            self._loans.lend(lease_id, reader, held, borrowed_until(request))
            self._journal.leased(lease_id, reader, self._store, request.key)
        else:
            runs = [column.runs for column in held]
            self._outgoing[lease_id] = _HeldGet(
                reader=reader,
                key_name=request.key_name,
                get=OutgoingGet(runs),
            )
            final_s = request.received_s + request.seconds() + COMMIT_GRACE_S
            self._deadlines.add(lease_id, final_s, request)
            # It asks for the first chunk as soon as it has the answers of all shards, or is gone.
            self._deadlines.heard(lease_id, time.monotonic(), more_to_come=True)
        return reader, lease_id

    def _lent_before(self, request: Request, columns: Sequence[FoundColumn]) -> int | None:
        """The lease that the first answer to this request lent: the client may hold it already,
        and knows of no other. TransferExpired when it has given that back: nobody listens."""
        leases = self._store.leases
        for _, lease_id in self._lent.known(request.key) or ():
            if not leases.is_live(lease_id):
                raise TransferExpired("get", lease_id, self._store.slot)
            pinned = leases.slabs_of(lease_id)
            if all(bool(np.isin(c.slab_ids, pinned).all()) for c in columns):
                return lease_id
        return None

    # -- chunks ---------------------------------------------------------------------------------

    def _read(self, request: Request) -> Reply | None:
        """Body: ``lease_id``, ``chunk``. Answered with the bytes of the chunk, in some frames.

        Parked while this reader has too much unsent: see `SendCredit`.
        """
        lease_id, chunk = request.number("lease_id"), request.number("chunk")
        held = self._held_for(request, lease_id)
        if held is None:
            raise TransferExpired("get", lease_id, self._store.slot)
        outgoing = held.get
        frames = self._frames(request.peer, outgoing.ranges(chunk))
        if frames is None:
            self._parked.append(request)
            return None
        outgoing.note(chunk)
        self._deadlines.heard(lease_id, time.monotonic(), more_to_come=not outgoing.is_complete)
        return Reply(body={}, frames=frames)

    def _frames(
        self, peer: bytes, pieces: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> list[Buffer] | None:
        """Bytes of address ranges, in order; ``None`` when they would be one copy too many.

        A few unbroken pieces are sent from where they lie. Their reader's lease is what makes that
        safe: the reader holds it until it has them all, and learns at the end whether it did.
        """
        is_unbroken = all(len(starts) == 1 for starts, _ in pieces)
        if len(pieces) <= MAX_FRAMES and is_unbroken and self._is_in_memory(pieces):
            return [self._backend.readable(int(at[0]), int(size[0])) for at, size in pieces]
        starts = np.concatenate([starts for starts, _ in pieces])
        sizes = np.concatenate([sizes for _, sizes in pieces])
        nbytes = int(sizes.sum())
        if not self._credit.take(peer, nbytes):
            return None
        block = self._backend.read_ranges(starts, sizes)
        weakref.finalize(block, self._sent, peer, nbytes)
        return [block.data]

    def _is_in_memory(self, pieces: Sequence[tuple[np.ndarray, np.ndarray]]) -> bool:
        return all(self._backend.lies_in_memory(starts) for starts, _ in pieces)

    def _sent(self, peer: bytes, nbytes: int) -> None:
        """A copy has left. Called from a thread of zmq's."""
        self._credit.give_back(peer, nbytes)
        if self._parked:
            self._server.wake()

    # -- the end --------------------------------------------------------------------------------

    def _read_done(self, request: Request) -> Reply:
        """Body: ``lease_id``. The reader has all of its chunks.

        ``held`` of the answer: whether the lease was still there, and so what was read was right.
        """
        lease_id = request.number("lease_id")
        is_held = self._held_for(request, lease_id) is not None
        if is_held:
            self._end(lease_id)
        return Reply(body={"held": is_held})

    def _held_for(self, request: Request, lease_id: int) -> _HeldGet | None:
        """What is held under the lease, for whoever has the key that it was asked for with. Not
        for its peer alone: a client asks over any of its connections."""
        held = self._outgoing.get(lease_id)
        return held if held is not None and held.key_name == request.key_name else None

    def _end(self, lease_id: int) -> None:
        held = self._outgoing.get(lease_id)
        if held is not None:
            self._take_back(held.reader, lease_id)

    def _take_back(self, reader: str, lease_id: int) -> None:
        self._windows.close_get(lease_id)
        if self._outgoing.pop(lease_id, None) is None:  # not a get in chunks, so it is mapped
            self._journal.released(reader, [lease_id])
        self._deadlines.drop(lease_id)
        self._loans.end(reader, [lease_id], time.monotonic())
        self._store.release(reader, [lease_id])
        self._on_free()


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldGet:
    """An answer whose bytes are asked for in chunks."""

    reader: str
    key_name: str | None
    get: OutgoingGet


def _got(column: FoundColumn, *, sent: slice | None, mapped: slice | None) -> GotColumn:
    has_lengths = True in [spec.has_lengths for spec in column.specs]
    return GotColumn(
        specs=column.specs,
        spec_of_row=column.spec_of_row,
        present=column.present,
        lengths=column.lengths if has_lengths else None,
        sent=sent,
        mapped=mapped,
    )


def _stretches(sizes: Mapping[str, int]) -> dict[str, slice]:
    """Where each column is when they are laid one after the other."""
    ends = accumulate(sizes.values())
    return {
        name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)
    }


def _ranges(columns: Mapping[str, FoundColumn]) -> np.ndarray:
    """Starts and sizes of all their runs, one column after the other. int64[2, ranges]."""
    if not columns:
        return _NO_RANGES
    runs = [column.runs for column in columns.values()]
    starts, sizes = [run.starts for run in runs], [run.sizes for run in runs]
    return np.array([np.concatenate(starts), np.concatenate(sizes)])


def _streamed(found: Mapping[str, FoundColumn]) -> dict[str, FoundColumn]:
    """The columns that are too much for one message: all of them, or none."""
    return dict(found) if _num_bytes(found) > STREAM_FROM_BYTES else {}


def _num_bytes(columns: Mapping[str, FoundColumn]) -> int:
    return sum([column.runs.total_bytes for column in columns.values()])


_NO_BYTES = np.empty(0, dtype=np.uint8)
_NO_RANGES = np.empty((2, 0), dtype=np.int64)
