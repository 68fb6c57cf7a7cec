"""How much better a token was than expected. Pure functions.

Shapes: rewards, values and advantages are float32 [B, R] over response tokens, ``mask`` [B, R]
says which are real, scores are float32 [B], ``groups`` is any array [B] in which equal entries
came from the same prompt. Masked places come out as 0. Nothing here carries gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workers.roles.losses import KlEstimator, kl_divergence
from workers.roles.masked import masked_sum, masked_whiten


def rewards_with_kl(
    scores: Tensor,
    log_probs: Tensor,
    ref_log_probs: Tensor,
    mask: Tensor,
    *,
    coefficient: float,
    estimator: KlEstimator = KlEstimator.K1,
) -> Tensor:
    """Token rewards ``scores - coefficient · KL`` [B, R]; scores are [B, R] too.

    Source: InstructGPT (arXiv:2203.02155, eq. 2), the KL of a response spread over its tokens.
    """
    kl = kl_divergence(log_probs, ref_log_probs, estimator)
    return torch.where(mask.bool(), scores - coefficient * kl, 0.0)


def generalized_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """``(advantages, returns)`` by GAE, not whitened.

    Source: arXiv:1506.02438, eq. 16: ``A_t = δ_t + γλ A_{t+1}``, ``δ_t = r_t + γ V_{t+1} - V_t``,
    the value after the last token being 0; ``returns = advantages + values``. A masked token in the
    middle (a tool's output) is passed over as if it were not there.
    """
    real = mask.bool()
    next_value = torch.zeros_like(values[:, 0])
    advantage = torch.zeros_like(next_value)
    columns: list[Tensor] = []
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = torch.where(real[:, t], delta + gamma * lam * advantage, advantage)
        next_value = torch.where(real[:, t], values[:, t], next_value)
        columns.append(advantage)
    advantages = torch.where(real, torch.stack(columns[::-1], dim=1), 0.0)
    return advantages, torch.where(real, advantages + values, 0.0)


def discounted_returns(rewards: Tensor, mask: Tensor, *, gamma: float) -> Tensor:
    """``G_t = r_t + γ G_{t+1}`` over the real tokens, [B, R]."""
    zeros = torch.zeros_like(rewards)
    return generalized_advantages(rewards, zeros, mask, gamma=gamma, lam=1.0)[0]


def group_normalized(
    scores: Tensor, groups: np.ndarray, *, divide_by_std: bool = True, eps: float = 1e-6
) -> Tensor:
    """``(score - mean) / (std + eps)`` within each group, [B]; std over n - 1.

    Sources: GRPO (arXiv:2402.03300, section 4.1.2); without the division, Dr. GRPO
    (arXiv:2503.20783, section 3.2). A group whose scores are all equal gives 0.
    """
    members = _Groups.of(groups)
    centred = scores - members.mean(scores)
    if not divide_by_std:
        return centred
    variance = members.sum(centred.square()) / (members.sizes - 1)
    return centred / (variance.sqrt() + eps)


def leave_one_out(scores: Tensor, groups: np.ndarray) -> Tensor:
    """Each score less the mean of the others of its group, [B].

    Source: RLOO (Kool et al. 2019; arXiv:2402.14740): ``n / (n - 1) · (score - mean)``.
    """
    members = _Groups.of(groups)
    return (scores - members.mean(scores)) * members.sizes / (members.sizes - 1)


def less_greedy_baseline(scores: Tensor, groups: np.ndarray, is_greedy: Tensor) -> Tensor:
    """Each score less that of its prompt's greedy response, [B]; 0 for the greedy ones.

    Source: ReMax (arXiv:2310.10505): the reward of the likeliest response is the baseline.
    ``is_greedy`` [B]: exactly one row a group.
    """
    names, index = np.unique(groups, return_inverse=True)
    member = torch.from_numpy(index.reshape(-1))
    chosen = is_greedy.bool()
    counts = torch.zeros(len(names)).index_add_(0, member, chosen.float())
    if bool((counts != 1).any()):
        first = int((counts != 1).nonzero()[0])
        raise ValueError(
            f"{int((counts != 1).sum())} of {len(names)} groups have not exactly one greedy "
            f"response (the first is {names[first]!r}, with {int(counts[first])})"
        )
    baselines = torch.zeros(len(names)).index_add_(0, member[chosen], scores[chosen])
    return torch.where(chosen, 0.0, scores - baselines[member])


def reinforce_plus_plus(rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """Returns to go, whitened over the real tokens of the whole batch, [B, R].

    Source: REINFORCE++ (arXiv:2501.03262): no critic and no groups; the KL is in ``rewards``.
    """
    return masked_whiten(discounted_returns(rewards, mask, gamma=gamma), mask)


def reinforce_plus_plus_baseline(scores: Tensor, groups: np.ndarray, mask: Tensor) -> Tensor:
    """Scores less their group's mean, on every token, whitened over the batch, [B, R].

    Source: REINFORCE++ with baseline (arXiv:2501.03262): as GRPO, but one scale for all groups.
    """
    centred = group_normalized(scores, groups, divide_by_std=False)
    return masked_whiten(on_every_token(centred, mask), mask)


def on_every_token(per_response: Tensor, mask: Tensor) -> Tensor:
    """One number a response [B] on each of its real tokens, [B, R]."""
    return torch.where(mask.bool(), per_response[:, None], 0.0)


def response_scores(rewards: Tensor, mask: Tensor) -> Tensor:
    """Sum of a response's token rewards, [B]."""
    return masked_sum(rewards, mask, dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Rows that came from the same prompt. Each has at least two."""

    index: Tensor  # int64 [B]: which group
    sizes: Tensor  # float32 [B]: rows in the row's group

    @classmethod
    def of(cls, groups: np.ndarray) -> _Groups:
        names, index, counts = np.unique(groups, return_inverse=True, return_counts=True)
        lonely = int((counts == 1).sum())
        if lonely:
            raise ValueError(
                f"{lonely} of {len(names)} groups have one response (the first is "
                f"{names[counts == 1][0]!r}), which has nothing to be compared with; draw at "
                f"least 2 responses a prompt, or update on complete groups only"
            )
        sizes = torch.from_numpy(counts[index].astype(np.float32))
        return cls(index=torch.from_numpy(index.reshape(-1)), sizes=sizes.reshape(-1))

    def sum(self, per_row: Tensor) -> Tensor:
        """Sum over the row's group, [B]."""
        totals = torch.zeros_like(per_row).index_add_(0, self.index, per_row)
        return totals[self.index]

    def mean(self, per_row: Tensor) -> Tensor:
        return self.sum(per_row) / self.sizes
