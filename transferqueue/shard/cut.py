"""Everything that a shard shows at one moment, for a checkpoint. O(live); no file, no socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.checkpoint.placement import Stretch, stretches_of
from transferqueue.checkpoint.saved_rows import SavedColumn, SavedPartition
from transferqueue.shard.allocator import extents
from transferqueue.wire.chunks import Runs

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def cut(store: Store, leave_out: Sequence[Written]) -> Cut:
    """``leave_out``: what parts of puts have written of which another part is not there."""
    partitions, columns = [], []
    uids, sizes, extent_bytes, offset = [_NO_INTS], [_NO_INTS], 0, 0
    for name, table in store.partitions.items():
        left = [written for written in leave_out if written.partition == name]
        kept = _kept_rows(table, [written.uids for written in left if written.fields is None])
        row_sizes = np.zeros(np.count_nonzero(kept), dtype=np.int64)
        saved = []
        for field, present, cells in table.columns():
            chosen = kept[present]
            for written in left:
                if field in (written.fields or ()):
                    chosen &= ~np.isin(table.uids()[present], written.uids)
            if not chosen.any():
                continue
            here = np.zeros(len(present), dtype=bool)
            here[np.flatnonzero(present)[chosen]] = True
            taken = cells.take(np.flatnonzero(chosen))
            column, memory, extent = _column(store, field, here[kept], taken, offset)
            saved.append(column)
            columns.append(memory)
            row_sizes[column.present] += column.sizes
            extent_bytes += extent
            offset += memory.runs.total_bytes
        if kept.any():
            partitions.append(SavedPartition(name=name, uids=table.uids()[kept], columns=saved))
            uids.append(partitions[-1].uids)
            sizes.append(row_sizes)
    rows = np.concatenate(uids)
    order = np.argsort(rows)
    return Cut(
        partitions=partitions,
        columns=columns,
        num_rows=len(rows),
        extent_bytes=extent_bytes,
        stretches=stretches_of(rows[order], np.concatenate(sizes)[order]),
    )


def _kept_rows(table: RowTable, leave_out: Sequence[np.ndarray]) -> np.ndarray:
    """bool[rows alive]"""
    uids = table.uids()
    if not leave_out:
        return np.ones(len(uids), dtype=bool)
    return ~np.isin(uids, np.concatenate(leave_out))


def _column(
    store: Store, field: str, present: np.ndarray, cells: Cells, offset: int
) -> tuple[SavedColumn, CutColumn, int]:
    slab_ids, slabs = np.unique(cells.slabs, return_inverse=True)
    spec_ids, spec_of_slab = np.unique(store.slabs.spec_id[slab_ids], return_inverse=True)
    column = SavedColumn(
        field=field,
        present=present,
        slabs=slabs.astype(np.int64),
        lengths=cells.lengths,
        specs=[store.specs[spec_id] for spec_id in spec_ids.tolist()],
        spec_of_slab=spec_of_slab.astype(np.int32),
        offset=offset,
    )
    sizes = column.sizes
    of_slabs = np.bincount(slabs, weights=sizes, minlength=len(slab_ids)).astype(np.int64)
    memory = CutColumn(slab_ids=slab_ids, runs=Runs.of(cells.starts, sizes))
    return column, memory, int(extents(of_slabs).sum())


_NO_INTS = np.empty(0, dtype=np.int64)
