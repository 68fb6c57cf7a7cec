"""From scores to advantages, as a stage with declared columns like those of the roles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from controller.advantages import (
    generalized_advantages,
    group_normalized,
    leave_one_out,
    less_greedy_baseline,
    on_every_token,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    response_scores,
    rewards_with_kl,
)
from workers.roles.fields import Columns, stage
from workers.roles.losses import KlEstimator
from workers.roles.masked import masked_whiten

if TYPE_CHECKING:
    from torch import Tensor


class Algorithm(StrEnum):
    """Where advantages come from. The names are verl's ``adv_estimator``."""

    GAE = "gae"
    GRPO = "grpo"
    RLOO = "rloo"
    REMAX = "remax"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"

    @property
    def reads_values(self) -> bool:
        return self is Algorithm.GAE

    @property
    def has_greedy_rows(self) -> bool:
        """One greedy response a prompt goes along, as the baseline; it is not trained on."""
        return self is Algorithm.REMAX

    @property
    def reads_groups(self) -> bool:
        return self not in (Algorithm.GAE, Algorithm.REINFORCE_PLUS_PLUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """The algorithm and its numbers."""

    algorithm: Algorithm = Algorithm.GAE
    gamma: float = 1.0
    lam: float = 1.0
    whiten: bool = True
    """GAE only: mean 0 and variance 1 over the batch's real tokens, for the actor's use."""
    kl_coefficient: float = 0.0
    """Weight of the KL to the reference in the reward; 0 leaves both log-probs unread."""
    kl_estimator: KlEstimator = KlEstimator.K1


class AdvantageStage:
    """Turns ``rm_scores`` into ``token_level_rewards``, ``advantages`` and ``returns``.

    Needs whole groups where the algorithm compares within groups, and whitens over the rows that
    it is given: call it with the batch of one update.
    """

    def __init__(self, config: AdvantageConfig) -> None:
        self._config = config

    @stage(
        reads=("rm_scores", "response_mask"),
        optional_reads=("values", "uid", "is_greedy", "old_log_probs", "ref_log_prob"),
        writes=("token_level_rewards", "advantages", "returns"),
    )
    def compute_advantages(self, data: Columns) -> dict[str, Tensor]:
        """All float32 [B, R]. ``returns`` equal ``advantages`` where there is no critic."""
        mask: Tensor = data["response_mask"]
        rewards = self._rewards(data, mask)
        advantages, returns = self._advantages(data, rewards, mask)
        return {"token_level_rewards": rewards, "advantages": advantages, "returns": returns}

    def needs(self, method_name: str) -> tuple[str, ...]:
        """The optional reads of a method that this configuration uses."""
        if method_name != "compute_advantages":
            return ()
        algorithm, with_kl = self._config.algorithm, self._config.kl_coefficient > 0.0
        wanted = {
            "values": algorithm.reads_values,
            "uid": algorithm.reads_groups,
            "is_greedy": algorithm.has_greedy_rows,
            "old_log_probs": with_kl,
            "ref_log_prob": with_kl,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def _rewards(self, data: Columns, mask: Tensor) -> Tensor:
        scores: Tensor = data["rm_scores"]
        if self._config.kl_coefficient <= 0.0:
            return scores
        return rewards_with_kl(
            scores,
            data["old_log_probs"],
            data["ref_log_prob"],
            mask,
            coefficient=self._config.kl_coefficient,
            estimator=self._config.kl_estimator,
        )

    def _advantages(self, data: Columns, rewards: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        config = self._config
        match config.algorithm:
            case Algorithm.GAE:
                advantages, returns = generalized_advantages(
                    rewards, data["values"], mask, gamma=config.gamma, lam=config.lam
                )
                return masked_whiten(advantages, mask) if config.whiten else advantages, returns
            case Algorithm.GRPO:
                per_response = group_normalized(response_scores(rewards, mask), data["uid"])
                advantages = on_every_token(per_response, mask)
            case Algorithm.RLOO:
                per_response = leave_one_out(response_scores(rewards, mask), data["uid"])
                advantages = on_every_token(per_response, mask)
            case Algorithm.REMAX:
                per_response = less_greedy_baseline(
                    response_scores(rewards, mask), data["uid"], torch.as_tensor(data["is_greedy"])
                )
                advantages = on_every_token(per_response, mask)
            case Algorithm.REINFORCE_PLUS_PLUS:
                advantages = reinforce_plus_plus(rewards, mask, gamma=config.gamma)
            case Algorithm.REINFORCE_PLUS_PLUS_BASELINE:
                advantages = reinforce_plus_plus_baseline(
                    response_scores(rewards, mask), data["uid"], mask
                )
        return advantages, advantages
