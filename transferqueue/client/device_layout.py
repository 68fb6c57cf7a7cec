"""How a column of a get is laid on a device: which bytes are copied where, and whether rows must be
brought into their order there.

The problem: rows come from several shards, in any order, some asked for more than once, some not
there at all. A copy that a device makes by itself costs some 5 µs of calls, however small it is.

The rule: rows that are asked for once, in few pieces, are copied to their place. Else they are laid
as they lie in their sources, which takes few copies, and one kernel brings them into order from
there: every row crosses a link once, however often it is asked for. That takes the room of the
column twice for a moment.

Where rows are apart in the memory of a shard's device, what lies between them is copied too, as
long as that is no more than the rows themselves, and some. Not from the host, where the bytes
between may be pages that nothing has ever been written to.

Example. 1,000 rows of a put, each 8 times: one copy of the put's bytes, and a kernel that writes
8,000 rows. The same rows once, backwards: 1,000 copies. 6,000 rows shuffled: one copy and a kernel.

Rejected: one copy a row in all cases (40 ms for 8,000), and rows brought into order by the host,
which takes them all over its bus.

Numbers alone: no device, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transferqueue.wire.chunks import Runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.placement import Rows

MAX_PIECES = 1024
"""Of one column; in more of them it is laid as it lies."""

NEAR_BYTES = 64 << 10
"""Rows that are farther apart are copied apart: copying as much costs about as much as a call."""

SPARE_BYTES = 1 << 20
"""What may be copied between rows, beside as much as the rows are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRows:
    """The rows of a column that one shard has."""

    rows: Rows
    """Which of the column's they are."""
    starts: np.ndarray | None  # int64[rows]
    """Where each begins in memory that the device copies from; ``None``: they come one after the
    other."""
    spans_gaps: bool = False
    """Whether what lies between them may be copied too."""


class Copies(NamedTuple):
    """Ranges of the memory of one part, and where they go. int64[copies] each."""

    part: int
    starts: np.ndarray
    targets: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Of the memory that a column is laid in."""

    nbytes: int
    copies: Sequence[Copies]
    """Of the parts that the device copies by itself."""
    runs: Mapping[int, Runs]
    """By the number of each other part, where its bytes go in the order in which they come."""
    zeros: tuple[int, int] = (0, 0)
    """From where to where there are to be zeros before anything else."""
    first_units: np.ndarray | None = None  # int64[rows asked for]
    """In which unit of the memory each row begins; ``None``: they are as they were asked for."""

    @property
    def num_copies(self) -> int:
        return sum(len(copies.starts) for copies in self.copies)


def lay_out(
    sizes: np.ndarray,
    unit_bytes: int,
    parts: Sequence[PartRows],
    inverse: np.ndarray | None,
    *,
    is_complete: bool,
) -> Layout:
    """``sizes``: int64[rows of the column], bytes, multiples of ``unit_bytes``. ``inverse``:
    int64[rows asked for], which of them each is; ``None``: all, in order. ``is_complete``: whether
    all are there; those that are not are zeros."""
    if inverse is None:
        found = _in_place(sizes, parts, is_complete=is_complete)
        if found is not None:
            return found
    return _as_they_lie(sizes, unit_bytes, parts, inverse, is_complete=is_complete)


def _in_place(sizes: np.ndarray, parts: Sequence[PartRows], *, is_complete: bool) -> Layout | None:
    """``None``: it would be too many pieces."""
    targets = np.cumsum(sizes) - sizes
    copies: list[Copies] = []
    runs: dict[int, Runs] = {}
    for number, part in enumerate(parts):
        to, of = targets[part.rows], sizes[part.rows]
        if part.starts is None:
            runs[number] = Runs.of(to, of)
        else:
            copies.append(_copies(number, part.starts, to, of))
    num_pieces = sum(len(c.starts) for c in copies) + sum(len(r.starts) for r in runs.values())
    if num_pieces > MAX_PIECES:
        return None
    nbytes = int(sizes.sum())
    return Layout(
        nbytes=nbytes, copies=copies, runs=runs, zeros=(0, 0) if is_complete else (0, nbytes)
    )


def _copies(part: int, starts: np.ndarray, targets: np.ndarray, sizes: np.ndarray) -> Copies:
    """One for rows that follow one another in their source as in the target."""
    filled = sizes > 0
    starts, targets, sizes = starts[filled], targets[filled], sizes[filled]
    if not len(starts):
        return Copies(part, starts, targets, sizes)
    follows = starts[1:] == starts[:-1] + sizes[:-1]
    follows &= targets[1:] == targets[:-1] + sizes[:-1]
    first = np.concatenate(([0], np.flatnonzero(~follows) + 1))
    return Copies(part, starts[first], targets[first], np.add.reduceat(sizes, first))


def _as_they_lie(
    sizes: np.ndarray,
    unit_bytes: int,
    parts: Sequence[PartRows],
    inverse: np.ndarray | None,
    *,
    is_complete: bool,
) -> Layout:
    copies: list[Copies] = []
    runs: dict[int, Runs] = {}
    at = np.full(len(sizes), -1, np.int64)
    end = 0
    for number, part in enumerate(parts):
        of = sizes[part.rows]
        if part.starts is None:
            at[part.rows] = end + np.cumsum(of) - of
            runs[number] = Runs.one(end, int(of.sum()))
            end += int(of.sum())
            continue
        places, found = _stretches(number, part, of, unit_bytes, end)
        at[part.rows] = places
        copies.append(found)
        end += int(found.sizes.sum())
    zeros = (end, end)
    if not is_complete:  # a unit that all rows which are not there look at
        at[at < 0], end = end, end + unit_bytes
        zeros = (zeros[0], end)
    first_units = at // max(1, unit_bytes)
    return Layout(
        nbytes=end,
        copies=copies,
        runs=runs,
        zeros=zeros,
        first_units=first_units if inverse is None else first_units[inverse],
    )


def _stretches(
    number: int, part: PartRows, sizes: np.ndarray, unit_bytes: int, base: int
) -> tuple[np.ndarray, Copies]:
    """Where each row is laid, from ``base`` on, and the copies that do it, in source order."""
    assert part.starts is not None
    places = np.full(len(sizes), base, np.int64)
    filled = np.flatnonzero(sizes > 0)
    order = filled[np.argsort(part.starts[filled], kind="stable")]
    starts, of = part.starts[order], sizes[order]
    if not len(order):
        return places, Copies(number, starts, starts, of)
    gaps = starts[1:] - (starts[:-1] + of[:-1])
    joined = gaps == 0
    if part.spans_gaps:
        joined |= _near(gaps, int(of.sum()), unit_bytes)
    first = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    last = np.concatenate((first[1:], [len(order)])) - 1
    lengths = starts[last] + of[last] - starts[first]
    targets = base + np.cumsum(lengths) - lengths
    which = np.cumsum(np.concatenate(([0], ~joined)))
    places[order] = targets[which] + starts - starts[first][which]
    return places, Copies(number, starts[first], targets, lengths)


def _near(gaps: np.ndarray, nbytes: int, unit_bytes: int) -> np.ndarray:
    """The gaps to be copied too, the smallest first. Units of all rows must lie on one grid."""
    usable = np.flatnonzero((gaps > 0) & (gaps <= NEAR_BYTES) & (gaps % unit_bytes == 0))
    usable = usable[np.argsort(gaps[usable], kind="stable")]
    taken = usable[np.cumsum(gaps[usable]) <= nbytes + SPARE_BYTES]
    found = np.zeros(len(gaps), np.bool_)
    found[taken] = True
    return found
