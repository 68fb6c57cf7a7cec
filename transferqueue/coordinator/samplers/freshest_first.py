"""Newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from transferqueue.coordinator.samplers.base import tag_name
from transferqueue.coordinator.samplers.blocks import Blocks, BlockSampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.row_set import Rows


@dataclass(frozen=True, slots=True)
class FreshestFirst(BlockSampler):
    """The samples with the highest ``tag``; among equals the oldest."""

    tag: str = "policy_version"

    name: ClassVar[str] = "freshest_first"

    def __post_init__(self) -> None:
        tag_name(self.name, self.tag)

    def pick(self, blocks: Blocks, n: int, rng: np.random.Generator) -> Rows | None:
        del rng
        if len(blocks) < n:
            return None
        blocks.check()
        rows = blocks.rows(_that_matter(blocks, n))
        versions = blocks.values(rows)
        # Sort only what can be chosen.
        bar = np.partition(versions, len(versions) - n)[len(versions) - n]
        above = np.flatnonzero(versions > bar)
        level = np.flatnonzero(versions == bar)[: n - len(above)]
        chosen = np.sort(np.concatenate((above, level)))
        return rows[chosen[_descending(versions[chosen])]]


def _that_matter(blocks: Blocks, n: int) -> Rows:
    """Blocks, ascending, that hold the ``n`` rows.

    Let the bar be the highest number of which at least n rows are known that reach it, by the
    highest of each block and how many rows of the block have it. No row of the answer is below the
    bar. Rows above it are in blocks whose highest is above it: fewer than n blocks. Rows that are
    at the bar may be in those as well, or else are the highest of their block: of such blocks the
    oldest will do that hold n of them.
    """
    some = np.flatnonzero(blocks.counts)
    highest, sizes = blocks.highest[some], blocks.num_highest[some].astype(np.int64)
    order = _descending(highest)
    reach = np.cumsum(sizes[order])
    bar = highest[order[int(np.searchsorted(reach, n))]] if reach[-1] >= n else None
    if bar is None:
        return some
    level = np.flatnonzero(highest == bar)
    level = level[: int(np.searchsorted(np.cumsum(sizes[level]), n)) + 1]
    return np.sort(np.concatenate((some[highest > bar], some[level])))


def _descending(values: NDArray[Any]) -> Rows:
    """The positions of values from the highest to the lowest, equal ones as they are."""
    # The complement of an int falls as it rises; its negative may not fit.
    falling = ~values if values.dtype.kind in "bi" else -values
    return np.argsort(falling, kind="stable")
