"""What a task is: problems with answers that can be checked.

A task makes problems, holds some out for measuring, and scores an answer. Training problems come
in blocks numbered from 0; a block is a function of the seed and its number alone, so a stream can
be resumed from one integer, and two readers never need to share a generator.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from examples.tiny.tokenizer import CharTokenizer

BLOCK_PROBLEMS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A prompt and its answer, both as text."""

    prompt: str
    answer: str


class Task(Protocol):
    """What a run needs to know of a task. Everything here is pure."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> CharTokenizer: ...
    @property
    def max_prompt_tokens(self) -> int: ...
    @property
    def max_response_tokens(self) -> int:
        """Longest right answer, its end token included."""
        ...

    def block(self, seed: int, index: int) -> list[Problem]:
        """``BLOCK_PROBLEMS`` training problems, none of them held out."""
        ...

    def held_out(self, num_problems: int) -> list[Problem]:
        """The first distinct held-out problems; the same for every run."""
        ...

    def verify(self, *, answer: str, response: str) -> float:
        """Score of a response, 0 (wrong) to 1 (right)."""
        ...


def problems(task: Task, seed: int, *, start: int = 0) -> Iterator[Problem]:
    """The endless stream of training problems from number ``start`` on."""
    first_block, offset = divmod(start, BLOCK_PROBLEMS)
    blocks = (task.block(seed, index) for index in itertools.count(first_block))
    return itertools.islice(itertools.chain.from_iterable(blocks), offset, None)
