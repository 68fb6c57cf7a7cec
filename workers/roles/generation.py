"""Sampling responses from a model with a key-value cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from workers.roles.layout import positions_of
from workers.roles.models import CachedModel, CacheT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Responses, padded on the right to the longest allowed."""

    responses: Tensor
    """int64 [B, R]; pad after the end token."""
    response_mask: Tensor
    """int64 [B, R]; 1 up to and including the end token."""
    log_probs: Tensor
    """float32 [B, R]; of each sampled token under the (tempered) policy that drew it; 0 on pads."""


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
        temperature: float,
    ) -> Generation:
        pick = self._picker(temperature)
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
            if column + 1 == max_new_tokens or not bool(running.any()):
                break
            logits = self._model.decode(responses[:, column], cache)
        return Generation(responses=responses, response_mask=mask, log_probs=log_probs)

    def _picker(self, temperature: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Logits [B, V] to ``(tokens, log_probs)``, both [B]."""
        if temperature < 0:
            raise ValueError(f"temperature={temperature} must be 0 (greedy) or more")

        def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
            best = logits.float().log_softmax(-1).max(-1)
            return best.indices, best.values

        def sample(logits: Tensor) -> tuple[Tensor, Tensor]:
            log_probs = (logits.float() / temperature).log_softmax(-1)
            tokens = torch.multinomial(log_probs.exp(), 1, generator=self._generator)
            return tokens.squeeze(-1), log_probs.gather(-1, tokens).squeeze(-1)

        return sample if temperature > 0 else greedy
