"""A task whose answers are of very different lengths: ``"c17="`` to seventeen times ``c``.

The lengths are those of production traffic: exponential, as ServeGen (arXiv:2505.09999) finds the
output lengths of language models served at scale to be. The mean is small here and the longest
answer a few times as long, so that a batch takes as long as its stragglers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from examples.tiny.problems import BLOCK_PROBLEMS, Problem
from examples.tiny.tokenizer import CharTokenizer
from transferqueue.errors import ConfigError

_LETTERS = "abcdefgh"
_TOKENIZER = CharTokenizer(alphabet="0123456789=" + _LETTERS)
_HELD_OUT_SEED = 0x10E6


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """Write a letter as often as the number says, and stop."""

    mean_length: float = 8.0
    """Of the answers before they are cut, letters."""
    longest: int = 40
    """Longer answers are not asked for."""
    partial_credit: float = 0.5
    """Share of the score for an answer of the right letter that is near the right length."""
    name: str = field(default="spelling", init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.longest <= 99:
            raise ConfigError(f"longest={self.longest} must be 1 to 99")
        if not 1.0 <= self.mean_length <= self.longest:
            raise ConfigError(f"mean_length={self.mean_length} must be 1 to longest={self.longest}")
        if not 0.0 <= self.partial_credit < 1.0:
            raise ConfigError(f"partial_credit={self.partial_credit} must be in [0, 1)")

    @property
    def tokenizer(self) -> CharTokenizer:
        return _TOKENIZER

    @property
    def max_prompt_tokens(self) -> int:
        return 4

    @property
    def max_response_tokens(self) -> int:
        return self.longest + 1

    def block(self, seed: int, index: int) -> list[Problem]:
        return self._draw(np.random.default_rng((seed, index)), BLOCK_PROBLEMS)

    def held_out(self, num_problems: int) -> list[Problem]:
        """A sample of the same distribution. There are too few problems to keep any from training:
        what is measured is how many are mastered, not generalisation."""
        return self._draw(np.random.default_rng(_HELD_OUT_SEED), num_problems)

    def verify(self, *, answer: str, response: str) -> float:
        if response == answer:
            return 1.0
        if not response or set(response) != set(answer):
            return 0.0
        miss = abs(len(response) - len(answer)) / len(answer)
        return self.partial_credit * max(0.0, 1.0 - miss)

    def _draw(self, rng: np.random.Generator, count: int) -> list[Problem]:
        lengths = np.ceil(rng.exponential(self.mean_length, size=4 * count + 64)).astype(int)
        lengths = lengths[lengths <= self.longest][:count]
        letters = rng.integers(0, len(_LETTERS), size=count)
        return [
            Problem(prompt=f"{_LETTERS[letter]}{length}=", answer=_LETTERS[letter] * length)
            for letter, length in zip(letters.tolist(), lengths.tolist(), strict=True)
        ]
