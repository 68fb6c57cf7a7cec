"""Equal work for every data-parallel rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from transferqueue.coordinator.samplers.base import Candidates, Sampler, positive, tag_name
from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_SWAPS_PER_RANK = 64

_EVEN_ENOUGH = 1.0001
"""Of the mean: what the heaviest part may have."""

_ROUNDS_BY_LOAD = 128
"""Rounds that look at what each part has so far: those of the shortest samples, which even out."""


@dataclass(frozen=True, slots=True)
class LengthBalanced(Sampler):
    """The oldest ``n`` samples, ordered so that ``handle.chunk(dp_size)`` has equal token counts.

    Chunk ``i`` of the result has ``n / dp_size`` samples, and the chunks' sums of ``tag`` are as
    equal as ``balance`` makes them. ``n`` is a multiple of ``dp_size``.
    """

    dp_size: int
    tag: str = "length"

    name: ClassVar[str] = "length_balanced"

    def __post_init__(self) -> None:
        positive(self.name, "dp_size", self.dp_size)
        tag_name(self.name, self.tag)

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.tag,)

    def check(self, n: int) -> None:
        if n % self.dp_size:
            raise InvalidInput(
                f"n={n} is no multiple of dp_size={self.dp_size}; ask for "
                f"{-(-n // self.dp_size) * self.dp_size}"
            )

    def largest(self, available: int) -> int:
        return available // self.dp_size * self.dp_size

    def choose(
        self, candidates: Candidates, n: int, rng: np.random.Generator
    ) -> NDArray[np.int64] | None:
        del rng
        if len(candidates) < n:
            return None
        return balance(candidates.numbers(self.tag)[:n], self.dp_size).ravel()


def balance(lengths: NDArray[Any], num_parts: int) -> NDArray[np.int64]:
    """Positions of ``lengths`` in ``num_parts`` rows of equal count and nearly equal sum.

    Longest first, a round at a time: each round gives every part one sample, the longest of the
    round to the part with the least so far; of many rounds the first ones to and fro, in one step.
    Then the heaviest part trades with each other part the pair of samples that evens the two out
    best, while the heaviest gets lighter. Rounds and trades are numpy steps over parts, so there is
    no loop over samples, and no table of pairs of samples: 1,024 samples on 8 parts take about 1 ms
    and 65,536 some 50, where Karmarkar-Karp with its heap of tuples takes tens for the 1,024.
    """
    lengths = lengths.astype(np.float64)
    order = np.argsort(-lengths, kind="stable")
    parts = np.empty((num_parts, len(lengths) // num_parts), dtype=np.int64)
    rounds = order.reshape(-1, num_parts)
    num_blind = max(0, len(rounds) - _ROUNDS_BY_LOAD)
    parts[:, :num_blind] = _to_and_fro(rounds[:num_blind]).T
    loads = lengths[parts[:, :num_blind]].sum(axis=1)
    for column, round_ in enumerate(rounds[num_blind:], start=num_blind):
        lightest_first = np.argsort(loads, kind="stable")
        parts[lightest_first, column] = round_
        loads[lightest_first] += lengths[round_]
    for _ in range(_MAX_SWAPS_PER_RANK * num_parts):
        if loads.max() <= _EVEN_ENOUGH * loads.mean() or not _trade(parts, loads, lengths):
            break
    return parts


def _to_and_fro(rounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every other round from the last part to the first: loads then differ by no more than the
    longest sample, which the rounds that follow and the trades make up for."""
    rounds = rounds.copy()
    rounds[1::2] = rounds[1::2, ::-1]
    return rounds


def _trade(
    parts: NDArray[np.int64], loads: NDArray[np.float64], lengths: NDArray[np.float64]
) -> bool:
    """Swap one sample of the heaviest part for a shorter one of another, if that helps both."""
    heaviest = int(np.argmax(loads))
    mine = lengths[parts[heaviest]]
    for other in np.argsort(loads, kind="stable")[:-1].tolist():
        gap = loads[heaviest] - loads[other]
        give, take, gain = best_trade(mine, lengths[parts[other]], gap)
        if gain <= 0:
            continue
        moved = mine[give] - lengths[parts[other, take]]
        parts[heaviest, give], parts[other, take] = parts[other, take], parts[heaviest, give]
        loads[heaviest] -= moved
        loads[other] += moved
        return True
    return False


def best_trade(
    mine: NDArray[np.float64], theirs: NDArray[np.float64], gap: float
) -> tuple[int, int, float]:
    """Which of mine for which of theirs, and what the heavier of the two gets lighter by.

    After moving d = mine - theirs the heavier of the two holds its load less min(d, gap - d): best
    at d = gap / 2, no gain outside 0 < d < gap. So of theirs only the two next to mine - gap / 2
    come into question.
    """
    order = np.argsort(theirs, kind="stable")
    after = np.searchsorted(theirs[order], mine - gap / 2)
    near = np.clip(np.stack([after - 1, after]), 0, len(order) - 1)  # [2, mine]
    difference = mine - theirs[order][near]
    gain = np.minimum(difference, gap - difference)
    side, give = np.unravel_index(int(np.argmax(gain)), gain.shape)
    return int(give), int(order[near[side, give]]), float(gain[side, give])
