"""Which saved rows go to which shard of a restored service. No file, no socket.

Symbols: the saved rows in order of uid are cut into *stretches*, each of some bytes b_i of the
total B, and there are N shards. A stretch goes to the shard in whose share of B its middle falls:
floor(N · (b_1 + … + b_i/2) / B). So shards get about B/N each, whatever number of shards the rows
lay on before, and rows that were put together stay together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.homes import END, Homes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.checkpoint.lives import Life

MAX_STRETCHES = 1024
"""Of one shard's rows: shares are even to a thousandth of what a shard held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Saved rows from ``first_uid`` on, up to the next stretch, and their bytes."""

    first_uid: int
    nbytes: int


def stretches_of(uids: np.ndarray, nbytes: np.ndarray) -> list[Stretch]:
    """Cut rows into at most `MAX_STRETCHES` of about equal bytes. ``uids`` rise."""
    if not len(uids):
        return []
    ends = np.cumsum(nbytes)
    share = max(1, int(ends[-1]) // MAX_STRETCHES)
    number = (ends - nbytes) // share
    firsts = np.flatnonzero(np.diff(number, prepend=-1))
    firsts = firsts[:: -(-len(firsts) // MAX_STRETCHES)]
    sizes = np.add.reduceat(nbytes, firsts)
    return [
        Stretch(first_uid=uid, nbytes=size)
        for uid, size in zip(uids[firsts].tolist(), sizes.tolist(), strict=True)
    ]


def place(stretches: Sequence[Stretch], life: Life) -> Homes:
    """Homes of the saved uids, and of those that the new life gives."""
    starts, slots = _saved(sorted(stretches, key=lambda s: s.first_uid), life.num_shards)
    for part in range(life.num_parts):
        starts.append(life.part(part).start)
        slots.append(part)
    if life.uids.stop < END:
        starts.append(life.uids.stop)
        slots.append(0)
    return Homes(starts=tuple(starts), slots=tuple(slots))


def _saved(stretches: Sequence[Stretch], num_shards: int) -> tuple[list[int], list[int]]:
    starts, slots = [0], [0]
    total = max(1, sum(stretch.nbytes for stretch in stretches))
    before = 0
    for stretch in stretches:
        slot = min(num_shards - 1, num_shards * (2 * before + stretch.nbytes) // (2 * total))
        before += stretch.nbytes
        if slot != slots[-1]:
            starts.append(stretch.first_uid)
            slots.append(slot)
    return starts, slots
