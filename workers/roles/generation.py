"""Sampling responses from a model with a key-value cache."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from workers.roles.layout import positions_of
from workers.roles.models import CachedModel, CacheT, Generation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class CachedEngine(Generic[CacheT]):
    """Draws from a :class:`CachedModel` on one device, all rows together, until all have ended."""

    def __init__(
        self, model: CachedModel[CacheT], *, eos_id: int, pad_id: int, seed: int = 0
    ) -> None:
        self._model = model
        self._eos_id = eos_id
        self._pad_id = pad_id
        device = next(iter(model.parameters())).device
        self._generator = torch.Generator(device).manual_seed(seed)

    def load_weights(self, state_dict: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state_dict)

    @torch.no_grad()
    def generate(
        self,
        prompts: Tensor,
        prompt_mask: Tensor,
        *,
        max_new_tokens: int,
        temperature: float | Tensor,
    ) -> Generation:
        pick = self._picker(temperature)
        started_s, first_token_s = time.monotonic(), 0.0
        num_rows = len(prompts)
        responses = prompts.new_full((num_rows, max_new_tokens), self._pad_id)
        mask = torch.zeros_like(responses)
        log_probs = torch.zeros(responses.shape, dtype=torch.float32, device=prompts.device)
        running = torch.ones(num_rows, dtype=torch.bool, device=prompts.device)
        logits, cache = self._model.prefill(
            prompts, prompt_mask, positions_of(prompt_mask), max_new_tokens
        )
        for column in range(max_new_tokens):
            tokens, token_log_probs = pick(logits)
            responses[:, column] = torch.where(running, tokens, self._pad_id)
            mask[:, column] = running
            log_probs[:, column] = torch.where(running, token_log_probs, 0.0)
            running = running & (tokens != self._eos_id)
            first_token_s = first_token_s or time.monotonic() - started_s
            if column + 1 == max_new_tokens or not bool(running.any()):
                break
            logits = self._model.decode(responses[:, column], cache)
        return Generation(
            responses=responses,
            response_mask=mask,
            log_probs=log_probs,
            first_token_s=first_token_s,
        )

    def random_state(self) -> Tensor:
        """Where the draws are; :meth:`load_random_state` goes on from there."""
        return self._generator.get_state()

    def load_random_state(self, state: Tensor) -> None:
        self._generator.set_state(state)

    def _picker(self, temperature: float | Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Logits [B, V] to ``(tokens, log_probs)``, both [B]."""
        lowest = float(temperature.min()) if isinstance(temperature, Tensor) else temperature
        if lowest < 0:
            raise ValueError(f"temperature={temperature} must be 0 (greedy) or more")

        def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
            best = logits.float().log_softmax(-1).max(-1)
            return best.indices, best.values

        def sample_at(logits: Tensor, divisor: float | Tensor) -> tuple[Tensor, Tensor]:
            log_probs = (logits.float() / divisor).log_softmax(-1)
            tokens = torch.multinomial(log_probs.exp(), 1, generator=self._generator)
            return tokens.squeeze(-1), log_probs.gather(-1, tokens).squeeze(-1)

        def by_row(logits: Tensor) -> tuple[Tensor, Tensor]:
            assert isinstance(temperature, Tensor)
            is_greedy = temperature == 0
            drawn = sample_at(logits, torch.where(is_greedy, 1.0, temperature)[:, None])
            best = greedy(logits)
            tokens, log_probs = (
                torch.where(is_greedy, b, d) for b, d in zip(best, drawn, strict=True)
            )
            return tokens, log_probs

        if isinstance(temperature, Tensor):
            return by_row
        divisor = temperature
        return (lambda logits: sample_at(logits, divisor)) if temperature > 0 else greedy
