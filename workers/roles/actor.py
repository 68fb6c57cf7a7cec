"""The actor: the policy that is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workers.roles.fields import Columns, stage
from workers.roles.layout import response_columns
from workers.roles.logits import entropy, token_log_probs
from workers.roles.losses import (
    KlEstimator,
    PolicyClip,
    kl_divergence,
    policy_loss,
    truncated_importance_weights,
)
from workers.roles.masked import Aggregation, aggregate, masked_mean
from workers.roles.minibatches import MetricMeans, Minibatches, MinibatchPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.roles.models import PolicyModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorConfig:
    """How the policy is trained on one batch."""

    plan: MinibatchPlan = field(default_factory=MinibatchPlan)
    clip: PolicyClip = field(default_factory=PolicyClip)
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    temperature: float = 1.0
    """Of the rollouts: log-probabilities are those of the tempered policy, as it sampled."""
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    """Weight of the KL to the reference in the loss; 0 leaves ``ref_log_prob`` unread."""
    kl_estimator: KlEstimator = KlEstimator.K3
    importance_cap: float | None = None
    """Cap of the weights for tokens that an older policy drew; ``None`` leaves
    ``rollout_log_probs`` unread and takes every token as drawn by ``old``."""
    max_grad_norm: float = 1.0


class Actor:
    """A policy and its optimiser.

    ``version`` counts the finished updates; it names the weights that :meth:`state_dict` gives.
    """

    def __init__(
        self, model: PolicyModel, optimizer: torch.optim.Optimizer, config: ActorConfig
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._config = config
        self._minibatches = Minibatches(config.plan)
        self.version = 0

    def state_dict(self) -> Mapping[str, Any]:
        """The weights, not copied: later updates change them."""
        return self._model.state_dict()

    def save_state(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "minibatches": self._minibatches.random_state(),
            "version": self.version,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`save_state` gave."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        self._minibatches.load_random_state(state["minibatches"])
        self.version = int(state["version"])

    @stage(
        reads=("input_ids", "attention_mask", "position_ids", "responses"),
        writes=("old_log_probs", "entropys"),
    )
    @torch.no_grad()
    def compute_log_prob(self, data: Columns) -> dict[str, Tensor]:
        """``old_log_probs`` and ``entropys``, float32 [B, R], under the weights as they are."""
        log_probs, entropys = self._token_statistics(data)
        return {"old_log_probs": log_probs, "entropys": entropys}

    @stage(
        reads=(
            "input_ids",
            "attention_mask",
            "position_ids",
            "responses",
            "response_mask",
            "old_log_probs",
            "advantages",
        ),
        optional_reads=("ref_log_prob", "rollout_log_probs"),
    )
    def update_actor(self, data: Columns) -> dict[str, float]:
        """Improve the policy on one batch; metrics are means over the minibatches."""
        metrics = MetricMeans("actor/")
        needed = self.needs("update_actor")
        for rows in self._minibatches.draw(data, self.update_actor, optional=needed):
            loss, observed = self._loss(rows)
            metrics.add(loss=loss, grad_norm=self._step(loss), **observed)
        self.version += 1
        return metrics.means()

    def needs(self, method_name: str) -> tuple[str, ...]:
        """The optional reads of a method that this configuration uses."""
        if method_name != "update_actor":
            return ()
        wanted = {
            "ref_log_prob": self._config.kl_coefficient > 0.0,
            "rollout_log_probs": self._config.importance_cap is not None,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def _loss(self, rows: Columns) -> tuple[Tensor, dict[str, Tensor]]:
        config, mask = self._config, rows["response_mask"]
        log_probs, entropys = self._token_statistics(rows)
        result = policy_loss(
            log_probs,
            rows["old_log_probs"],
            rows["advantages"],
            mask,
            clip=config.clip,
            aggregation=config.aggregation,
            importance_weights=self._importance_weights(rows),
        )
        observed = {
            "policy_loss": result.loss,
            "clip_fraction": result.clip_fraction,
            "dual_clip_fraction": result.dual_clip_fraction,
            "approx_kl": result.approx_kl,
            "entropy": masked_mean(entropys, mask),
        }
        loss = result.loss
        if config.entropy_coefficient:
            loss = loss - config.entropy_coefficient * aggregate(entropys, mask, config.aggregation)
        if config.kl_coefficient > 0.0:
            kl = kl_divergence(log_probs, rows["ref_log_prob"], config.kl_estimator)
            observed["ref_kl"] = aggregate(kl, mask, config.aggregation)
            loss = loss + config.kl_coefficient * observed["ref_kl"]
        return loss, observed

    def _importance_weights(self, rows: Columns) -> Tensor | None:
        if self._config.importance_cap is None:
            return None
        return truncated_importance_weights(
            rows["old_log_probs"], rows["rollout_log_probs"], cap=self._config.importance_cap
        )

    def _token_statistics(self, data: Columns) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each response token, both [B, R]."""
        responses: Tensor = data["responses"]
        logits = self._model(data["input_ids"], data["attention_mask"], data["position_ids"])
        tempered = response_columns(logits, responses.shape[-1]) / self._config.temperature
        return token_log_probs(tempered, responses), entropy(tempered)

    def _step(self, loss: Tensor) -> Tensor:
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.max_grad_norm)
        self._optimizer.step()
        return norm
