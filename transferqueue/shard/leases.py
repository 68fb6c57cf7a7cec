"""Who still looks at which slabs, and which cleared bytes wait for that.

A lease pins whole slabs: a reader that has mapped or is copying from some of their bytes, or a
writer that is filling a slab it has reserved. Clearing a cell is at once for the index, but its
bytes come free only when no lease pins the slab.

Invariant: bytes of a slab that is pinned are never among the ranges returned here, so space under
a live lease is never given out again. Nothing here reads a clock or a socket: ``now_s`` comes from
the caller, whose liveness checks decide when a reader is gone. A writer's lease must end by
``release`` or by proof that its process is gone, never by time alone: it may still be writing.

Every call costs a few numpy operations and at most one Python step a lease or slab, none a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from transferqueue.shard.slabs import SlabTable

    Int32s = NDArray[np.int32]
    Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedRanges:
    """What to hand to the backend's ``free``, and which slabs ended."""

    addresses: Int64s  # int64[n]
    nbytes: Int64s  # int64[n], may hold zeros
    slab_ids: Int32s  # ids that are no longer in use and may come back for another slab

    def __bool__(self) -> bool:
        return len(self.addresses) > 0 or len(self.slab_ids) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLeases:
    """What one reader holds, for ``status``."""

    reader: str
    num_leases: int
    num_slabs: int
    extent_bytes: int
    """Arena bytes of the slabs, each counted once."""
    oldest_s: float
    """Age of its oldest lease."""


@dataclass(frozen=True, slots=True)
class _Lease:
    reader: str
    slab_ids: Int32s
    since_s: float


