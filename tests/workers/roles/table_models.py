"""A model small enough for tests, with the surface of a real one: a table of logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor


class TableModel(nn.Module):
    """The next token depends on the last one alone; so does the value."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits.clone())  # [V, V]: last token -> logits
        self.calls = 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        assert input_ids.shape == attention_mask.shape == position_ids.shape
        self.calls += 1
        logits: Tensor = self.table[input_ids]
        return logits

    def prefill(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, max_new_tokens: int
    ) -> tuple[Tensor, list[int]]:
        return self.table[input_ids[:, -1]], []

    def decode(self, token_ids: Tensor, cache: list[int]) -> Tensor:
        cache.append(len(token_ids))
        logits: Tensor = self.table[token_ids]
        return logits


class TableCritic(TableModel):
    """Values [B, S] from a table of one column."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        values: Tensor = super().forward(input_ids, attention_mask, position_ids)
        return values[..., 0]


def chain(*next_tokens: int, sharpness: float = 50.0) -> Tensor:
    """Logits under which token ``i`` is followed by ``next_tokens[i]``, all but surely."""
    table = torch.zeros(len(next_tokens), len(next_tokens))
    table[torch.arange(len(next_tokens)), torch.tensor(next_tokens)] = sharpness
    return table
