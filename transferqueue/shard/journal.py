"""What a shard writes down so that its successor finds every committed row. Thin over the file.

The bytes of cells are in the arena already when a record tells of them, and an answer leaves only
after the record is written: so whatever a client was told is in the journal, and whatever is in
the journal is in the arena.

A put is journaled when somebody else may rely on its reservation: a process that was told where
to write (its space must not be given to another while that process lives), or a client whose next
message is the commit. Leases of processes that map the arena are journaled for the same reason;
readers over a socket hold no memory, so theirs end with the shard.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from transferqueue.errors import StorageFull
from transferqueue.journal.records import Record
from transferqueue.uids import encode_uids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from transferqueue.journal.file import JournalFile
    from transferqueue.net.server import Request
    from transferqueue.shard.store import Reservation, Store
    from transferqueue.wire.format import Buffer
    from transferqueue.wire.terms import Terms

    Key = tuple[bytes, int]

_log = logging.getLogger(__name__)

PUT, COMMIT, ABORT, CLEAR, STRIP = "put", "commit", "abort", "clear", "strip"
MOVE, FILLED = "move", "filled"
LEASE, RELEASE, PEER, GONE, TERMS = "lease", "release", "peer", "gone", "terms"

MAX_ANSWERS = 8192
"""Puts and clears whose answer is remembered: a client asks again within its deadline."""

MIN_BYTES, MIN_RECORDS = 1 << 20, 10_000
"""A journal below both is never rewritten."""

SLAB_BYTES, CELL_BYTES = 128, 24
"""More than a slab and a cell take in a rewritten journal."""

CHECK_EVERY_S = 1.0


class ShardJournal:
    """``file`` ``None``: nothing is written, because nobody restarts this shard or its bytes do
    not outlive it."""

    def __init__(
        self, file: JournalFile | None, *, slot: int, answers: Mapping[Key, list[Any]]
    ) -> None:
        self._file = file
        self._slot = slot
        self.answers: OrderedDict[Key, list[Any]] = OrderedDict(answers)
        """What was answered to requests that changed something: partition (nil: not to be undone
        by a cancel), first uid, rows."""
        self._journaled: dict[int, Record] = {}
        """Puts under way that a successor has to go on with."""
        self._num_records = 0
        self._next_check_s = 0.0
        self._is_behind = False

    @property
    def num_bytes(self) -> int:
        return 0 if self._file is None else self._file.num_bytes

    # -- puts -----------------------------------------------------------------------------------

    def reserved(
        self,
        reservation: Reservation,
        request: Request,
        *,
        is_lent: bool,
        deadline_s: float,
        is_filled: bool = True,
        first_uid: int | None = None,
    ) -> None:
        """A put has its space, and somebody relies on that. ``is_lent``: the process that writes
        was told where. ``is_filled``: no bytes are to come in chunks. ``first_uid``: it is
        committed too (0: its rows were there before).

        StorageFull, and nothing is written, when there is no room for the record.
        """
        if self._file is None:
            if first_uid is not None:
                self._note(request.key, reservation, first_uid)
            return
        record = _put_record(
            reservation,
            request,
            is_lent=is_lent,
            is_filled=is_filled,
            deadline_s=deadline_s,
            first_uid=first_uid,
        )
        self._write_or_refuse(record, reservation)
        if first_uid is None:
            self._journaled[reservation.put_id] = record
        else:
            self._note(request.key, reservation, first_uid)

    def is_reserved(self, put_id: int) -> bool:
        return put_id in self._journaled

    def is_complete(self, put_id: int) -> bool:
        """Whether no chunk of a put under way is to come any more, as the journal knows."""
        record = self._journaled.get(put_id)
        return record is not None and bool(record.body["filled"])

    def filled(self, put_id: int) -> None:
        """All chunks of a put whose reservation was journaled have come. Nothing, when that was
        known."""
        record = self._journaled[put_id]
        if not record.body["filled"]:
            self._journaled[put_id] = replace(record, body={**record.body, "filled": True})
            self._write(Record(kind=FILLED, body={"id": put_id}))

    def committed(self, reservation: Reservation, key: Key, first_uid: int) -> None:
        """The commit of a put whose reservation was journaled. StorageFull as above."""
        if self._file is None:
            self._note(key, reservation, first_uid)
            return
        body = {"id": reservation.put_id, "first": first_uid, "key": list(key)}
        self._write_or_refuse(Record(kind=COMMIT, body=body), reservation)
        self._journaled.pop(reservation.put_id)
        self._note(key, reservation, first_uid)

    def aborted(self, put_id: int) -> None:
        if self._journaled.pop(put_id, None) is not None:
            self._write(Record(kind=ABORT, body={"id": put_id}))

    def keep(self, records: Mapping[int, Record]) -> None:
        """Puts under way that an earlier process journaled."""
        self._journaled.update(records)

    def reservations(self) -> Iterable[Record]:
        return self._journaled.values()

    # -- the rest -------------------------------------------------------------------------------

    def cleared(self, partition: str, uids: np.ndarray, key: Key | None) -> None:
        """These rows are gone. ``uids`` rise."""
        if self._file is None:
            return
        body = {"partition": partition, "key": None if key is None else list(key)}
        if key is not None:
            self._remember(key, [None, 0, len(uids)])
        self._write(Record(kind=CLEAR, body=body, frames=[encode_uids(uids)]))

    def stripped(self, partition: str, uids: np.ndarray, fields: Sequence[str]) -> None:
        """These rows have lost some fields. ``uids`` rise."""
        if self._file is not None:
            body = {"partition": partition, "fields": list(fields)}
            self._write(Record(kind=STRIP, body=body, frames=[encode_uids(uids)]))

    def moved(
        self, store: Store, slab_ids: np.ndarray, addresses: np.ndarray, extents: np.ndarray
    ) -> bool:
        """These slabs are there from now on. False, and nothing is written, when there is no room
        for the record: then they must stay where they are."""
        if self._file is None:
            return True
        if self._is_behind:
            return False
        body = {
            **_names(store, slab_ids),
            "at": addresses.tolist(),
            "extents": extents.tolist(),
        }
        try:
            self._file.append(Record(kind=MOVE, body=body))
        except OSError as error:
            _log.warning("no room in the journal: %s", error)
            return False
        self._num_records += 1
        return True

    def peer(self, key: str, process: Mapping[str, Any]) -> None:
        """A process that leases and lent space are held for."""
        self._write(Record(kind=PEER, body={"peer": key, "process": dict(process)}))

    def leased(self, lease_id: int, reader: str, store: Store, key: Key) -> None:
        """A process maps the slabs of this lease."""
        if self._file is not None:
            self._write(lease_record(store, lease_id, reader, key))

    def released(self, reader: str, lease_ids: Sequence[int]) -> None:
        self._write(Record(kind=RELEASE, body={"reader": reader, "ids": list(lease_ids)}))

    def gone(self, peer: str) -> None:
        """A process ended, and with it its leases and its puts under way."""
        for put_id, put in list(self._journaled.items()):
            if put.body["writer"] == peer:
                del self._journaled[put_id]
        self._write(Record(kind=GONE, body={"peer": peer}))

    def told(self, terms: Terms) -> None:
        """What the coordinator says of partitions from now on."""
        self._write(Record(kind=TERMS, body=terms.to_plain()))

    # -- size -----------------------------------------------------------------------------------

    def tick(
        self,
        now_s: float,
        size: Callable[[], tuple[int, int]],
        dump: Callable[[], Iterable[Record]],
    ) -> None:
        """Rewrite the file when most of it is history. ``size``: slabs and cells that live,
        ``dump``: everything that lives."""
        if self._file is None or now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        num_slabs, num_cells = size()
        live_bytes = SLAB_BYTES * num_slabs + CELL_BYTES * num_cells
        is_long = self._num_records > max(MIN_RECORDS, num_slabs // 4)
        is_large = self._file.num_bytes > max(MIN_BYTES, 4 * live_bytes)
        if not (is_long or is_large or self._is_behind):
            return
        try:
            self._file.rewrite(dump())
        except OSError as error:
            _log.warning("the journal could not be rewritten: %s", error)
            return
        self._num_records, self._is_behind = 0, False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    # -- steps ----------------------------------------------------------------------------------

    def _note(self, key: Key, reservation: Reservation, first_uid: int) -> None:
        plan = reservation.plan
        self._remember(
            key, [plan.partition if plan.uids is None else None, first_uid, plan.num_rows]
        )

    def _remember(self, key: Key, answer: list[Any]) -> None:
        self.answers[key] = answer
        if len(self.answers) > MAX_ANSWERS:
            self.answers.popitem(last=False)

    def _write_or_refuse(self, record: Record, reservation: Reservation) -> None:
        assert self._file is not None
        full = StorageFull(reservation.plan.nbytes, 0, 0, 0.0, self._slot)
        if self._is_behind:
            raise full
        try:
            self._file.append(record)
        except OSError as error:
            _log.warning("no room in the journal: %s", error)
            raise full from error
        self._num_records += 1

    def _write(self, record: Record) -> None:
        """What cannot be refused. Without room the journal ends here, and so do puts, until it
        could be written anew with this in it."""
        if self._file is None or self._is_behind:
            return
        try:
            self._file.append(record)
        except OSError as error:
            _log.warning("no room in the journal: %s", error)
            self._is_behind = True
        self._num_records += 1


def lease_record(store: Store, lease_id: int, reader: str, key: Key | None) -> Record:
    """A lease that is live; ``key``: of the get that it answers. Slabs are named by their puts."""
    body = {
        "id": lease_id,
        "reader": reader,
        **_names(store, store.leases.slabs_of(lease_id)),
        "key": None if key is None else list(key),
    }
    return Record(kind=LEASE, body=body)


def _names(store: Store, slab_ids: np.ndarray) -> dict[str, list[int]]:
    """What names slabs for good."""
    slabs = store.slabs
    return {"puts": slabs.put_id[slab_ids].tolist(), "places": slabs.place[slab_ids].tolist()}


def _put_record(
    reservation: Reservation,
    request: Request,
    *,
    is_lent: bool,
    is_filled: bool,
    deadline_s: float,
    first_uid: int | None,
) -> Record:
    """The plan goes in as it came; the payload, which is in the arena, does not."""
    body = request.body
    frames: list[Buffer] = list(request.frames)
    if body["payload"] is not None:
        frames[body["payload"]] = b""
    return Record(
        kind=PUT,
        body={
            "id": reservation.put_id,
            "partition": body["partition"],
            "num_rows": body["num_rows"],
            "uids": body["uids"],
            "columns": body["columns"],
            "tags": body["tags"],
            "overwrite": body["overwrite"],
            "part_of": body.get("part_of", ""),
            "at": reservation.addresses.tolist(),
            "writer": reservation.writer,
            "lent": is_lent,
            "filled": is_filled,
            "deadline_s": deadline_s,
            "first": first_uid,
            "key": list(request.key),
        },
        frames=frames,
    )
