"""What one shard holds: partitions of rows, slabs of bytes, puts under way. No socket, no clock.

A put goes reserve → (bytes arrive) → commit. What is reserved is seen by nobody; a commit makes
all of it visible at once and gives new rows their uids, so that uids rise in the order of commits.
An abort, or the end of the writer, gives everything back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import DuplicateRows, RowsGone, RowsLost, TransferExpired, UidsUsedUp
from transferqueue.shard.backend_choice import BackendChoice
from transferqueue.shard.leases import FreedRanges, Leases
from transferqueue.shard.rows import Cells, RowTable
from transferqueue.shard.slabs import SlabTable
from transferqueue.shard.specs import SpecTable
from transferqueue.shard.split_puts import SplitPuts
from transferqueue.uids import SEQUENCE_MASK, make_uids
from transferqueue.wire.chunks import Runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.fields import FieldSpec
    from transferqueue.shard.space import Space
    from transferqueue.wire.put import ColumnPlan, PutPlan


EPOCH_SHIFT = 32
"""Numbers of puts and leases: the number of the shard's process above so many bits of count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Space for a put, not yet visible."""

    put_id: int
    plan: PutPlan
    writer: str
    slab_ids: np.ndarray  # int32[columns], empty when the put has no rows
    addresses: np.ndarray  # int64[columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What a commit made visible."""

    partition: str
    uids: np.ndarray  # int64[rows]
    specs: Mapping[str, FieldSpec]
    nbytes: Mapping[str, int]
    tags: Mapping[str, Any]
    is_again: bool = False
    """It is not known whether the coordinator, or the one before it, has heard of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundColumn:
    """The cells of one field of rows that were asked for."""

    specs: Sequence[FieldSpec]
    """The distinct specs among the cells; one unless puts of other shapes were mixed."""
    spec_of_row: np.ndarray | None  # int64[rows present], index into specs; None: all the same
    present: np.ndarray | None  # bool[rows]; None: all
    slab_ids: np.ndarray  # int32[slabs], each once
    lengths: np.ndarray  # int64[rows present], in units
    runs: Runs
    """Where the bytes of the cells lie, in order."""

    @property
    def num_bytes(self) -> int:
        """Of all cells."""
        return self.runs.total_bytes


class Store:
    """Invariant: bytes of a cell change only before its put commits."""

    def __init__(self, *, slot: int, space: Space) -> None:
        self.slot = slot
        self.slabs = SlabTable()
        self.leases = Leases(self.slabs)
        self.partitions: dict[str, RowTable] = {}
        self.specs = SpecTable()
        self.split_puts = SplitPuts()
        self.choice = BackendChoice()
        self.next_uid = int(make_uids(slot, 1, 1)[0])
        """Of the first new row of the next commit. Never falls, also not over restarts."""
        self.uids_end = int(make_uids(slot, SEQUENCE_MASK, 1)[0]) + 1
        """No uid from here on is this shard's to give."""
        self.lost_below = 0
        """Rows with a uid below this one that are not here were lost, not cleared."""
        self.lost_in: dict[str, int] = {}
        """The same of single partitions."""
        self._space = space
        self._reservations: dict[int, Reservation] = {}
        self._next_put_id = 1

    def begin(self, epoch: int, space: Space, choice: BackendChoice) -> None:
        """Serve as the process of this number: puts and leases get numbers that no earlier
        process of this shard has given out. ``space``: where the bytes are from now on,
        ``choice``: in which part of it those of a put."""
        self._space, self.choice = space, choice
        self._next_put_id = (epoch << EPOCH_SHIFT) + 1
        self.leases.begin((epoch << EPOCH_SHIFT) + 1)

    # -- put ------------------------------------------------------------------------------------

    def reserve(self, plan: PutPlan, writer: str) -> Reservation | None:
        """Set space and cells aside, or ``None`` when the space is not there now.

        FieldExists, RowsGone or DuplicateRows when the put can never be committed.
        """
        self._check_cells(plan)
        if plan.uids is None and self.next_uid + plan.num_rows > self.uids_end:
            raise UidsUsedUp(self.slot)
        sizes = [column.nbytes for column in plan.columns]
        numbers = self.choice.numbers(plan.partition, [column.name for column in plan.columns])
        if numbers is None:
            addresses = self._space.reserve(sizes)
        else:
            addresses = self._space.reserve_in(sizes, numbers)
        if addresses is None:
            return None
        put_id, self._next_put_id = self._next_put_id, self._next_put_id + 1
        return self.enter(put_id, plan, writer, addresses)

    def enter(self, put_id: int, plan: PutPlan, writer: str, addresses: np.ndarray) -> Reservation:
        """Set cells aside for a put that has its space, now or from before a restart."""
        self._mark_cells(plan)
        extents = self._space.extents_at(addresses, [column.nbytes for column in plan.columns])
        reservation = Reservation(
            put_id=put_id,
            plan=plan,
            writer=writer,
            slab_ids=self._add_slabs(put_id, plan, addresses, extents),
            addresses=addresses,
        )
        self._reservations[put_id] = reservation
        self.split_puts.begin(plan.part_of)
        return reservation

    def reservations(self) -> list[Reservation]:
        """Puts under way, in the order in which they came."""
        return list(self._reservations.values())

    def is_under_way(self, put_id: int) -> bool:
        return put_id in self._reservations

    def reservation(self, put_id: int) -> Reservation:
        """A put under way; TransferExpired when there is none (committed, aborted, given up)."""
        try:
            return self._reservations[put_id]
        except KeyError:
            raise TransferExpired("put", put_id, self.slot) from None

    def check_commit(self, put_id: int) -> Reservation:
        """The put, if `commit` will make it visible. Its rows may have been cleared meanwhile:
        then RowsGone, and the put is given back."""
        reservation = self.reservation(put_id)
        plan = reservation.plan
        if plan.uids is not None:
            try:
                self._read_table(plan.partition).locate(plan.uids)
            except RowsGone:
                self.abort(put_id)
                raise
        return reservation

    def commit(self, put_id: int) -> Committed:
        """Make a put visible, or fail as `check_commit` does. New rows get the next uids."""
        reservation = self.check_commit(put_id)
        plan = reservation.plan
        table = self.table(plan.partition)
        if plan.uids is None:
            uids = self._new_uids(plan.num_rows)
            rows = table.append(uids)
        else:
            uids, rows = plan.uids, table.locate(plan.uids)
        del self._reservations[put_id]
        for index, column in enumerate(plan.columns):
            if len(reservation.slab_ids):
                cells = self._cells_of(reservation, index, column)
                self._free_cells([table.write(column.name, rows, cells)])
        self._drop_if_empty(plan.partition)
        self.split_puts.committed(plan, uids)
        return Committed(
            partition=plan.partition,
            uids=uids,
            specs={column.name: column.spec for column in plan.columns},
            nbytes={column.name: column.nbytes for column in plan.columns},
            tags=plan.tags,
        )

    def abort(self, put_id: int) -> None:
        """Give a put back. Nothing happens when it is not under way."""
        reservation = self._reservations.pop(put_id, None)
        if reservation is None:
            return
        self._unmark_cells(reservation.plan)
        self.split_puts.given_up(reservation.plan.part_of)
        self._give_back(self.leases.free_slabs(reservation.slab_ids))
        self._drop_if_empty(reservation.plan.partition)

    # -- get ------------------------------------------------------------------------------------

    def find(
        self, partition: str, uids: np.ndarray, fields: Sequence[str], optional: Sequence[str]
    ) -> dict[str, FoundColumn]:
        """Where the cells of ``uids`` lie, in their order.

        RowsGone, FieldsMissing. Rows that lack an ``optional`` field are left out of its column.
        """
        table = self._read_table(partition)
        rows = self._located(partition, table, uids)
        read = table.read_all(list(fields), rows)
        found = {name: self._found(cells, None) for name, cells in read.items()}
        for name in optional:
            cells = table.read(name, rows)
            present = cells.is_there
            if present.all():
                found[name] = self._found(cells, None)
            else:
                found[name] = self._found(cells.take(np.flatnonzero(present)), present)
        return found

    def _located(self, partition: str, table: RowTable, uids: np.ndarray) -> np.ndarray:
        """As `RowTable.locate`; RowsLost for rows that an earlier process of this shard had."""
        try:
            return table.locate(uids)
        except RowsGone:
            absent = uids[~table.find(uids)[1]]
            below = max(self.lost_below, self.lost_in.get(partition, 0))
            lost = (absent >= 0) & (absent < below)
            if lost.any():
                raise RowsLost(int(lost.sum()), len(uids), [self.slot]) from None
            raise

    def pin(self, reader: str, columns: Sequence[FoundColumn], now_s: float) -> int:
        """A lease on all slabs of these columns."""
        slab_ids = [column.slab_ids for column in columns]
        return self.leases.acquire(reader, np.concatenate([_NO_SLABS, *slab_ids]), now_s)

    def release(self, reader: str, lease_ids: Sequence[int]) -> None:
        self._give_back(self.leases.release(reader, lease_ids))

    def peer_gone(self, peer: str) -> None:
        """A process ended: give back what it was reading and what it was writing."""
        self._give_back(self.leases.reader_gone(peer))
        for put_id in [i for i, r in self._reservations.items() if r.writer == peer]:
            self.abort(put_id)

    # -- clear ----------------------------------------------------------------------------------

    def clear(self, partition: str, uids: np.ndarray | None) -> np.ndarray:
        """Remove rows (``None``: all of the partition). Returns the uids that were there."""
        table = self.partitions.get(partition)
        if table is None:
            return _NO_UIDS
        if uids is None:
            uids = table.uids()
        distinct = np.unique(uids)
        rows, found = table.find(distinct)
        self._free_cells(table.clear(rows[found]))
        self._drop_if_empty(partition)
        gone: np.ndarray = distinct[found]
        return gone

    def release_fields(self, partition: str, uids: np.ndarray, fields: Sequence[str]) -> None:
        """Free some fields of rows, which stay. Rows and fields not there are passed over."""
        table = self.partitions.get(partition)
        if table is not None:
            rows, found = table.find(np.unique(uids))
            self._free_cells(table.release_fields(fields, rows[found]))

    # -- status ---------------------------------------------------------------------------------

    def has_all(self, partition: str, uids: np.ndarray) -> bool:
        return bool(self._read_table(partition).find(uids)[1].all())

    @property
    def num_rows(self) -> int:
        return sum(len(table) for table in self.partitions.values())

    @property
    def num_puts_under_way(self) -> int:
        return len(self._reservations)

    # -- steps ----------------------------------------------------------------------------------

    def table(self, partition: str) -> RowTable:
        """To be written to: made when it is not there."""
        table = self.partitions.get(partition)
        if table is None:
            table = self.partitions[partition] = RowTable()
        return table

    def _read_table(self, partition: str) -> RowTable:
        """To look into: what is not there has no rows, and asking for it leaves nothing."""
        table = self.partitions.get(partition)
        return RowTable() if table is None else table

    def _drop_if_empty(self, partition: str) -> None:
        table = self.partitions.get(partition)
        if table is None or len(table):
            return
        if not any(r.plan.partition == partition for r in self._reservations.values()):
            del self.partitions[partition]

    def _check_cells(self, plan: PutPlan) -> None:
        if plan.uids is None:
            return
        _check_distinct(plan.uids)
        table = self._read_table(plan.partition)
        rows = table.locate(plan.uids)
        for column in plan.columns:
            table.check_free(column.name, rows, allow_written=plan.overwrite)

    def _mark_cells(self, plan: PutPlan) -> None:
        """Keep other puts off the empty cells that this put will write."""
        if plan.uids is None:
            return
        table = self.table(plan.partition)
        rows = table.locate(plan.uids)
        for column in plan.columns:
            table.reserve(column.name, rows)

    def _unmark_cells(self, plan: PutPlan) -> None:
        """Let other puts in again, where the rows are still there."""
        table = self.partitions.get(plan.partition)
        if plan.uids is None or table is None:
            return
        rows, found = table.find(plan.uids)
        for column in plan.columns:
            table.unreserve(column.name, rows[found])

    def _add_slabs(
        self, put_id: int, plan: PutPlan, addresses: np.ndarray, extent_bytes: np.ndarray
    ) -> np.ndarray:
        if plan.num_rows == 0:
            return _NO_SLABS
        return self.slabs.add(
            address=addresses,
            extent_bytes=extent_bytes,
            unit_bytes=np.array([c.spec.unit_bytes for c in plan.columns], dtype=np.int64),
            num_rows=np.full(len(plan.columns), plan.num_rows, dtype=np.int64),
            spec_id=np.array([self.specs.id_of(c.spec) for c in plan.columns], dtype=np.int32),
            put_id=np.full(len(plan.columns), put_id, dtype=np.int64),
            place=np.arange(len(plan.columns), dtype=np.int32),
        )

    def _cells_of(self, reservation: Reservation, index: int, column: ColumnPlan) -> Cells:
        num_rows = reservation.plan.num_rows
        lengths = column.lengths
        if lengths is None:
            lengths = np.ones(num_rows, dtype=np.int64)
        sizes = lengths * column.spec.unit_bytes
        return Cells(
            slabs=np.full(num_rows, reservation.slab_ids[index], dtype=np.int32),
            starts=int(reservation.addresses[index]) + np.cumsum(sizes) - sizes,
            lengths=lengths,
        )

    def _new_uids(self, num_rows: int) -> np.ndarray:
        uids = np.arange(self.next_uid, self.next_uid + num_rows, dtype=np.int64)
        self.next_uid += num_rows
        return uids

    def _found(self, cells: Cells, present: np.ndarray | None) -> FoundColumn:
        slab_ids, unit_bytes = self._slabs_of(cells)
        self.slabs.touch(slab_ids)
        specs, spec_of_row = self.specs.distinct(self.slabs.spec_id[slab_ids])
        if spec_of_row is not None:
            spec_of_row = spec_of_row[np.searchsorted(slab_ids, cells.slabs)]
        return FoundColumn(
            specs=specs,
            spec_of_row=spec_of_row,
            present=present,
            slab_ids=slab_ids,
            lengths=cells.lengths,
            runs=Runs.of(cells.starts, cells.lengths * unit_bytes),
        )

    def _slabs_of(self, cells: Cells) -> tuple[np.ndarray, np.ndarray | np.int64]:
        """The slabs, each once and rising; and the bytes of each cell's unit, or of all."""
        slabs = cells.slabs
        first = slabs[:1]
        if (slabs == first).all():  # rows of one put; sorting takes ten times as long
            return first, self.slabs.unit_bytes[first[0]] if len(first) else np.int64(0)
        return np.unique(slabs), self.slabs.unit_bytes[slabs]

    def _free_cells(self, freed: Sequence[Cells]) -> None:
        freed = [cells for cells in freed if len(cells)]
        if not freed:
            return
        slabs = np.concatenate([cells.slabs for cells in freed])
        starts = np.concatenate([cells.starts for cells in freed])
        lengths = np.concatenate([cells.lengths for cells in freed])
        self._give_back(self.leases.free(slabs, starts, lengths * self.slabs.unit_bytes[slabs]))

    def _give_back(self, freed: FreedRanges) -> None:
        if len(freed.addresses):
            self._space.free(freed.addresses, freed.nbytes)


def _check_distinct(uids: np.ndarray) -> None:
    if (uids[1:] > uids[:-1]).all():
        return  # nearly always; sorting takes ten times as long
    distinct, counts = np.unique(uids, return_counts=True)
    if len(distinct) != len(uids):
        repeated = distinct[counts > 1].tolist()
        raise DuplicateRows(len(uids), len(distinct), repeated)


_NO_SLABS = np.empty(0, dtype=np.int32)
_NO_UIDS = np.empty(0, dtype=np.int64)
