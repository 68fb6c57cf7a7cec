"""Everything that a shard shows at one moment, for a checkpoint. O(live); no file, no socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.checkpoint.placement import Stretch, stretches_of
from transferqueue.checkpoint.saved_rows import SavedColumn, SavedPartition
from transferqueue.memory.allocator import extents
from transferqueue.wire.chunks import Runs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from transferqueue.shard.rows import Cells, RowTable
    from transferqueue.shard.split_puts import Written
    from transferqueue.shard.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class CutColumn:
    """Where the bytes of a saved column are in the arena."""

    slab_ids: np.ndarray  # int32[slabs], each once
    runs: Runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A shard at one moment. The memory of ``columns`` is right while their slabs are leased."""

    partitions: Sequence[SavedPartition]
    columns: Sequence[CutColumn]
    """Of all partitions, in their order."""
    num_rows: int
    extent_bytes: int
    stretches: Sequence[Stretch]


def cut(store: Store, leave_out: Sequence[Written], *, without: Collection[str] = ()) -> Cut:
    """``leave_out``: what parts of puts have written of which another part is not there.
    ``without``: partitions that are passed over."""
    maker = _CutMaker(store)
    for name, table in store.partitions.items():
        if name in without:
            continue
        maker.add(name, table, [written for written in leave_out if written.partition == name])
    return maker.made()


class _CutMaker:
    """Takes one partition after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._partitions: list[SavedPartition] = []
        self._columns: list[CutColumn] = []
        self._offset = 0
        self._extent_bytes = 0
        self._row_bytes: list[np.ndarray] = [_NO_INTS]

    def add(self, name: str, table: RowTable, left: Sequence[Written]) -> None:
        uids = table.uids()
        rows_left = [written.uids for written in left if written.fields is None]
        kept = ~np.isin(uids, np.concatenate([_NO_INTS, *rows_left]))
        if not kept.any():
            return
        columns = []
        for field, present, cells in table.columns():
            taken = kept[present] & ~_is_left(field, uids[present], left)
            if taken.any():
                here = np.zeros(len(uids), dtype=bool)
                here[np.flatnonzero(present)[taken]] = True
                columns.append(self._column(field, here[kept], cells.take(np.flatnonzero(taken))))
        self._partitions.append(
            SavedPartition(
                name=name,
                uids=uids[kept],
                columns=columns,
                backends=self._store.choice.of.get(name, {}),
            )
        )
        row_bytes = np.zeros(np.count_nonzero(kept), dtype=np.int64)
        for column in columns:
            row_bytes[column.present] += column.sizes
        self._row_bytes.append(row_bytes)

    def _column(self, field: str, present: np.ndarray, cells: Cells) -> SavedColumn:
        specs, table = self._store.specs, self._store.slabs
        slab_ids, slabs = np.unique(cells.slabs, return_inverse=True)
        spec_ids, spec_of_slab = np.unique(table.spec_id[slab_ids], return_inverse=True)
        column = SavedColumn(
            field=field,
            present=present,
            slabs=slabs.astype(np.int64),
            lengths=cells.lengths,
            specs=[specs[spec_id] for spec_id in spec_ids.tolist()],
            spec_of_slab=spec_of_slab.astype(np.int32),
            offset=self._offset,
        )
        sizes = column.sizes
        of_slabs = np.bincount(slabs, weights=sizes, minlength=len(slab_ids)).astype(np.int64)
        memory = CutColumn(slab_ids=slab_ids, runs=Runs.of(cells.starts, sizes))
        self._columns.append(memory)
        self._offset += memory.runs.total_bytes
        self._extent_bytes += int(extents(of_slabs).sum())
        return column

    def made(self) -> Cut:
        uids = np.concatenate([_NO_INTS, *(partition.uids for partition in self._partitions)])
        order = np.argsort(uids)
        return Cut(
            partitions=self._partitions,
            columns=self._columns,
            num_rows=len(uids),
            extent_bytes=self._extent_bytes,
            stretches=stretches_of(uids[order], np.concatenate(self._row_bytes)[order]),
        )


def _is_left(field: str, uids: np.ndarray, left: Sequence[Written]) -> np.ndarray:
    """Whose cells of this field are left out. bool[uids]"""
    found = [written.uids for written in left if field in (written.fields or ())]
    return np.isin(uids, np.concatenate([_NO_INTS, *found]))


_NO_INTS = np.empty(0, dtype=np.int64)