class Leases:
    """Pins on the slabs of one table."""

    def __init__(self, slabs: SlabTable) -> None:
        self._slabs = slabs
        self._leases: dict[int, _Lease] = {}
        self._of_reader: dict[str, set[int]] = {}
        self._next_lease_id = 1
        self._held = _HeldRanges()

    def __len__(self) -> int:
        """Leases that are live."""
        return len(self._leases)

    @property
    def held_bytes(self) -> int:
        """Bytes of cleared cells that wait for a pin to go."""
        return self._held.total_bytes

    def begin(self, first_lease_id: int) -> None:
        """Number leases from here on."""
        self._next_lease_id = first_lease_id

    def restore(self, lease_id: int, reader: str, slab_ids: Int32s, now_s: float) -> None:
        """A lease that an earlier process gave. ``ValueError`` unless its slabs are in use."""
        self._check_used(slab_ids)
        self._slabs.pins[slab_ids] += 1
        self._leases[lease_id] = _Lease(reader, slab_ids, now_s)
        self._of_reader.setdefault(reader, set()).add(lease_id)

    def hold(self, slab_ids: Int32s, addresses: Int64s, nbytes: Int64s) -> None:
        """Bytes that were cleared before a restart and are still looked at."""
        np.add.at(self._slabs.held_bytes, slab_ids, nbytes)
        self._held.add(slab_ids, addresses, nbytes)

    def held(self) -> tuple[Int32s, Int64s, Int64s]:
        """Slab, address and size of every cleared range that waits for a pin to go."""
        return self._held.all()

    def each(self) -> Iterator[tuple[int, str, Int32s]]:
        """Number, reader and slabs of every lease."""
        for lease_id, lease in self._leases.items():
            yield lease_id, lease.reader, lease.slab_ids

    def is_live(self, lease_id: int) -> bool:
        return lease_id in self._leases

    def slabs_of(self, lease_id: int) -> Int32s:
        """What a live lease pins, each slab once."""
        return self._leases[lease_id].slab_ids

    def acquire(self, reader: str, slab_ids: Int32s, now_s: float) -> int:
        """Pin slabs for a reader; an id named twice is pinned once. Returns the lease id.

        Lease ids are never reused. The ids must be in use.
        """
        unique = np.unique(slab_ids).astype(np.int32)
        self._check_used(unique)
        self._slabs.pins[unique] += 1
        lease_id = self._next_lease_id
        self._next_lease_id += 1
        self._leases[lease_id] = _Lease(reader, unique, now_s)
        self._of_reader.setdefault(reader, set()).add(lease_id)
        return lease_id

    def _check_used(self, slab_ids: Int32s) -> None:
        dead = slab_ids[self._slabs.num_rows[slab_ids] == 0]
        if len(dead):
            raise ValueError(f"slabs {dead[:5].tolist()} are not in use")

    def release(self, reader: str, lease_ids: Iterable[int]) -> FreedRanges:
        """End leases. Returns what came free: cleared cells of slabs that nobody pins now.

        Ids that this reader does not hold (ended before, or another's) are passed over, so a
        release may be sent twice.
        """
        mine = self._of_reader.get(reader, set())
        ended = [self._leases.pop(i) for i in set(lease_ids) & mine]
        mine.difference_update(lease_ids)
        if not mine:
            self._of_reader.pop(reader, None)
        return self._unpin(ended)

    def reader_gone(self, reader: str) -> FreedRanges:
        """End every lease of a reader whose process is gone."""
        return self.release(reader, list(self._of_reader.get(reader, ())))

    def free(self, slab_ids: Int32s, addresses: Int64s, nbytes: Int64s) -> FreedRanges:
        """Clear cells: one element each, ``[address, address + nbytes)`` within its slab.

        Each cell is cleared once (the index sees to that). Returns what is free now; the cells of
        pinned slabs follow from ``release``. With its last cell a slab gives its padding too.
        """
        if len(slab_ids) == 0:
            return _NOTHING
        table = self._slabs
        touched, cell_slab = np.unique(slab_ids, return_inverse=True)
        cells = np.bincount(cell_slab, minlength=len(touched))
        # float64 weights are exact below 2^53 bytes
        freed = np.bincount(cell_slab, weights=nbytes, minlength=len(touched)).astype(np.int64)
        was_whole = table.live_rows[touched] == table.num_rows[touched]
        table.live_rows[touched] -= cells
        table.live_bytes[touched] -= freed
        ended = table.live_rows[touched] == 0
        assert int(table.live_rows[touched].min()) >= 0, "a cell was cleared twice"
        # A slab cleared in one call is one range; of others each cell is, and the padding too.
        at_once = ended & was_whole
        cells_left = ~at_once[cell_slab]
        ids = touched.astype(np.int32)
        padded = ids[ended & ~was_whole]
        padding = table.live_bytes[padded]
        whole = ids[at_once]
        table.live_bytes[ids[ended]] = 0
        return self._give_or_hold(
            np.concatenate((slab_ids[cells_left], whole, padded)),
            np.concatenate(
                (
                    addresses[cells_left],
                    table.address[whole],
                    table.address[padded] + table.extent_bytes[padded] - padding,
                )
            ),
            np.concatenate((nbytes[cells_left], table.extent_bytes[whole], padding)),
        )

    def free_slabs(self, slab_ids: Int32s) -> FreedRanges:
        """Clear slabs of which no cell was cleared before: a put that was given up."""
        table = self._slabs
        ids = np.asarray(slab_ids, np.int32)
        assert bool((table.live_rows[ids] == table.num_rows[ids]).all()), "partly cleared"
        table.live_rows[ids] = 0
        table.live_bytes[ids] = 0
        return self._give_or_hold(ids, table.address[ids], table.extent_bytes[ids])

    def of_readers(self, now_s: float) -> list[ReaderLeases]:
        """Who holds what, largest first."""
        rows = [self._of_one(reader, now_s) for reader in self._of_reader]
        return sorted(rows, key=lambda row: -row.extent_bytes)

    def pinned_bytes(self) -> int:
        """Arena bytes of all slabs that are pinned."""
        ids = self._slabs.ids()
        return int(self._slabs.extent_bytes[ids[self._slabs.pins[ids] > 0]].sum())

    def _of_one(self, reader: str, now_s: float) -> ReaderLeases:
        leases = [self._leases[i] for i in self._of_reader[reader]]
        slabs = np.unique(np.concatenate([lease.slab_ids for lease in leases]))
        return ReaderLeases(
            reader=reader,
            num_leases=len(leases),
            num_slabs=len(slabs),
            extent_bytes=int(self._slabs.extent_bytes[slabs].sum()),
            oldest_s=now_s - min(lease.since_s for lease in leases),
        )

    def _unpin(self, leases: list[_Lease]) -> FreedRanges:
        if not leases:
            return _NOTHING
        table = self._slabs
        ids = leases[0].slab_ids
        if len(leases) == 1:
            table.pins[ids] -= 1
        else:
            every = np.concatenate([lease.slab_ids for lease in leases])
            ids, pins = np.unique(every, return_counts=True)
            table.pins[ids] -= pins
        loose = ids[table.pins[ids] == 0]
        addresses, nbytes = self._take_held(loose)
        ended = loose[table.live_rows[loose] == 0]
        table.recycle(ended)
        return FreedRanges(addresses=addresses, nbytes=nbytes, slab_ids=ended)

    def _take_held(self, slab_ids: Int32s) -> tuple[Int64s, Int64s]:
        waiting = slab_ids[self._slabs.held_bytes[slab_ids] > 0]
        self._slabs.held_bytes[waiting] = 0
        return self._held.take(waiting)

    def _give_or_hold(self, slab_ids: Int32s, addresses: Int64s, nbytes: Int64s) -> FreedRanges:
        """Split ranges by whether their slab is pinned; end slabs that are empty and loose."""
        table = self._slabs
        pinned = table.pins[slab_ids] > 0
        if bool(pinned.any()):
            np.add.at(table.held_bytes, slab_ids[pinned], nbytes[pinned])
            self._held.add(slab_ids[pinned], addresses[pinned], nbytes[pinned])
            loose = ~pinned
            slab_ids, addresses, nbytes = slab_ids[loose], addresses[loose], nbytes[loose]
        ids = np.unique(slab_ids)
        ended = ids[table.live_rows[ids] == 0]
        table.recycle(ended)
        return FreedRanges(addresses=addresses, nbytes=nbytes, slab_ids=ended)


