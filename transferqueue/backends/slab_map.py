"""Which slab an address is of. No bytes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]

T = TypeVar("T")

_FEW = 64
"""Ranges up to which looking them up one by one costs less than making an array of all slabs."""


@dataclass(slots=True)
class _Slab(Generic[T]):
    end: int
    left_bytes: int
    value: T


class SlabMap(Generic[T]):
    """Slabs by the ranges they were given, until the last byte of each is freed. A zero-sized one
    is not in it."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._slabs: list[_Slab[T]] = []

    def __len__(self) -> int:
        return len(self._starts)

    def values(self) -> Iterator[T]:
        return (slab.value for slab in self._slabs)

    def add(self, start: int, extent: int, value: T) -> None:
        """A slab has ``[start, start + extent)``, which is no other's."""
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._slabs.insert(at, _Slab(start + extent, extent, value))

    def find(self, address: int, nbytes: int) -> tuple[int, T]:
        """Where the slab of these bytes begins, and it. ``ValueError`` for bytes of none."""
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address + nbytes > self._slabs[at].end:
            raise ValueError(f"[{address}, {address + nbytes}) is not within a slab in use")
        return self._starts[at], self._slabs[at].value

    def places(self, addresses: Int64s) -> Int64s:
        """A number for the slab of each address, the same for the same; -1 below all of them."""
        if len(addresses) <= _FEW:
            found = [bisect_right(self._starts, address) - 1 for address in addresses.tolist()]
            return np.array(found, np.int64)
        starts = np.array(self._starts, np.int64)
        return np.searchsorted(starts, addresses, side="right").astype(np.int64) - 1

    def free(self, addresses: Int64s, nbytes: Int64s) -> list[T]:
        """These bytes, each within a slab and in use until now, are free. Returns the slabs that
        have ended with it."""
        filled = nbytes > 0
        places = self.places(addresses[filled])
        touched, index = np.unique(places, return_inverse=True)
        freed = np.bincount(index, weights=nbytes[filled], minlength=len(touched))
        ended = []
        for at, count in zip(touched.tolist(), freed.tolist(), strict=True):
            self._slabs[at].left_bytes -= int(count)
            if self._slabs[at].left_bytes <= 0:
                ended.append(at)
        values = [self._slabs[at].value for at in ended]
        for at in reversed(ended):
            del self._starts[at], self._slabs[at]
        return values
