"""Which prompts have been handed out, and which of them have been trained on. Pure.

Prompts are numbered from 0; what a number stands for is the dataset's affair. A driver that starts
again goes on from `state`: what was handed out and not trained on comes first.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class PromptQueue:
    """Numbers of prompts on their way."""

    def __init__(self, next_number: int = 0, first: Iterable[int] = ()) -> None:
        """``next_number``: never handed out before. ``first``: handed out, to be so again."""
        self._next = next_number
        self._again = deque(sorted(first))
        self._outstanding: dict[int, None] = {}

    def take(self, num_prompts: int) -> list[int]:
        """Hand out prompts."""
        numbers = [self._take_one() for _ in range(num_prompts)]
        self._outstanding.update(dict.fromkeys(numbers))
        return numbers

    def _take_one(self) -> int:
        if self._again:
            return self._again.popleft()
        self._next += 1
        return self._next - 1

    def found(self, numbers: Iterable[int]) -> None:
        """These are outstanding: their samples were found in the data plane."""
        found = set(numbers)
        self._outstanding.update(dict.fromkeys(sorted(found)))
        self._again = deque(number for number in self._again if number not in found)
        self._next = max(self._next, *(number + 1 for number in found), 0)

    def trained(self, numbers: Iterable[int]) -> None:
        """An update has trained on all samples of these prompts."""
        for number in numbers:
            self._outstanding.pop(number, None)

    def lost(self, numbers: Iterable[int]) -> None:
        """Samples of these prompts are gone; the prompts do not come again."""
        self.trained(numbers)

    def again(self, numbers: Iterable[int]) -> None:
        """Hand these out again, before any others."""
        numbers = list(numbers)
        self.trained(numbers)
        self._again.extendleft(reversed(numbers))

    @property
    def num_outstanding(self) -> int:
        return len(self._outstanding)

    @property
    def outstanding(self) -> list[int]:
        """In the order in which they were handed out."""
        return list(self._outstanding)

    def state(self) -> dict[str, Any]:
        """What `PromptQueue` goes on from."""
        return {"next_number": self._next, "first": sorted([*self._again, *self._outstanding])}
