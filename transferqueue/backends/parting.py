"""What becomes of a piece of which pages are given out again. No file, no bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Range = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """Pages ``first`` to ``last`` of a piece, without those that are given out."""

    first: int
    last: int
    living: list[Range]
    """Pages of which some are in use: each needs a sum of its own."""
    dead: list[Range]
    """The others. Nobody needs their bytes; if there are any living, it is by this that nobody
    does any more."""

    @classmethod
    def of(cls, piece: Range, given: Iterable[Range], is_free: Callable[[int, int], bool]) -> Self:
        """``given``: sorted ranges of pages, which ``is_free`` knows of as used."""
        living: list[Range] = []
        dead: list[Range] = []
        for start, end in without(piece, given):
            (dead if is_free(start, end) else living).append((start, end))
        return cls(first=piece[0], last=piece[1], living=living, dead=dead)


def without(whole: Range, parts: Iterable[Range]) -> list[Range]:
    """What of a range is in none of these, which are sorted and disjoint."""
    gaps, at = [], whole[0]
    for start, end in parts:
        if at < min(start, whole[1]):
            gaps.append((at, min(start, whole[1])))
        at = max(at, end)
    return [*gaps, (at, whole[1])] if at < whole[1] else gaps
