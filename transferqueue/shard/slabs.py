"""The slabs of a shard, one row a slab, as columns of numpy arrays.

A slab is the bytes of one field of one put. Its cells are cleared in any order; the table counts
what is left, so that the last cell takes the slab's padding with it.

Invariants: a slab id is in use from ``add`` until its last cell is cleared and its last pin is
gone; only then may the id come back for another slab. ``0 <= live_rows <= num_rows``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int32s = NDArray[np.int32]
    Int64s = NDArray[np.int64]

_MIN_CAPACITY = 64


class SlabTable:
    """Columns indexed by slab id, e.g. ``table.unit_bytes[cells.slabs] * cells.lengths``.

    A column is replaced when the table grows, so read it through the table each time. Columns are
    longer than the number of slabs and hold leftovers at ids that are not in use.
    """

    __slots__ = (
        "_free_ids",
        "_num_ids",
        "_num_uses",
        "address",
        "extent_bytes",
        "held_bytes",
        "last_use",
        "live_bytes",
        "live_rows",
        "num_rows",
        "pins",
        "place",
        "put_id",
        "spec_id",
        "unit_bytes",
    )

    def __init__(self) -> None:
        self.address: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        self.extent_bytes: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        """Bytes taken from the arena, padding included."""
        self.unit_bytes: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        self.num_rows: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        """Rows put; 0 marks an id that is not in use."""
        self.live_rows: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        self.live_bytes: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        """Bytes of the arena that cells not yet cleared keep, padding included."""
        self.held_bytes: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        """Bytes of cleared cells that wait for the last pin to go."""
        self.pins: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        """Leases that hold the slab."""
        self.spec_id: Int32s = np.zeros(_MIN_CAPACITY, np.int32)
        self.put_id: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        """With ``place`` what names a slab for good, over restarts too. An id does not, and neither
        does an address: where the first rows of one were cleared another may begin."""
        self.place: Int32s = np.zeros(_MIN_CAPACITY, np.int32)
        """Which of the columns of its put."""
        self.last_use: Int64s = np.zeros(_MIN_CAPACITY, np.int64)
        """Rises with every use of any slab: see `touch`."""
        self._num_uses = 0
        self._num_ids = 0
        self._free_ids: list[int] = []

    def __len__(self) -> int:
        """Slabs in use."""
        return self._num_ids - len(self._free_ids)

    def ids(self) -> Int32s:
        """Ids in use, rising. int32[slabs]."""
        return np.flatnonzero(self.num_rows[: self._num_ids]).astype(np.int32)

    def add(
        self,
        *,
        address: Int64s,
        extent_bytes: Int64s,
        unit_bytes: Int64s,
        num_rows: Int64s,
        spec_id: Int32s,
        put_id: Int64s,
        place: Int32s,
    ) -> Int32s:
        """Enter slabs, one array element each, all rows live. Returns their ids, int32[slabs].

        ``ValueError`` for a slab without rows: it would never end.
        """
        if len(num_rows) and int(np.min(num_rows)) < 1:
            raise ValueError("a slab needs at least one row")
        ids = self._new_ids(len(address))
        self.address[ids] = address
        self.extent_bytes[ids] = extent_bytes
        self.unit_bytes[ids] = unit_bytes
        self.num_rows[ids] = num_rows
        self.live_rows[ids] = num_rows
        self.live_bytes[ids] = extent_bytes
        self.held_bytes[ids] = 0
        self.pins[ids] = 0
        self.spec_id[ids] = spec_id
        self.put_id[ids] = put_id
        self.place[ids] = place
        self.touch(ids)
        return ids

    def touch(self, slab_ids: Int32s) -> None:
        """These are used now."""
        self._num_uses += 1
        self.last_use[slab_ids] = self._num_uses

    def movable(self, first: int, end: int) -> Int32s:
        """Slabs that nobody looks at, with bytes at these addresses. Ids, rising."""
        ids = self.ids()
        is_loose = (self.live_rows[ids] > 0) & (self.pins[ids] == 0)
        is_there = (self.address[ids] >= first) & (self.address[ids] < end)
        found: Int32s = ids[is_loose & is_there & (self.live_bytes[ids] > 0)]
        return found

    def move(self, slab_ids: Int32s, address: Int64s, extent_bytes: Int64s) -> None:
        """Their live cells are now one after the other in these ranges, as if only they had been
        put. The caller has seen that nobody looks at them."""
        assert not self.pins[slab_ids].any(), "moved under a reader"
        self.address[slab_ids] = address
        self.extent_bytes[slab_ids] = extent_bytes
        self.live_bytes[slab_ids] = extent_bytes
        self.num_rows[slab_ids] = self.live_rows[slab_ids]

    def recycle(self, slab_ids: Int32s) -> None:
        """Give ids back. The caller has seen that they have no live row and no pin."""
        assert bool(self.num_rows[slab_ids].all()), "a slab ended twice"
        self.num_rows[slab_ids] = 0
        self._free_ids.extend(slab_ids.tolist())

    def _new_ids(self, count: int) -> Int32s:
        reused = self._free_ids[len(self._free_ids) - min(count, len(self._free_ids)) :]
        fresh_end = self._num_ids + count - len(reused)
        if fresh_end > len(self.address):
            self._grow(max(fresh_end, 2 * len(self.address)))
        ids = np.array([*reused, *range(self._num_ids, fresh_end)], dtype=np.int32)
        del self._free_ids[len(self._free_ids) - len(reused) :]
        self._num_ids = fresh_end
        return ids

    def _grow(self, capacity: int) -> None:
        for name in self.__slots__:
            column = getattr(self, name)
            if isinstance(column, np.ndarray):
                wider = np.zeros(capacity, column.dtype)
                wider[: len(column)] = column
                setattr(self, name, wider)