class _HeldRanges:
    """Ranges of cleared cells that wait, in the order they were cleared."""

    def __init__(self) -> None:
        self._chunks: list[tuple[Int32s, Int64s, Int64s]] = []
        self.total_bytes = 0

    def add(self, slab_ids: Int32s, addresses: Int64s, nbytes: Int64s) -> None:
        filled = nbytes > 0
        if bool(filled.any()):
            self._chunks.append((slab_ids[filled], addresses[filled], nbytes[filled]))
            self.total_bytes += int(nbytes.sum())

    def all(self) -> tuple[Int32s, Int64s, Int64s]:
        chunks = [(np.empty(0, np.int32), _NO_INTS, _NO_INTS), *self._chunks]
        slabs, addresses, nbytes = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
        return slabs.astype(np.int32), addresses, nbytes

    def take(self, slab_ids: Int32s) -> tuple[Int64s, Int64s]:
        """Remove and return the ranges of these slabs: addresses and sizes."""
        if len(slab_ids) == 0 or not self._chunks:
            return _NO_INTS, _NO_INTS
        ids, addresses, nbytes = (
            np.concatenate(parts) for parts in zip(*self._chunks, strict=True)
        )
        mine = np.isin(ids, slab_ids)
        rest = ~mine
        self._chunks = [(ids[rest], addresses[rest], nbytes[rest])] if bool(rest.any()) else []
        self.total_bytes -= int(nbytes[mine].sum())
        return addresses[mine], nbytes[mine]


_NO_INTS = np.empty(0, np.int64)
_NOTHING = FreedRanges(addresses=_NO_INTS, nbytes=_NO_INTS, slab_ids=np.empty(0, np.int32))
