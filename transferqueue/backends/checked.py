"""A backend whose bytes leave the process, with a check of every byte that comes back.

For all that say ``leaves_process``: how long a slab is and a word for each of its pages are kept
here when it is sealed, and what is read is compared with them. Bytes that a store has lost, cut
off, mixed up or changed are a `BytesDamaged` for that read, never a wrong value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.backends.base import Backend
from transferqueue.backends.page_digests import PAGE_BYTES, digests_of, first_wrong
from transferqueue.backends.slab_map import SlabMap
from transferqueue.errors import BytesDamaged, Closed
from transferqueue.memory.copying import as_bytes, copy_into
from transferqueue.memory.gather import gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from transferqueue.backends.base import BackendConfig, Capabilities

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class _Slab:
    nbytes: int
    filling: memoryview | None = None
    """All of it, until it is sealed."""
    digests: np.ndarray | None = None


def checked(backend: Backend, name: str = "") -> Backend:
    """The backend, with checks if its bytes leave the process and it has none of its own."""
    capabilities = backend.capabilities
    if not capabilities.leaves_process or isinstance(backend, CheckedBackend):
        return backend
    assert not capabilities.outlives_process, "what outlives its process has to check itself"
    return CheckedBackend(backend, name or type(backend).__name__)


class CheckedBackend(Backend):
    """``name`` is for errors."""

    def __init__(self, inner: Backend, name: str) -> None:
        self.inner = inner
        self._name = name
        self._slabs: SlabMap[_Slab] = SlabMap()
        self._closed = False

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        raise NotImplementedError("made of one that is open")

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return self.inner.capabilities

    # -- room -----------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        return self.inner.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self.inner.used_bytes

    @property
    def largest_free(self) -> int:
        return self.inner.largest_free

    def extents(self, nbytes: Sequence[int]) -> Int64s:
        return self.inner.extents(nbytes)

    def reserve(self, nbytes: Sequence[int]) -> Int64s | None:
        found = self.inner.reserve(nbytes)
        if found is None:
            return None
        extents = self.inner.extents(nbytes).tolist()
        for address, extent, size in zip(found.tolist(), extents, nbytes, strict=True):
            if size:
                self._slabs.add(address, extent, _Slab(nbytes=int(size)))
        return found

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        self.inner.free(addresses, nbytes)
        self._slabs.free(np.asarray(addresses, np.int64), np.asarray(nbytes, np.int64))

    # -- writing --------------------------------------------------------------------------------

    def writable(self, address: int, nbytes: int) -> memoryview:
        self._refuse_closed()
        if not nbytes:
            return memoryview(bytearray())
        start, slab = self._slabs.find(address, nbytes)
        if slab.filling is None:
            slab.filling = self.inner.writable(start, slab.nbytes)
        return slab.filling[address - start : address - start + nbytes]

    def write(self, address: int, data: memoryview) -> None:
        copy_into(self.writable(address, data.nbytes), data)

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        for address, size in zip(addresses.tolist(), nbytes.tolist(), strict=True):
            if size:
                filled = as_bytes(self.writable(address, size))
                start, slab = self._slabs.find(address, size)
                assert (start, slab.nbytes) == (address, size), "a slab is sealed as a whole"
                slab.digests, slab.filling = digests_of(filled), None
        self.inner.seal(addresses, nbytes)

    # -- reading --------------------------------------------------------------------------------

    def read_into(self, address: int, out: memoryview) -> None:
        copy_into(out, self.readable(address, out.nbytes))

    def readable(self, address: int, nbytes: int) -> memoryview:
        self._refuse_closed()
        if not nbytes:
            return memoryview(b"")
        start, slab = self._slabs.find(address, nbytes)
        first, end = _pages(address - start, nbytes, slab.nbytes)
        block = self.inner.readable(start + first, end - first)
        self._check(start, slab, first, end, as_bytes(block))
        skip = address - start - first
        return block[skip : skip + nbytes].toreadonly()

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> Bytes:
        """One read of all the pages that the ranges are in."""
        self._refuse_closed()
        runs = [self._run(*run) for run in self._runs(addresses, nbytes)]
        starts = np.array([run.start + run.first for run in runs], np.int64)
        sizes = np.array([run.end - run.first for run in runs], np.int64)
        pages = self.inner.read_ranges(starts, sizes)
        if len(pages) != int(sizes.sum()):
            raise BytesDamaged(self._name, 0, f"{len(pages)} bytes came, not {int(sizes.sum())}")
        at = np.cumsum(sizes) - sizes
        for run, begin, size in zip(runs, at.tolist(), sizes.tolist(), strict=True):
            self._check(run.start, run.slab, run.first, run.end, pages[begin : begin + size])
        wanted = np.array([run.nbytes for run in runs], np.int64)
        if len(pages) == int(wanted.sum()):
            return pages
        gathered = gather(pages, at + [run.skip for run in runs], wanted)
        return gathered if gathered.base is None else gathered.copy()

    def _runs(self, addresses: Int64s, nbytes: Int64s) -> list[tuple[int, int]]:
        """Ranges of one slab that follow one another are one."""
        filled = nbytes > 0
        starts, sizes = addresses[filled], nbytes[filled]
        if not len(starts):
            return []
        places = self._slabs.places(starts)
        follows = (starts[1:] == starts[:-1] + sizes[:-1]) & (places[1:] == places[:-1])
        firsts = np.flatnonzero(np.concatenate(([True], ~follows)))
        totals = np.add.reduceat(sizes, firsts)
        return list(zip(starts[firsts].tolist(), totals.tolist(), strict=True))

    def _run(self, address: int, nbytes: int) -> _Run:
        start, slab = self._slabs.find(address, nbytes)
        first, end = _pages(address - start, nbytes, slab.nbytes)
        skip = address - start - first
        return _Run(start=start, slab=slab, first=first, end=end, skip=skip, nbytes=nbytes)

    def _check(self, start: int, slab: _Slab, first: int, end: int, pages: Bytes) -> None:
        if slab.digests is None:
            raise ValueError(f"the slab from {start} on is not sealed")
        page = first // PAGE_BYTES
        wrong = first_wrong(slab.digests[page : -(-end // PAGE_BYTES)], pages)
        if wrong is None and len(pages) == end - first:
            return
        why = "these are not the bytes that were written"
        if len(pages) != end - first:
            why = f"{len(pages)} bytes came, not {end - first}"
        at = page if wrong is None else page + wrong
        raise BytesDamaged(self._name, at * PAGE_BYTES, why)

    def lies_in_memory(self, addresses: Int64s) -> bool:
        return self.inner.lies_in_memory(addresses)

    # -- the rest -------------------------------------------------------------------------------

    def tick(self, now_s: float) -> float | None:
        return self.inner.tick(now_s)

    def client_access(self) -> dict[str, Any] | None:
        return self.inner.client_access()

    def facts(self) -> dict[str, Any]:
        return self.inner.facts()

    def close(self, *, keep: bool = False) -> None:
        self._closed = True
        self.inner.close(keep=keep)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed(type(self.inner).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    start: int
    slab: _Slab
    first: int
    end: int
    skip: int
    nbytes: int


def _pages(offset: int, nbytes: int, slab_bytes: int) -> tuple[int, int]:
    """Where the pages of these bytes of a slab begin and end."""
    first = offset // PAGE_BYTES * PAGE_BYTES
    return first, min(-(-(offset + nbytes) // PAGE_BYTES) * PAGE_BYTES, slab_bytes)
