"""The second copy of a home's rows: a store that the home's changes are carried out on.

The same on both sides of the way back: a home that has lost its rows takes the steps of a copy
that its guard sends. No socket, no clock.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Malformed
from transferqueue.replication.changes import Kind, unpack
from transferqueue.replication.lost_cells import LostCells
from transferqueue.shard.journal import MAX_ANSWERS
from transferqueue.shard.store import Committed
from transferqueue.uids import decode_uids
from transferqueue.wire.arrays import ArrayReader
from transferqueue.wire.put import PutPlan
from transferqueue.wire.tags import read_tags

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.replication.changes import Key
    from transferqueue.shard.space import Space
    from transferqueue.shard.store import Reservation, Store
    from transferqueue.wire.format import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A step as it has come."""

    kind: Kind
    body: dict[str, Any]
    frames: Sequence[Buffer] = ()
    blocks: Sequence[Buffer] = ()
    """The bytes that came with it, in order."""
    are_still_there: Callable[[], bool] | None = None
    """``blocks`` lie in its home's memory: whether they are what that had sent, asked when they
    have been copied. They are not when its successor may have written there."""


@dataclass(slots=True, kw_only=True)
class _OpenPut:
    """A put whose bytes come in several steps."""

    plan: PutPlan
    reservation: Reservation | None
    """``None``: it is not to be made."""
    has_room: bool
    were_there: Callable[[], bool] | None = None
    """Whether the bytes were what its home had sent, when they were copied."""


class BytesReplaced(Exception):
    """A home was lost before its put was copied from its memory: it is not made, the mirror is as
    it was. Nobody was told that it would be."""


