"""What all backends share that keep each slab as an object of a store that others own.

A slab is filled in ordinary memory and goes to the store when it is sealed, as a whole; its room
comes back when its last byte is freed, for a store drops whole objects. Addresses are never given
out twice.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.base import Backend, Capabilities
from transferqueue.backends.slab_map import SlabMap
from transferqueue.errors import BytesDamaged, Closed
from transferqueue.memory.allocator import (
    ALIGN_BYTES,
    PAGE_ALIGN_FROM_BYTES,
    PAGE_BYTES,
    RangeAllocator,
    extents,
)
from transferqueue.memory.copying import copy_into

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

_ADDRESSES = 1 << 55
"""Bytes that one process can take in all: 32 PiB."""


@dataclass(slots=True)
class _Slab:
    nbytes: int
    extent: int
    gap_at: int
    """Where the addresses begin that are of no slab, between this one and the next."""
    staged: Bytes | None = None
    stored: Any = None
    """What the store knows the object by, from ``seal`` on."""


def _with_gap(taken: Int64s) -> Int64s:
    """Addresses that slabs of these extents take. No two touch: ranges of neighbours would be
    joined to one, and no object has that."""
    return np.where(taken > 0, extents(taken + 1), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of one object, and where they go."""

    stored: Any
    object_bytes: int
    offset: int
    at: int
    nbytes: int


class ObjectBackend(Backend):
    """Left to do: ``open``, ``_store``, ``_load``, ``_drop`` and ``close``, which calls this one's
    first."""

    capabilities = Capabilities(leaves_process=True, whole_slabs=True)

    def __init__(self, budget_bytes: int, name: str) -> None:
        """``name``: of the store, for errors."""
        self._name = name
        self._capacity = -(-budget_bytes // PAGE_BYTES) * PAGE_BYTES
        self._used = 0
        self._addresses = RangeAllocator(_ADDRESSES)
        self._slabs: SlabMap[_Slab] = SlabMap()
        self._closed = False

    @abstractmethod
    def _store(self, data: Bytes) -> Any:
        """Keep these bytes, which nobody changes any more; returns how to find them."""

    @abstractmethod
    def _load(self, pieces: Sequence[Piece], out: Bytes) -> Sequence[int]:
        """Fill ``out`` with all of these. Returns how many bytes of each have come."""

    @abstractmethod
    def _drop(self, stored: Sequence[Any]) -> None:
        """These objects are not needed any more. Does not fail for a store that is not there."""

    # -- room -----------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        return self._capacity

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def largest_free(self) -> int:
        room = self._capacity - self._used
        unit = PAGE_BYTES if room >= PAGE_ALIGN_FROM_BYTES else ALIGN_BYTES
        return room // unit * unit

    def extents(self, nbytes: Sequence[int]) -> Int64s:
        return extents(nbytes)

    def reserve(self, nbytes: Sequence[int]) -> Int64s | None:
        self._refuse_closed()
        taken = self.extents(nbytes)
        total = int(taken.sum())
        if self._used + total > self._capacity:
            return None
        addresses = [self._addresses.alloc_fresh(size) for size in _with_gap(taken).tolist()]
        for address, size, extent in zip(addresses, nbytes, taken.tolist(), strict=True):
            if size:
                self._slabs.add(address, extent, _Slab(int(size), extent, address + extent))
        self._used += total
        return np.array(addresses, np.int64)

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        self._addresses.free_many(addresses, nbytes)
        ended = self._slabs.free(np.asarray(addresses, np.int64), np.asarray(nbytes, np.int64))
        self._used -= sum(slab.extent for slab in ended)
        gaps_at = np.array([slab.gap_at for slab in ended], np.int64)
        taken = np.array([slab.extent for slab in ended], np.int64)
        self._addresses.free_many(gaps_at, _with_gap(taken) - taken)
        stored = [slab.stored for slab in ended if slab.stored is not None]
        if stored:
            self._drop(stored)

    # -- writing --------------------------------------------------------------------------------

    def writable(self, address: int, nbytes: int) -> memoryview:
        self._refuse_closed()
        if not nbytes:
            return memoryview(bytearray())
        start, slab = self._slabs.find(address, nbytes)
        if slab.staged is None:
            slab.staged = np.empty(slab.extent, np.uint8)
        return slab.staged[address - start : address - start + nbytes].data

    def write(self, address: int, data: memoryview) -> None:
        copy_into(self.writable(address, data.nbytes), data)

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        for address, size in zip(addresses.tolist(), nbytes.tolist(), strict=True):
            if not size:
                continue
            _, slab = self._slabs.find(address, size)
            if slab.stored is None:
                staged = np.empty(slab.nbytes, np.uint8) if slab.staged is None else slab.staged
                slab.stored, slab.staged = self._store(staged[: slab.nbytes]), None

    # -- reading --------------------------------------------------------------------------------

    def read_into(self, address: int, out: memoryview) -> None:
        copy_into(out, self.readable(address, out.nbytes))

    def readable(self, address: int, nbytes: int) -> memoryview:
        read = self.read_ranges(np.array([address], np.int64), np.array([nbytes], np.int64))
        return read.data.toreadonly()

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> Bytes:
        self._refuse_closed()
        pieces, at = [], 0
        for address, size in zip(addresses.tolist(), nbytes.tolist(), strict=True):
            if size:
                pieces.append(self._piece(address, size, at))
                at += size
        out = np.empty(at, np.uint8)
        came = self._load(pieces, out) if pieces else []
        for piece, count in zip(pieces, came, strict=True):
            if count != piece.nbytes:
                why = f"{count} bytes came, not {piece.nbytes}"
                raise BytesDamaged(self._name, piece.offset, why)
        return out

    def _piece(self, address: int, nbytes: int, at: int) -> Piece:
        start, slab = self._slabs.find(address, nbytes)
        if slab.stored is None:
            raise ValueError(f"the slab from {start} on is not sealed")
        return Piece(
            stored=slab.stored,
            object_bytes=slab.nbytes,
            offset=address - start,
            at=at,
            nbytes=nbytes,
        )

    # -- the end --------------------------------------------------------------------------------

    def close(self, *, keep: bool = False) -> None:
        del keep
        self._closed = True

    def _forget_slabs(self) -> None:
        """Let go of all objects and buffers."""
        self._slabs = SlabMap()

    def _all_stored(self) -> list[Any]:
        return [slab.stored for slab in self._slabs.values() if slab.stored is not None]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed(type(self).__name__)
