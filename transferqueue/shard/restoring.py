"""Loading the rows of a checkpoint into an empty shard."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.checkpoint.cells import CellsReader
from transferqueue.checkpoint.files import read_saved_records, refuse_unseen
from transferqueue.checkpoint.saved_rows import SavedColumn, SavedPartition, from_records
from transferqueue.config import SPILL_NAME
from transferqueue.errors import CheckpointDamaged, CheckpointTooLarge, TransferQueueError
from transferqueue.shard.rows import Cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.checkpoint.manifest import SavedShard
    from transferqueue.checkpoint.restore_plan import SavedRows
    from transferqueue.homes import UidRange
    from transferqueue.shard.backend_choice import BackendChoice
    from transferqueue.shard.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What one shard had written, and the reader of its bytes."""

    partitions: Sequence[SavedPartition]
    cells: CellsReader


class RowLoader:
    """Fills a store whose slabs get their space from ``backend``."""

    def __init__(
        self, store: Store, backend: SeveralBackends, choice: BackendChoice, saved: SavedRows
    ) -> None:
        self._store = store
        self._backend = backend
        self._choice = choice
        self._saved = saved
        self._numbers = count(1)

    def load(self) -> dict[str, Mapping[str, str]]:
        """`CheckpointDamaged` names the file; `CheckpointTooLarge` when there is no room.
        Returns by partition which backend its fields go to."""
        refuse_unseen(self._saved.folder, self._saved.path)
        sources: list[_Source] = []
        try:
            for shard in self._saved.shards:
                sources.append(self._open(shard))
            choices = self._declare(sources)
            self._add_rows(sources)
            for source in sources:
                for partition in source.partitions:
                    self._add_cells(partition, source.cells)
            return choices
        finally:
            for source in sources:
                source.cells.close()

    def _declare(self, sources: Sequence[_Source]) -> dict[str, Mapping[str, str]]:
        """A backend that there is not any more leaves its fields to the default one."""
        choices: dict[str, Mapping[str, str]] = {}
        for source in sources:
            for partition in source.partitions:
                known = {f: b for f, b in partition.backends.items() if b in self._choice.names}
                if known:
                    choices[partition.name] = known
        self._choice.declare(choices)
        return choices

    def _open(self, shard: SavedShard) -> _Source:
        path, folder = self._saved.path, self._saved.folder
        records = read_saved_records(folder, shard.rows, path)
        try:
            partitions, sums = from_records(records)
        except (TransferQueueError, LookupError, ValueError, TypeError) as error:
            raise CheckpointDamaged(path, shard.rows.name, f"not its rows: {error!r}") from error
        cells = CellsReader(
            os.path.join(folder, shard.cells.name),
            name=shard.cells.name,
            where=path,
            sums=sums,
            nbytes=shard.cells.nbytes,
        )
        return _Source(partitions=partitions, cells=cells)

    def _add_rows(self, sources: Sequence[_Source]) -> None:
        """All rows of a partition at once: a table takes them in the order of their uids."""
        uids: dict[str, list[np.ndarray]] = {}
        for source in sources:
            for partition in source.partitions:
                mine = partition.uids[self._is_mine(partition)]
                if len(mine):
                    uids.setdefault(partition.name, []).append(mine)
        for name, parts in uids.items():
            self._store.table(name).append(np.sort(np.concatenate(parts)))

    def _is_mine(self, partition: SavedPartition) -> np.ndarray:
        """bool[rows]"""
        return _is_in(partition.uids, self._saved.ranges)

    def _add_cells(self, partition: SavedPartition, cells: CellsReader) -> None:
        is_mine = self._is_mine(partition)
        if not is_mine.any():
            return
        table = self._store.table(partition.name)
        for column in partition.columns:
            chosen = np.flatnonzero(is_mine[column.present])
            if len(chosen):
                rows = table.locate(partition.uids[column.present][chosen])
                places = self._places(partition.name, column.field)
                table.write(column.field, rows, self._load(column, chosen, cells, places))

    def _places(self, partition: str, field: str) -> list[int]:
        """Backends that a field may be loaded into, the first that has room."""
        found = self._choice.numbers(partition, [field])
        if found is not None and found[0] != self._backend.default:
            return [int(found[0])]
        spill = self._backend.number_of(SPILL_NAME)
        return [self._backend.default, *([] if spill is None else [spill])]

    def _load(
        self, column: SavedColumn, chosen: np.ndarray, reader: CellsReader, places: Sequence[int]
    ) -> Cells:
        """Put the bytes of the chosen cells into a backend, each slab in one piece."""
        sizes = column.sizes
        offsets = column.offset + np.cumsum(sizes) - sizes
        sizes, offsets = sizes[chosen], offsets[chosen]
        distinct, slab = np.unique(column.slabs[chosen], return_inverse=True)
        slab_bytes = np.bincount(slab, weights=sizes, minlength=len(distinct)).astype(np.int64)
        addresses, extents = self._reserve(slab_bytes, places)
        starts = addresses[slab] + _within(slab, sizes)
        for at, offset, nbytes in _runs(starts, offsets, sizes):
            self._copy(reader, at, offset, nbytes)
        self._backend.seal(addresses, slab_bytes)
        ids = self._add_slabs(column, distinct, slab, addresses, extents)
        return Cells(slabs=ids[slab], starts=starts, lengths=column.lengths[chosen])

    def _reserve(self, nbytes: np.ndarray, places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Addresses and extents of slabs of these sizes."""
        found = self._backend.reserve_for_saved(nbytes.tolist(), places)
        if found is None:
            member = self._backend.members[places[0]]
            needed = member.backend.used_bytes + int(nbytes.sum())
            raise CheckpointTooLarge(self._saved.path, needed, member.budget_bytes, 1)
        return found

    def _copy(self, reader: CellsReader, address: int, offset: int, nbytes: int) -> None:
        def take(view: memoryview) -> None:
            nonlocal address
            self._backend.write(address, view)
            address += view.nbytes

        reader.read(offset, nbytes, take)

    def _add_slabs(
        self,
        column: SavedColumn,
        distinct: np.ndarray,
        slab: np.ndarray,
        addresses: np.ndarray,
        extents: np.ndarray,
    ) -> np.ndarray:
        specs = [column.specs[i] for i in column.spec_of_slab[distinct].tolist()]
        # No put will have these numbers: with the places they name slabs for good.
        names = [-next(self._numbers) for _ in specs]
        return self._store.slabs.add(
            address=addresses,
            extent_bytes=extents,
            unit_bytes=np.array([spec.unit_bytes for spec in specs], dtype=np.int64),
            num_rows=np.bincount(slab, minlength=len(distinct)).astype(np.int64),
            spec_id=np.array([self._store.specs.id_of(s) for s in specs], dtype=np.int32),
            put_id=np.array(names, dtype=np.int64),
            place=np.zeros(len(specs), dtype=np.int32),
        )


def _is_in(uids: np.ndarray, ranges: Sequence[UidRange]) -> np.ndarray:
    found = np.zeros(len(uids), dtype=bool)
    for home in ranges:
        low = np.searchsorted(uids, home.start)
        high = len(uids) if home.stop > _MAX else np.searchsorted(uids, home.stop)
        found[low:high] = True
    return found


def _within(slab: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Where each cell begins in its slab: after those of the same slab that come before it."""
    order = np.argsort(slab, kind="stable")
    ends = np.cumsum(sizes[order])
    before = ends - sizes[order]
    firsts = np.flatnonzero(np.diff(slab[order], prepend=-1))
    before -= np.repeat(before[firsts], np.diff(firsts, append=len(order)))
    within = np.empty(len(slab), dtype=np.int64)
    within[order] = before
    return within


def _runs(
    starts: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
) -> Iterator[tuple[int, int, int]]:
    """Address, offset in the file and size of every stretch that is one in both."""
    filled = sizes > 0
    starts, offsets, sizes = starts[filled], offsets[filled], sizes[filled]
    if not len(sizes):
        return
    follows = (starts[1:] == starts[:-1] + sizes[:-1]) & (offsets[1:] == offsets[:-1] + sizes[:-1])
    firsts = np.concatenate(([0], np.flatnonzero(~follows) + 1))
    totals = np.add.reduceat(sizes, firsts)
    yield from zip(starts[firsts].tolist(), offsets[firsts].tolist(), totals.tolist(), strict=True)


_MAX = (1 << 63) - 1
