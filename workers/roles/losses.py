"""The losses of PPO and its relatives. Pure functions.

Every tensor is float32 [B, R] over response tokens; ``mask`` says which are real. ``old`` is the
policy at the start of the update, ``rollout`` the one that drew the tokens (older, when training is
asynchronous), ``ref`` the frozen one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from workers.roles.masked import Aggregation, aggregate, masked_mean

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here before ``exp``: e^20 is far outside any clip range, and finite."""


class KlEstimator(StrEnum):
    """Estimators of KL(policy ‖ ref) from tokens that the policy drew.

    Source: Schulman, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html), with
    ``r = ref / policy``.
    """

    K1 = "k1"
    """``-log r``: unbiased, high variance, can be negative."""
    K2 = "k2"
    """``(log r)² / 2``: biased, low variance; its gradient is that of the true KL."""
    K3 = "k3"
    """``(r - 1) - log r``: unbiased, low variance, never negative."""


def kl_divergence(log_probs: Tensor, ref_log_probs: Tensor, estimator: KlEstimator) -> Tensor:
    """The KL of each token, [B, R]. Differentiable in ``log_probs``."""
    log_ratio = ref_log_probs - log_probs
    if estimator is KlEstimator.K1:
        return -log_ratio
    if estimator is KlEstimator.K2:
        return log_ratio.square() / 2
    log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(log_ratio) - log_ratio


def truncated_importance_weights(
    old_log_probs: Tensor, rollout_log_probs: Tensor, *, cap: float
) -> Tensor:
    """``min(old / rollout, cap)`` of each token, without gradient.

    Corrects a policy-gradient loss at ``old`` for tokens that an older policy drew. Source:
    IMPALA (arXiv:1802.01561, eq. 1, ρ̄ = ``cap``); as the outer weight of PPO's clipped loss,
    the decoupled objective of Hilton et al. (arXiv:2110.00641) with AReaL's use (arXiv:2505.24298).
    """
    log_ratio = (old_log_probs - rollout_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio.exp().clamp(max=cap).detach()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyClip:
    """Where the ratio ``policy / old`` stops paying."""

    low: float = 0.2
    """Gain from a ratio below ``1 - low`` is not rewarded."""
    high: float = 0.2
    """Gain from a ratio above ``1 + high`` is not rewarded; above ``low`` is DAPO's clip-higher."""
    dual: float | None = None
    """With a negative advantage, a loss above ``dual · |advantage|`` has no gradient; > 1."""

    def __post_init__(self) -> None:
        if not 0.0 < self.low < 1.0 or self.high <= 0.0:
            raise ValueError(f"low={self.low} must be in (0, 1) and high={self.high} above 0")
        if self.dual is not None and self.dual <= 1.0:
            raise ValueError(f"dual={self.dual} must be above 1: at 1 it cuts on-policy samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """A policy loss and what happened in it, each a scalar."""

    loss: Tensor
    clip_fraction: Tensor
    """Share of real tokens whose gradient the clip cut."""
    dual_clip_fraction: Tensor
    """Share of real tokens whose gradient the dual clip cut."""
    approx_kl: Tensor
    """Mean of ``old - policy`` log-probabilities: how far this update has gone (k1)."""


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: PolicyClip,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
    importance_weights: Tensor | None = None,
) -> PolicyLoss:
    """PPO's clipped surrogate, to be minimised.

    Sources: PPO (arXiv:1707.06347, eq. 7); separate upper clip, DAPO (arXiv:2503.14476, eq. 8);
    dual clip, Ye et al. (arXiv:1912.09729, "dual-clip PPO"). ``importance_weights`` [B, R] multiply
    the token losses (:func:`truncated_importance_weights`).
    """
    log_ratio = (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    losses = torch.maximum(plain, clipped)
    is_clipped = clipped > plain
    is_dual_clipped = torch.zeros_like(is_clipped)
    if clip.dual is not None:
        ceiling = -advantages * clip.dual
        is_dual_clipped = (advantages < 0) & (losses > ceiling)
        losses = torch.where(advantages < 0, torch.minimum(losses, ceiling), losses)
    if importance_weights is not None:
        losses = losses * importance_weights
    return PolicyLoss(
        loss=aggregate(losses, mask, aggregation),
        clip_fraction=masked_mean(is_clipped.float(), mask),
        dual_clip_fraction=masked_mean(is_dual_clipped.float(), mask),
        approx_kl=masked_mean(-log_ratio.detach(), mask),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    """A value loss and what happened in it, each a scalar."""

    loss: Tensor
    clip_fraction: Tensor
    """Share of real tokens whose gradient the clip cut."""


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip_range: float | None,
    aggregation: Aggregation = Aggregation.TOKEN_MEAN,
) -> ValueLoss:
    """Half the squared error, with values held within ``clip_range`` of ``old_values``.

    The worse of the clipped and the plain error counts, as in OpenAI's baselines ``ppo2`` (see
    arXiv:2005.12729, section 3). ``clip_range=None``: the plain error.
    """
    plain = (values - returns).square()
    losses = plain
    is_clipped = torch.zeros_like(plain, dtype=torch.bool)
    if clip_range is not None:
        near_old = old_values + (values - old_values).clamp(-clip_range, clip_range)
        clipped = (near_old - returns).square()
        losses = torch.maximum(plain, clipped)
        is_clipped = clipped > plain
    return ValueLoss(
        loss=aggregate(losses, mask, aggregation) / 2,
        clip_fraction=masked_mean(is_clipped.float(), mask),
    )
