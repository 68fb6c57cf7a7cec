"""Prompts on the left, responses on the right: the padded layout that every stage shares.

::

    input_ids       . . p p p | r r r e .        P columns, then R columns
    attention_mask  0 0 1 1 1 | 1 1 1 1 0
    position_ids    0 0 0 1 2 | 3 4 5 6 6
    response_mask               1 1 1 1 0
"""

from __future__ import annotations

import torch
from torch import Tensor


def positions_of(attention_mask: Tensor) -> Tensor:
    """Positions counted from a row's first real token; a pad repeats its neighbour's. [B, S]"""
    return (attention_mask.cumsum(-1) - 1).clamp(min=0)


def join_prompts_and_responses(
    prompts: Tensor, prompt_mask: Tensor, responses: Tensor, response_mask: Tensor
) -> dict[str, Tensor]:
    """The model inputs of whole sequences, each int64 [B, P + R]."""
    attention_mask = torch.cat([prompt_mask, response_mask], dim=-1)
    return {
        "input_ids": torch.cat([prompts, responses], dim=-1),
        "attention_mask": attention_mask,
        "position_ids": positions_of(attention_mask),
    }


def response_columns(per_column: Tensor, num_response_columns: int) -> Tensor:
    """From outputs [B, S, ...] those that speak of the response tokens: [B, R, ...].

    A model's output at column t is about the token at t + 1, so these start one column before the
    response and leave out the last.
    """
    end = per_column.shape[1] - 1
    return per_column[:, end - num_response_columns : end]
