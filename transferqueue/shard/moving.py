"""A slab moves from one place to another: its live cells, packed, in the order they lay in.

Where each cell goes follows from where the slab goes and from which of its cells are alive. So a
journal need say no more than the former, and whoever replays it finds the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.shard.rows import RowTable
    from transferqueue.shard.store import Store

    Ranges = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Cells of one field that move, by slab and address."""

    table: RowTable
    field: str
    rows: np.ndarray  # int64[cells]
    slabs: np.ndarray  # int32[cells]
    starts: np.ndarray  # int64[cells]
    sizes: np.ndarray  # int64[cells], bytes


class Move:
    """What is in some slabs at one moment. Good until the store changes."""

    def __init__(self, store: Store, slab_ids: np.ndarray) -> None:
        """``slab_ids``: of slabs that are committed and not pinned."""
        self._store = store
        self.slab_ids = slab_ids
        is_wanted = np.zeros(len(store.slabs.num_rows), dtype=bool)
        is_wanted[slab_ids] = True
        self._parts = [
            self._part(table, field, rows)
            for table in store.partitions.values()
            for field, rows, _ in table.cells_in(is_wanted)
        ]

    def _part(self, table: RowTable, field: str, rows: np.ndarray) -> _Part:
        cells = table.read(field, rows)
        sizes = cells.lengths * self._store.slabs.unit_bytes[cells.slabs]
        order = np.lexsort((cells.starts, cells.slabs))
        return _Part(
            table=table,
            field=field,
            rows=rows[order],
            slabs=cells.slabs[order],
            starts=cells.starts[order],
            sizes=sizes[order],
        )

    def ranges(self) -> list[Ranges]:
        """Where the bytes of each slab lie, in the order in which they will."""
        found: dict[int, Ranges] = {}
        for part in self._parts:
            firsts = np.flatnonzero(np.diff(part.slabs, prepend=-1))
            lasts = np.append(firsts[1:], len(part.slabs))
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                of_slab = slice(first, last)
                found[int(part.slabs[first])] = (part.starts[of_slab], part.sizes[of_slab])
        return [found[slab_id] for slab_id in self.slab_ids.tolist()]

    def to(self, addresses: np.ndarray, extents: np.ndarray) -> Ranges:
        """The slabs are there now. Returns the ranges in which they were."""
        slabs = self._store.slabs
        old_starts, old_sizes = self._old_ranges()
        to = np.zeros(len(slabs.num_rows), dtype=np.int64)
        to[self.slab_ids] = addresses
        for part in self._parts:
            part.table.move(part.field, part.rows, to[part.slabs] + _offsets(part))
        slabs.move(self.slab_ids, addresses, extents)
        return old_starts, old_sizes

    def _old_ranges(self) -> Ranges:
        """Of the cells, and the padding after the last of each slab."""
        slabs, ids = self._store.slabs, self.slab_ids
        in_cells = np.zeros(len(slabs.num_rows), dtype=np.int64)
        for part in self._parts:
            np.add.at(in_cells, part.slabs, part.sizes)
        padding = slabs.live_bytes[ids] - in_cells[ids]
        ends = slabs.address[ids] + slabs.extent_bytes[ids]
        starts: Sequence[np.ndarray] = [*(part.starts for part in self._parts), ends - padding]
        sizes: Sequence[np.ndarray] = [*(part.sizes for part in self._parts), padding]
        return np.concatenate(starts), np.concatenate(sizes)


def _offsets(part: _Part) -> np.ndarray:
    """Of each cell in its new slab."""
    before = np.cumsum(part.sizes) - part.sizes
    firsts = np.flatnonzero(np.diff(part.slabs, prepend=-1))
    counts = np.diff(np.append(firsts, len(part.slabs)))
    offsets: np.ndarray = before - np.repeat(before[firsts], counts)
    return offsets
