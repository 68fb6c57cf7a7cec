"""Which rows go to, or lie on, which shard. No socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.devices.ladder import Rung
from transferqueue.homes import NAMED, Homes

if TYPE_CHECKING:
    from collections.abc import Sequence

Rows = slice | np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The rows of a batch that one shard has."""

    slot: int
    rows: Rows
    """Positions in the batch, rising: a slice where they follow one another."""
    num_rows: int


def split_by_home(uids: np.ndarray, homes: Homes = NAMED) -> list[Part]:
    """The parts of a batch by home shard, in the order in which the batch first names them."""
    if len(uids) == 0:
        return []
    slots = homes.of(uids)
    if slots[0] == slots[-1] and (slots == slots[0]).all():
        return [Part(slot=int(slots[0]), rows=slice(0, len(uids)), num_rows=len(uids))]
    order = np.argsort(slots, kind="stable")
    breaks = np.flatnonzero(np.diff(slots[order])) + 1
    groups = np.split(order, breaks)
    groups.sort(key=lambda rows: int(rows[0]))
    return [
        Part(slot=int(slots[rows[0]]), rows=_as_rows(rows), num_rows=len(rows)) for rows in groups
    ]


def _as_rows(rows: np.ndarray) -> Rows:
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def nearest(slots: Sequence[tuple[int, Rung]]) -> list[int]:
    """Of shards and the ways to them from where new rows are: those whose device memory they can be
    copied to at once, if there are any. Else all, since by way of the host all are alike."""
    best = min(rung.place for _, rung in slots)
    if best > Rung.PEER.place:
        return [slot for slot, _ in slots]
    return [slot for slot, rung in slots if rung.place == best]


def place_new_rows(
    num_rows: int, num_bytes: int, slots: Sequence[int], *, turn: int, split_bytes: int
) -> list[Part]:
    """Where new rows go: to one shard while they are few bytes, else in equal runs to several.

    ``turn`` counts puts, so that small ones take the shards in turn. A part is at least
    ``split_bytes``, since each costs two trips.
    """
    num_parts = max(1, min(len(slots), num_rows, num_bytes // split_bytes))
    edges = [num_rows * k // num_parts for k in range(num_parts + 1)]
    return [
        Part(
            slot=slots[(turn + k) % len(slots)],
            rows=slice(edges[k], edges[k + 1]),
            num_rows=edges[k + 1] - edges[k],
        )
        for k in range(num_parts)
    ]