class Mirror:
    """Invariant: between two changes the store is what the home's was after the same ones.

    ``is_complete``: whatever the home acknowledges is in here.
    """

    def __init__(self, store: Store, backend: SeveralBackends, space: Space) -> None:
        """``space``: that the store has, of the backend."""
        self.store = store
        self.is_complete = False
        self.answers: OrderedDict[Key, list[Any]] = OrderedDict()
        """As in the home's journal: partition (nil: not to be undone), first uid, rows."""
        self.tagged: deque[Committed] = deque()
        """Puts of whose tags the coordinator may not have heard."""
        self.choices: dict[str, dict[str, str]] = {}
        """To which backends the home's rows went, by partition, when the copy began."""
        self._backend = backend
        self._space = space
        self._numbers = itertools.count(1)
        self._open: _OpenPut | None = None
        self.lost = LostCells(store)
        """What its sender had no bytes of."""
        self._kinds: dict[Kind, Callable[[Taken], bool]] = {
            Kind.HEAD: self._head,
            Kind.TAGS: self._tags,
            Kind.ROWS: self._rows,
            Kind.RESERVE: self._reserve,
            Kind.FILL: self._fill,
            Kind.PUT: self._put,
            Kind.SKIP: self._skip,
            Kind.CLEAR: self._clear,
            Kind.STRIP: self._strip,
            Kind.LOST: self._lose,
            Kind.COPIED: lambda step: True,
            Kind.COMPLETE: self._complete,
        }

    def take(self, step: Taken) -> bool:
        """Carry out a step. False: there is no room for its change, which is not made.
        `BytesReplaced`: the home that sent it is lost."""
        untold = step.body.get("untold")
        while type(untold) is int and len(self.tagged) > untold:
            self.tagged.popleft()
        return self._kinds[step.kind](step)

    def drop(self) -> None:
        """Give all memory back. What somebody still reads is given back with the last lease."""
        for reader in {reader for _, reader, _ in self.store.leases.each()}:
            self.store.peer_gone(reader)
        for reservation in self.store.reservations():
            self.store.abort(reservation.put_id)
        for partition in list(self.store.partitions):
            self.store.clear(partition, None)

    # -- a copy ---------------------------------------------------------------------------------

    def _head(self, step: Taken) -> bool:
        arrays, store = ArrayReader(step.frames), self.store
        body = unpack(arrays, step.body["head"])
        store.next_uid = int(body["next_uid"])
        store.lost_below = int(body["lost_below"])
        store.lost_in = {str(name): int(below) for name, below in body["lost_in"].items()}
        self._miss(body["one_copy"])
        self.choices = {str(name): dict(choice) for name, choice in body["backends"].items()}
        store.split_puts.restore(body["parts"])
        for peer, request_id, *said in body["answers"]:
            self._remember((bytes(peer), int(request_id)), said)
        return True

    def _tags(self, step: Taken) -> bool:
        arrays = ArrayReader(step.frames)
        self.tagged.append(
            Committed(
                partition=str(step.body["partition"]),
                uids=arrays.int64s(step.body["uids"]),
                specs={},
                nbytes={},
                tags=read_tags(unpack(arrays, step.body["tags"]), arrays),
            )
        )
        return True

    def _rows(self, step: Taken) -> bool:
        code = ArrayReader(step.frames).get_bytes(step.body["uids"])
        self.store.table(str(step.body["partition"])).append(decode_uids(code.data))
        return True

    def _complete(self, step: Taken) -> bool:
        del step
        self.is_complete = True
        return True

    # -- a put ----------------------------------------------------------------------------------

    def _reserve(self, step: Taken) -> bool:
        self._abort_open()
        self._open = self._opened(_plan(step))
        return True  # whether there was room is the answer of the last step

    def _opened(self, plan: PutPlan) -> _OpenPut:
        if plan.uids is not None and not self.store.has_all(plan.partition, plan.uids):
            # Some were cleared before its commit: it is not made at home either.
            return _OpenPut(plan=plan, reservation=None, has_room=True)
        addresses = self._reserved(plan)
        if addresses is None:
            return _OpenPut(plan=plan, reservation=None, has_room=False)
        # Not `Store.reserve`: which cells may be written was decided at home.
        number = -next(self._numbers)  # no put of a client has such a number
        reservation = self.store.enter(number, plan, "", addresses)
        return _OpenPut(plan=plan, reservation=reservation, has_room=True)

    def _reserved(self, plan: PutPlan) -> np.ndarray | None:
        """Room in the backends where a put here would go too."""
        sizes, names = [c.nbytes for c in plan.columns], [c.name for c in plan.columns]
        numbers = self.store.choice.numbers_of_copy(plan.partition, names)
        if numbers is None:
            return self._space.reserve(sizes)
        return self._space.reserve_in(sizes, numbers)

    def _abort_open(self) -> None:
        """Of a put whose other bytes cannot be read."""
        put, self._open = self._open, None
        if put is not None and put.reservation is not None:
            self.store.abort(put.reservation.put_id)

    def _fill(self, step: Taken) -> bool:
        if self._open is None:
            raise Malformed("bytes came for no put")
        self._write(self._open, int(step.body["offset"]), step)
        return True

    def _write(self, put: _OpenPut, offset: int, step: Taken) -> None:
        """``offset``: among the bytes of all columns, one after the other."""
        if put.reservation is None:
            return
        put.were_there = step.are_still_there or put.were_there
        self._copy(put.reservation, offset, step.blocks)

    def _copy(self, reservation: Reservation, offset: int, blocks: Sequence[Buffer]) -> None:
        sizes = np.array([column.nbytes for column in reservation.plan.columns], dtype=np.int64)
        ends = np.cumsum(sizes)
        for block in blocks:
            view = memoryview(block).cast("B")
            at = 0
            while at < view.nbytes:
                column = int(np.searchsorted(ends, offset, side="right"))
                if column >= len(ends):
                    raise Malformed("more bytes than the columns of the put have")
                nbytes = min(view.nbytes - at, int(ends[column]) - offset)
                start = int(ends[column] - sizes[column])
                address = int(reservation.addresses[column]) + offset - start
                self._backend.write(address, view[at : at + nbytes])
                at, offset = at + nbytes, offset + nbytes

    def _put(self, step: Taken) -> bool:
        if step.body["plan"] is not None:
            self._abort_open()
            self._open = self._opened(_plan(step))
            self._write(self._open, 0, step)
        put, self._open = self._open, None
        if put is None:
            raise Malformed("the last step of no put")
        if put.reservation is not None:
            if put.were_there is not None and not put.were_there():
                self.store.abort(put.reservation.put_id)
                raise BytesReplaced
            self._commit(put.reservation, step.body["key"])
        return put.has_room

    def _commit(self, reservation: Reservation, key: Any) -> None:
        plan = reservation.plan
        sizes = np.array([column.nbytes for column in plan.columns], dtype=np.int64)
        self._backend.seal(reservation.addresses, sizes)
        committed = self.store.commit(reservation.put_id)
        if committed.tags:
            self.tagged.append(committed)
        for column in plan.columns if plan.uids is not None else ():
            self.lost.forget(plan.partition, column.name, committed.uids)
        if key is not None:
            first_uid = int(committed.uids[0]) if len(committed.uids) else 0
            partition = plan.partition if plan.uids is None else None
            self._remember(_key(key), [partition, first_uid, plan.num_rows])

    # -- the rest -------------------------------------------------------------------------------

    def _skip(self, step: Taken) -> bool:
        self.store.next_uid += int(step.body["num_rows"])
        self._miss([step.body["partition"]])
        return True

    def _miss(self, partitions: Sequence[str]) -> None:
        """Rows that these have by now are not in here: whoever takes them from here has lost
        them."""
        for name in partitions:
            self.store.lost_in[str(name)] = self.store.next_uid

    def _clear(self, step: Taken) -> bool:
        uids = ArrayReader(step.frames).get_optional(step.body["uids"])
        gone = self.store.clear(str(step.body["partition"]), uids)
        if step.body["key"] is not None and len(gone):
            self._remember(_key(step.body["key"]), [None, 0, len(gone)])
        return True

    def _strip(self, step: Taken) -> bool:
        uids = ArrayReader(step.frames).int64s(step.body["uids"])
        partition = str(step.body["partition"])
        self.store.release_fields(partition, uids, step.body["fields"])
        for name in step.body["fields"]:
            self.lost.forget(partition, str(name), uids)
        return True

    def _lose(self, step: Taken) -> bool:
        self._abort_open()
        uids = ArrayReader(step.frames).int64s(step.body["uids"])
        for name in step.body["fields"]:
            self.lost.lose(str(step.body["partition"]), str(name), uids)
        return True

    def _remember(self, key: Key, answer: list[Any]) -> None:
        self.answers[key] = answer
        if len(self.answers) > MAX_ANSWERS:
            self.answers.popitem(last=False)


def _plan(step: Taken) -> PutPlan:
    arrays = ArrayReader(step.frames)
    return PutPlan.read(unpack(arrays, step.body["plan"]), arrays)


def _key(plain: Sequence[Any]) -> Key:
    peer, request_id = plain
    return bytes(peer), int(request_id)
