"""Generation as slow as a large model's: so long a token, whatever the batch.

The tiny model draws its tokens in no time. A serving engine takes one step of the model for one
more token of all its sequences, and a step takes about as long whether few or many are in it; so a
call takes as long as its longest row has tokens.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from workers.roles.generation import CachedEngine
    from workers.roles.models import Generation


class PacedEngine:
    """An engine whose calls take ``token_s`` seconds a column at least."""

    def __init__(
        self,
        engine: CachedEngine[Any],
        token_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._token_s = token_s
        self._clock = clock
        self._sleep = sleep

    def generate(
        self,
        prompts: Tensor,
        prompt_mask: Tensor,
        *,
        max_new_tokens: int,
        temperature: float | Tensor,
    ) -> Generation:
        started_s = self._clock()
        generation = self._engine.generate(
            prompts, prompt_mask, max_new_tokens=max_new_tokens, temperature=temperature
        )
        num_columns = int(generation.response_mask.sum(-1).max())
        left_s = num_columns * self._token_s - (self._clock() - started_s)
        if left_s > 0:
            self._sleep(left_s)
        return replace(generation, first_token_s=max(self._token_s, generation.first_token_s))

    def load_weights(self, state_dict: Mapping[str, Any]) -> None:
        self._engine.load_weights(state_dict)

    def random_state(self) -> Tensor:
        return self._engine.random_state()

    def load_random_state(self, state: Tensor) -> None:
        self._engine.load_random_state(state)
