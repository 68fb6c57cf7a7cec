"""Sums of numbers of a few digits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from examples.tiny.problems import BLOCK_PROBLEMS, Problem
from examples.tiny.tokenizer import CharTokenizer
from transferqueue.errors import ConfigError

_HELD_OUT_SEED = 0x5EED
_HELD_OUT_ROUNDS = 20
"""Enough to meet all but e^-20 of a supply as large as what is asked for."""
_HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class Addition:
    """``"37+85="`` to ``"122"``.

    A problem and its mirror (``85+37``) are both held out or both not, so that the held-out
    accuracy cannot come from remembering sums.
    """

    digits: int = 2
    """Digits of each addend at most."""
    reversed_answer: bool = False
    """Write the answer from its last digit, the order in which it is computed."""
    zero_padded: bool = False
    """Write addends and answers with leading zeros, so that columns line up."""
    partial_credit: float = 0.0
    """Share of the score given for the part of the digits that is right when not all are."""
    held_out_share: float = 0.1
    name: str = field(default="addition", init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 9:
            raise ConfigError(f"digits={self.digits} must be 1 to 9")
        if not 0.0 <= self.partial_credit < 1.0:
            raise ConfigError(f"partial_credit={self.partial_credit} must be in [0, 1)")
        if not 0.0 < self.held_out_share < 1.0:
            raise ConfigError(f"held_out_share={self.held_out_share} must be in (0, 1)")

    @property
    def tokenizer(self) -> CharTokenizer:
        return _ADDITION_TOKENIZER

    @property
    def max_prompt_tokens(self) -> int:
        return 2 * self.digits + 2

    @property
    def max_response_tokens(self) -> int:
        return self.digits + 2

    def block(self, seed: int, index: int) -> list[Problem]:
        rng = np.random.default_rng((seed, index))
        return self._draw(rng, BLOCK_PROBLEMS, held_out=False)

    def held_out(self, num_problems: int) -> list[Problem]:
        rng = np.random.default_rng(_HELD_OUT_SEED)
        distinct: dict[Problem, None] = {}
        for _ in range(_HELD_OUT_ROUNDS):
            distinct.update(dict.fromkeys(self._draw(rng, num_problems, held_out=True)))
            if len(distinct) >= num_problems:
                return list(distinct)[:num_problems]
        raise ConfigError(
            f"held_out({num_problems}): addition with digits={self.digits} and "
            f"held_out_share={self.held_out_share} holds out about {len(distinct)} problems"
        )

    def verify(self, *, answer: str, response: str) -> float:
        if response == answer:
            return 1.0
        right = sum(a == r for a, r in zip(answer, response, strict=False))
        return self.partial_credit * right / max(len(answer), len(response))

    def _draw(self, rng: np.random.Generator, count: int, *, held_out: bool) -> list[Problem]:
        """``count`` problems of one side of the split, by rejection."""
        share = self.held_out_share if held_out else 1.0 - self.held_out_share
        chosen = np.empty((0, 2), dtype=np.int64)
        while len(chosen) < count:
            addends = rng.integers(0, 10**self.digits, size=(int(count / share) + 16, 2))
            chosen = np.concatenate([chosen, addends[self._is_held_out(addends) == held_out]])
        return [self._problem(a, b) for a, b in chosen[:count].tolist()]

    def _is_held_out(self, addends: np.ndarray) -> np.ndarray:
        low, high = addends.min(axis=1), addends.max(axis=1)
        key = (low * 10**self.digits + high).astype(np.uint64) + np.uint64(1)
        # Fibonacci hashing: the high bits of key times 2^64 / golden ratio, folded once because
        # consecutive keys would otherwise fall into an even pattern.
        mixed = (key ^ (key >> np.uint64(7))) * _HASH_MULTIPLIER
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _HASH_MULTIPLIER
        uniform: np.ndarray = (mixed >> np.uint64(40)).astype(np.float64) / float(1 << 24)
        return uniform < self.held_out_share

    def _problem(self, first: int, second: int) -> Problem:
        width = self.digits if self.zero_padded else 0
        answer = f"{first + second:0{width + 1}d}" if width else str(first + second)
        return Problem(
            prompt=f"{first:0{width}d}+{second:0{width}d}=" if width else f"{first}+{second}=",
            answer=answer[::-1] if self.reversed_answer else answer,
        )


_ADDITION_TOKENIZER = CharTokenizer(alphabet="0123456789+=")
