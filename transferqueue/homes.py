"""Which shard each uid lives on. No socket, no clock.

A uid names the slot that gave it out, and in a service that was started empty that slot is its
home. A service that was restored from a checkpoint may have another number of shards, and rows of
one slot may lie on several of them: then a table of uid ranges says where. Every client, the
coordinator and each shard have the same table, for the life of the service.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Malformed
from transferqueue.uids import MAX_SLOT, SEQUENCE_BITS, slots_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.uids import Uids

END = 1 << 63
"""Above every uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UidRange:
    """Uids from ``start`` up to, not including, ``stop``."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Homes:
    """Invariant: ``starts`` begins with 0 and rises; uids from ``starts[i]`` to the next start live
    on the shard of ``slots[i]``. Without any, each lives on the slot that it names."""

    starts: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        starts, slots = self.starts, self.slots
        if len(starts) != len(slots) or (starts and starts[0] != 0):
            raise ValueError(f"{len(slots)} slots for {len(starts)} ranges from {starts[:1]}")
        if any(low >= high for low, high in pairwise((*starts, END))):
            raise ValueError("the ranges of a table of homes do not rise")
        if any(not 0 <= slot <= MAX_SLOT for slot in slots):
            raise ValueError(f"slots of a table of homes reach beyond {MAX_SLOT}")

    def of(self, uids: Uids) -> Uids:
        """The home slot of each uid."""
        if not self.starts:
            return slots_of(uids)
        at = np.searchsorted(np.array(self.starts, dtype=np.int64), uids, side="right") - 1
        homes: Uids = np.array(self.slots, dtype=np.int64)[at]
        return homes

    def split(self, uids: Uids) -> dict[int, Uids]:
        """home slot -> positions in ``uids``, ascending."""
        return positions_by(self.of(uids))

    def ranges_of(self, slot: int) -> list[UidRange]:
        """The uids whose home is this slot, in ascending ranges."""
        if not self.starts:
            start = slot << SEQUENCE_BITS
            return [UidRange(start=start, stop=start + (1 << SEQUENCE_BITS))]
        stops = (*self.starts[1:], END)
        return [
            UidRange(start=start, stop=stop)
            for start, stop, home in zip(self.starts, stops, self.slots, strict=True)
            if home == slot
        ]

    def new_uids_of(self, slot: int) -> UidRange | None:
        """Those that a shard which joins with this slot may give to new rows; ``None`` when the
        table has no place for it. The first uid of a slot is nobody's."""
        ranges = self.ranges_of(slot)
        if not ranges:
            return None
        return UidRange(start=ranges[-1].start + 1, stop=ranges[-1].stop)

    def to_plain(self) -> list[list[int]]:
        return [list(self.starts), list(self.slots)]

    @classmethod
    def from_plain(cls, plain: Any) -> Homes:
        """Inverse of `to_plain`; ``None`` is a table without ranges. Raises `Malformed`."""
        if plain is None:
            return NAMED
        try:
            starts, slots = plain
            return cls(starts=_ints(starts), slots=_ints(slots))
        except (ValueError, TypeError) as error:
            raise Malformed(f"not a table of homes: {error}") from error


def positions_by(keys: Uids) -> dict[int, Uids]:
    """key -> where it stands among ``keys``, ascending."""
    if not len(keys):
        return {}
    first = int(keys[0])
    if bool((keys == first).all()):
        return {first: np.arange(len(keys))}
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return {int(keys[part[0]]): part for part in np.split(order, cuts)}


def _ints(values: Sequence[Any]) -> tuple[int, ...]:
    if not isinstance(values, list | tuple) or any(type(value) is not int for value in values):
        raise ValueError(f"expected ints, got {values!r:.80}")
    return tuple(values)


NAMED = Homes()
"""Each uid lives on the slot that it names."""
