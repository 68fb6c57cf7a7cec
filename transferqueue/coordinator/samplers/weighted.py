"""Drawn by weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from transferqueue.coordinator.samplers.base import tag_name
from transferqueue.coordinator.samplers.blocks import BLOCK_ROWS, Blocks, BlockSampler
from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from transferqueue.coordinator.row_set import Rows


@dataclass(frozen=True, slots=True)
class Weighted(BlockSampler):
    """Drawn at random, each in proportion to its ``tag``.

    Without replacement a sample is drawn once and is then the claim's. With replacement it can be
    drawn again, within a claim and by later ones: the claim's ack consumes nothing, as in a replay
    buffer. Weights are finite and not negative, and so is their sum; a weight of 0 is never drawn.
    """

    tag: str
    replacement: bool = False
    seed: int = 0

    name: ClassVar[str] = "weighted"

    def __post_init__(self) -> None:
        tag_name(self.name, self.tag)
        if not isinstance(self.replacement, bool):
            raise InvalidInput(f"weighted: replacement must be a bool, got {self.replacement!r}")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise InvalidInput(f"weighted: seed must be an int of at least 0, got {self.seed!r}")

    @property
    def exclusive(self) -> bool:  # type: ignore[override]
        return not self.replacement

    def pick(self, blocks: Blocks, n: int, rng: np.random.Generator) -> Rows | None:
        blocks.check()
        some = np.flatnonzero(blocks.num_above_0)
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(blocks.totals[some].sum())
        if bool((blocks.lowest < 0).any()) or not np.isfinite(total):
            raise ValueError(
                f"tag {self.tag!r}: weights must be finite and not negative, their sum too"
            )
        if int(blocks.num_above_0[some].sum(dtype=np.int64)) < (1 if self.replacement else n):
            return None
        draw = _with_replacement if self.replacement else _without_replacement
        return draw(blocks, some, n, rng)


def _with_replacement(blocks: Blocks, some: Rows, n: int, rng: np.random.Generator) -> Rows:
    """First which block, by its total, then which row of it."""
    at = _below(np.cumsum(blocks.totals[some]), rng.random(n))
    opened, place = np.unique(some[at], return_inverse=True)
    return opened[place] * BLOCK_ROWS + _one_each(_weights(blocks, opened)[place], rng)


def _without_replacement(blocks: Blocks, some: Rows, n: int, rng: np.random.Generator) -> Rows:
    """Efraimidis and Spirakis (2006): of keys Exp(1) / w the n smallest, in ascending order, are a
    weighted draw without replacement, in the order of drawing.

    The smallest key of a block of total W is Exp(1) / W, and its row is each with probability
    w / W, whatever the key. Above it the others' keys begin anew, as exponential times do: they
    are the smallest plus Exp(1) / w. So the smallest keys of all blocks are drawn first, and rows
    only in the n blocks that have the least: each row elsewhere is behind n others.
    """
    with np.errstate(over="ignore"):
        smallest = rng.standard_exponential(len(some)) / blocks.totals[some]
    if len(some) > n:
        some_of = np.sort(np.argpartition(smallest, n - 1)[:n])
        some, smallest = some[some_of], smallest[some_of]
    weights = _weights(blocks, some)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        keys = smallest[:, None] + rng.standard_exponential(weights.shape) / weights
    keys[np.arange(len(some)), _one_each(weights, rng)] = smallest
    rows = (some[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS))[weights > 0]
    keys = keys[weights > 0]
    nearest = np.argpartition(keys, n - 1)[:n]
    return rows[nearest[np.argsort(keys[nearest])]]


def _weights(blocks: Blocks, opened: Rows) -> NDArray[np.float64]:  # [opened, BLOCK_ROWS]
    """The weights of blocks, ascending; 0 where there is no candidate."""
    rows = blocks.rows(opened)
    weights = np.zeros((len(opened), BLOCK_ROWS))
    weights[np.searchsorted(opened, rows // BLOCK_ROWS), rows % BLOCK_ROWS] = blocks.values(rows)
    return weights


def _one_each(weights: NDArray[np.float64], rng: np.random.Generator) -> Rows:
    """A column for each line of weights, drawn by weight."""
    edges = np.cumsum(weights, axis=1)
    at = (edges <= (rng.random(len(edges)) * edges[:, -1])[:, None]).sum(axis=1)
    return np.asarray(np.minimum(at, _last_above_0(weights)))


def _last_above_0(weights: NDArray[np.float64]) -> Rows:
    """Where a draw that is rounded up to the very end belongs."""
    return np.asarray(weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1))


def _below(edges: NDArray[np.float64], shares: NDArray[np.float64]) -> Rows:
    at = np.searchsorted(edges, shares * edges[-1], side="right")
    return np.asarray(np.minimum(at, len(edges) - 1))
