"""From the records of a journal to what the shard held when it was killed. No file, no socket.

Records are replayed in order through the `Store` itself. Its space gives out what the records say
and takes nothing back; which bytes are in use is computed once, at the end, from the cells, slabs,
puts and leases that are left.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import JournalDamaged, TransferQueueError
from transferqueue.fields import FieldSpec
from transferqueue.journal.codes import read_runs, read_sizes
from transferqueue.memory.allocator import extents
from transferqueue.shard import journal, snapshot
from transferqueue.shard.account import tags_left
from transferqueue.shard.moving import Move
from transferqueue.shard.rows import Cells
from transferqueue.shard.store import Committed, Store
from transferqueue.uids import decode_uids
from transferqueue.wire.arrays import ArrayReader
from transferqueue.wire.put import PutPlan
from transferqueue.wire.tags import read_tags
from transferqueue.wire.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from transferqueue.journal.records import Record
    from transferqueue.replication.mirror import Mirror
    from transferqueue.shard.rows import RowTable

    Key = tuple[bytes, int]


def arena_extents(addresses: np.ndarray, nbytes: Sequence[int]) -> np.ndarray:
    """Those of one arena."""
    del addresses
    return extents(nbytes)


class _Replayed:
    """The space of a store while records are replayed."""

    def __init__(self, extents_at: Callable[[np.ndarray, Sequence[int]], np.ndarray]) -> None:
        self._extents_at = extents_at

    def reserve(self, nbytes: Sequence[int]) -> np.ndarray | None:
        raise AssertionError("records bring their addresses")

    def reserve_in(self, nbytes: Sequence[int], numbers: np.ndarray) -> np.ndarray | None:
        raise AssertionError("records bring their addresses")

    def extents_at(self, addresses: np.ndarray, nbytes: Sequence[int]) -> np.ndarray:
        return self._extents_at(addresses, nbytes)

    def free(self, addresses: np.ndarray, nbytes: np.ndarray) -> None:
        del addresses, nbytes


class Recovery:
    """What is found. ``store`` serves once it was given its space (`Store.begin`)."""

    def __init__(
        self,
        slot: int,
        extents_at: Callable[[np.ndarray, Sequence[int]], np.ndarray] = arena_extents,
    ) -> None:
        """``extents_at``: those of the backend whose journal it is."""
        self.store = Store(slot=slot, space=_Replayed(extents_at))
        self.epoch = 0
        """Of the process that wrote last."""
        self.terms = Terms()
        self.num_lost = 0
        """Rows that were lost with a backend, of partitions that may have second copies."""
        self.peers: dict[str, dict[str, Any]] = {}
        """Processes that held leases or lent space, by key."""
        self.puts: dict[int, Record] = {}
        """Puts under way that go on."""
        self.answers: OrderedDict[Key, list[Any]] = OrderedDict()
        self.leases_of: dict[Key, tuple[str, int]] = {}
        """The lease that the answer to a get lent: reader and number."""
        self._tagged: list[Committed] = []
        self._slab_named: dict[tuple[int, int], int] = {}
        """Put and place of a slab -> its id here."""
        self._slab_ids = np.empty(0, np.int32)  # of the snapshot, by their place in it
        self._apply: dict[str, Callable[[Record], None]] = {
            snapshot.HEAD: self._head,
            snapshot.SLABS: self._slabs,
            snapshot.ROWS: self._rows,
            snapshot.HELD: self._held,
            snapshot.ANSWERS: self._answers,
            snapshot.TAGGED: self._tags,
            snapshot.PARTS: lambda record: self.store.split_puts.restore(record.body["ended"]),
            journal.PUT: self._put,
            journal.COMMIT: self._commit,
            journal.ABORT: lambda record: self._abort(int(record.body["id"])),
            journal.CLEAR: self._clear,
            journal.STRIP: self._strip,
            journal.MOVE: self._move,
            journal.LEASE: self._lease,
            journal.RELEASE: self._release,
            journal.PEER: self._peer,
            journal.GONE: self._gone,
            journal.TERMS: self._told,
            journal.FILLED: self._filled,
        }

    def replay(self, records: Iterable[Record], where: str = "") -> None:
        """All records of a journal. `JournalDamaged` when they do not go together."""
        for number, record in enumerate(records):
            try:
                self._apply[record.kind](record)
            except (TransferQueueError, LookupError, ValueError, TypeError, AssertionError) as err:
                why = f"record {number} ({record.kind}) cannot follow those before it: {err!r}"
                raise JournalDamaged(where, 0, why) from err

    # -- what is lost ---------------------------------------------------------------------------

    def lose(self, is_lost: Callable[[np.ndarray], np.ndarray]) -> int:
        """Drop every row and every put under way that has a slab whose address ``is_lost``.
        Returns how many rows. They are lost, not cleared; so, from now on, are those that were
        cleared before."""
        gone = self._slabs_where(is_lost)
        self.give_up(is_lost)
        rows = 0
        for name, table in list(self.store.partitions.items()):
            uids = _rows_in(table, gone)
            num_gone = len(self.store.clear(name, uids)) if len(uids) else 0
            rows += num_gone
            self.num_lost += 0 if name in self.terms.one_copy else num_gone
        if rows:
            self.store.lost_below = self.store.next_uid
        return rows

    def give_up(self, is_lost: Callable[[np.ndarray], np.ndarray]) -> None:
        """Drop every put under way that has a slab whose address ``is_lost``."""
        gone = self._slabs_where(is_lost)
        for reservation in self.store.reservations():
            if gone[reservation.slab_ids].any():
                self._abort(reservation.put_id)

    def _slabs_where(self, is_lost: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """bool[slab ids]"""
        slabs = self.store.slabs
        ids = slabs.ids()
        gone = np.zeros(len(slabs.num_rows), dtype=bool)
        gone[ids] = is_lost(slabs.address[ids]) & (slabs.extent_bytes[ids] > 0)
        return gone

    # -- what is left ---------------------------------------------------------------------------

    def ranges_in_use(self) -> tuple[np.ndarray, np.ndarray]:
        """Addresses and sizes of every byte that must not be given out."""
        slabs = self.store.slabs
        cells = [c for t in self.store.partitions.values() for _, _, c in t.columns()]
        ids = np.concatenate([_NO_SLABS, *(c.slabs for c in cells)])
        starts = np.concatenate([_NO_INTS, *(c.starts for c in cells)])
        sizes = np.concatenate([_NO_INTS, *(c.lengths for c in cells)]) * slabs.unit_bytes[ids]
        under_way = np.concatenate([_NO_SLABS, *(r.slab_ids for r in self.store.reservations())])
        in_cells = np.bincount(ids, weights=sizes, minlength=len(slabs.num_rows)).astype(np.int64)
        used = slabs.ids()
        used = used[(slabs.live_rows[used] > 0) & ~np.isin(used, under_way)]
        padding = slabs.live_bytes[used] - in_cells[used]
        _, held_at, held_bytes = self.store.leases.held()
        addresses = (
            starts,
            slabs.address[used] + slabs.extent_bytes[used] - padding,
            slabs.address[under_way],
            held_at,
        )
        nbytes = (sizes, padding, slabs.extent_bytes[under_way], held_bytes)
        return np.concatenate(addresses), np.concatenate(nbytes)

    def tagged(self) -> list[Committed]:
        """Tags of rows that are there, for a coordinator that may not have heard of them."""
        found = [tags_left(self.store, committed) for committed in self._tagged]
        return [replace(left, is_again=True) for left in found if left is not None]

    def adopt_copy(self, mirror: Mirror) -> None:
        """The store was filled from a second copy, and this came with it."""
        self.answers.update(mirror.answers)
        self._tagged += mirror.tagged

    # -- a snapshot -----------------------------------------------------------------------------

    def _head(self, record: Record) -> None:
        body = record.body
        self.epoch = int(body["epoch"])
        self.terms = Terms.from_plain(body["terms"])
        self.store.next_uid = int(body["next_uid"])
        self.store.lost_below = int(body["lost_below"])
        self.store.lost_in = {str(name): int(below) for name, below in body["lost_in"].items()}

    def _slabs(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        specs = [FieldSpec.from_wire(spec) for spec in body["specs"]]
        numbers = np.array([self.store.specs.id_of(spec) for spec in specs], dtype=np.int32)
        slabs = self.store.slabs
        address = arrays.int64s(body["address"])
        extent_bytes = arrays.int64s(body["extent_bytes"])
        ids = slabs.add(
            address=address,
            extent_bytes=extent_bytes,
            unit_bytes=arrays.int64s(body["unit_bytes"]),
            num_rows=arrays.int64s(body["num_rows"]),
            spec_id=numbers[arrays.get(body["spec"])] if len(numbers) else _NO_SLABS,
            put_id=arrays.int64s(body["put_id"]),
            place=arrays.get(body["place"]),
        )
        slabs.live_rows[ids] = arrays.int64s(body["live_rows"])
        slabs.live_bytes[ids] = arrays.int64s(body["live_bytes"])
        self._slab_ids = ids
        self._name(ids)

    def _name(self, ids: np.ndarray) -> None:
        slabs = self.store.slabs
        names = zip(slabs.put_id[ids].tolist(), slabs.place[ids].tolist(), strict=True)
        self._slab_named.update(zip(names, ids.tolist(), strict=True))

    def _rows(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        uids = decode_uids(arrays.get_bytes(body["uids"]).data)
        table = self.store.table(str(body["partition"]))
        rows = table.append(uids)
        for field, (present, count, slabs, lengths, starts) in body["fields"].items():
            ids = self._slab_ids[read_runs(slabs, None, count, arrays)]
            sizes = read_sizes(lengths, count, arrays)
            growth = sizes * self.store.slabs.unit_bytes[ids]
            cells = Cells(slabs=ids, starts=read_runs(starts, growth, count, arrays), lengths=sizes)
            where = rows
            if present is not None:
                where = rows[np.unpackbits(arrays.get(present), count=len(rows)).view(bool)]
            table.write(field, where, cells)

    def _held(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        self.store.leases.hold(
            self._slab_ids[arrays.int64s(body["slabs"])],
            arrays.int64s(body["addresses"]),
            arrays.int64s(body["nbytes"]),
        )

    def _answers(self, record: Record) -> None:
        for peer, request_id, *said in record.body["answers"]:
            self.answers[peer, request_id] = said

    def _tags(self, record: Record) -> None:
        arrays, body = ArrayReader(record.frames), record.body
        uids = arrays.int64s(body["uids"])
        tags = read_tags(body["tags"], arrays)
        self._tagged.append(
            Committed(partition=str(body["partition"]), uids=uids, specs={}, nbytes={}, tags=tags)
        )

    # -- what happened since --------------------------------------------------------------------

    def _put(self, record: Record) -> None:
        body = record.body
        plan = PutPlan.read(body, ArrayReader(record.frames))
        put_id, addresses = int(body["id"]), np.array(body["at"], dtype=np.int64)
        reservation = self.store.enter(put_id, plan, str(body["writer"]), addresses)
        self._name(reservation.slab_ids)
        if body["first"] is None:
            self.puts[put_id] = record
        else:
            self._make_visible(put_id, int(body["first"]), _key(body["key"]))

    def _commit(self, record: Record) -> None:
        put_id = int(record.body["id"])
        del self.puts[put_id]
        self._make_visible(put_id, int(record.body["first"]), _key(record.body["key"]))

    def _make_visible(self, put_id: int, first_uid: int, key: Key) -> None:
        plan = self.store.check_commit(put_id).plan
        is_new = plan.uids is None
        if is_new and plan.num_rows:
            self.store.next_uid = first_uid
        committed = self.store.commit(put_id)
        if committed.tags:
            self._tagged.append(committed)
        self.answers[key] = [plan.partition if is_new else None, first_uid, plan.num_rows]

    def _abort(self, put_id: int) -> None:
        del self.puts[put_id]
        self.store.abort(put_id)

    def _clear(self, record: Record) -> None:
        uids = decode_uids(memoryview(record.frames[0]))
        self.store.clear(str(record.body["partition"]), uids)
        if record.body["key"] is not None:
            self.answers[_key(record.body["key"])] = [None, 0, len(uids)]

    def _strip(self, record: Record) -> None:
        uids = decode_uids(memoryview(record.frames[0]))
        self.store.release_fields(str(record.body["partition"]), uids, record.body["fields"])

    def _move(self, record: Record) -> None:
        body = record.body
        addresses, extents = (np.array(body[name], dtype=np.int64) for name in ("at", "extents"))
        Move(self.store, self._named(body)).to(addresses, extents)

    def _named(self, body: Mapping[str, Any]) -> np.ndarray:
        names = zip(body["puts"], body["places"], strict=True)
        return np.array([self._slab_named[name] for name in names], dtype=np.int32)

    def _lease(self, record: Record) -> None:
        body = record.body
        ids = self._named(body)
        lease_id, reader = int(body["id"]), str(body["reader"])
        self.store.leases.restore(lease_id, reader, ids, 0.0)
        if body["key"] is not None:
            self.leases_of[_key(body["key"])] = (reader, lease_id)

    def _release(self, record: Record) -> None:
        self.store.release(str(record.body["reader"]), list(record.body["ids"]))

    def _peer(self, record: Record) -> None:
        self.peers[str(record.body["peer"])] = dict(record.body["process"])

    def _gone(self, record: Record) -> None:
        peer = str(record.body["peer"])
        self.peers.pop(peer, None)
        for put_id, put in list(self.puts.items()):
            if put.body["writer"] == peer:
                del self.puts[put_id]
        self.store.peer_gone(peer)

    def _told(self, record: Record) -> None:
        self.terms = Terms.from_plain(record.body)

    def _filled(self, record: Record) -> None:
        put_id = int(record.body["id"])
        put = self.puts[put_id]
        self.puts[put_id] = replace(put, body={**put.body, "filled": True})


def _rows_in(table: RowTable, slabs: np.ndarray) -> np.ndarray:
    """The uids of rows with a cell in one of these slabs, bool[slab ids]."""
    uids = table.uids()
    found = np.zeros(len(uids), dtype=bool)
    for _, present, cells in table.columns():
        found[np.flatnonzero(present)[slabs[cells.slabs]]] = True
    return uids[found]


def _key(plain: Sequence[Any]) -> Key:
    peer, request_id = plain
    return bytes(peer), int(request_id)


_NO_SLABS = np.empty(0, dtype=np.int32)
_NO_INTS = np.empty(0, dtype=np.int64)
