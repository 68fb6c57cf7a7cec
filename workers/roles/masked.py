"""Reductions over the real tokens of a padded batch.

``values`` and ``mask`` are [B, R]; what stands in a masked place never matters, not even a NaN.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor


class Aggregation(StrEnum):
    """How token losses become one number. The names are verl's ``loss_agg_mode``."""

    TOKEN_MEAN = "token-mean"
    """Every token weighs the same (DAPO, arXiv:2503.14476, eq. 8)."""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """Every response weighs by its length (Dr. GRPO without its constant, arXiv:2503.20783)."""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """Every response weighs the same (GRPO, arXiv:2402.03300, eq. 3)."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq-mean-token-sum-norm"
    """As ``SEQ_MEAN_TOKEN_SUM`` over R, a constant (Dr. GRPO, arXiv:2503.20783, section 3.2)."""


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of the real tokens: a scalar, or [B] with ``dim=-1``."""
    kept = torch.where(mask.bool(), values, 0.0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of the real tokens; 0 where there is none."""
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(values, mask, dim) / count.clamp(min=1)


def masked_whiten(values: Tensor, mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Mean 0 and variance 1 (over n - 1) across the real tokens of the whole batch; 0 elsewhere.

    With fewer than two real tokens there is no variance: they become 0.
    """
    centred = torch.where(mask.bool(), values - masked_mean(values, mask), 0.0)
    variance = centred.square().sum() / (mask.sum() - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + eps)


def aggregate(values: Tensor, mask: Tensor, how: Aggregation) -> Tensor:
    """One number from token losses. A response with no real token counts as no response."""
    if how is Aggregation.TOKEN_MEAN:
        return masked_mean(values, mask)
    if how is Aggregation.SEQ_MEAN_TOKEN_MEAN:
        per_response = masked_mean(values, mask, dim=-1)
    else:
        per_response = masked_sum(values, mask, dim=-1)
    mean = masked_mean(per_response, mask.any(dim=-1))
    if how is Aggregation.SEQ_MEAN_TOKEN_SUM_NORM:
        return mean / values.shape[-1]
    return mean
