"""The critic: how much reward is still to come, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workers.roles.fields import Columns, stage
from workers.roles.layout import response_columns
from workers.roles.losses import value_loss
from workers.roles.masked import Aggregation, masked_mean
from workers.roles.minibatches import MetricMeans, Minibatches, MinibatchPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.roles.models import ValueModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """How the critic is trained on one batch."""

    plan: MinibatchPlan = field(default_factory=MinibatchPlan)
    clip_range: float | None = 0.2
    """How far a value may move from the batch's own ``values``; ``None`` for no limit."""
    aggregation: Aggregation = Aggregation.TOKEN_MEAN
    max_grad_norm: float = 1.0


class Critic:
    """A value model and its optimiser."""

    def __init__(
        self, model: ValueModel, optimizer: torch.optim.Optimizer, config: CriticConfig
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._config = config
        self._minibatches = Minibatches(config.plan)

    def save_state(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "minibatches": self._minibatches.random_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`save_state` gave."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(dict(state["optimizer"]))
        self._minibatches.load_random_state(state["minibatches"])

    @stage(reads=("input_ids", "attention_mask", "position_ids", "responses"), writes=("values",))
    @torch.no_grad()
    def compute_values(self, data: Columns) -> dict[str, Tensor]:
        """``values`` float32 [B, R]: of the state before each response token."""
        return {"values": self._values(data)}

    @stage(
        reads=(
            "input_ids",
            "attention_mask",
            "position_ids",
            "responses",
            "response_mask",
            "values",
            "returns",
        )
    )
    def update_critic(self, data: Columns) -> dict[str, float]:
        """Fit ``returns``; metrics are means over the minibatches."""
        metrics = MetricMeans("critic/")
        for rows in self._minibatches.draw(data, self.update_critic):
            mask = rows["response_mask"]
            values = self._values(rows)
            result = value_loss(
                values,
                rows["values"],
                rows["returns"],
                mask,
                clip_range=self._config.clip_range,
                aggregation=self._config.aggregation,
            )
            metrics.add(
                loss=result.loss,
                clip_fraction=result.clip_fraction,
                grad_norm=self._step(result.loss),
                value_mean=masked_mean(values, mask),
            )
        return metrics.means()

    def _values(self, data: Columns) -> Tensor:
        values = self._model(data["input_ids"], data["attention_mask"], data["position_ids"])
        return response_columns(values, data["responses"].shape[-1]).float()

    def _step(self, loss: Tensor) -> Tensor:
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.max_grad_norm)
        self._optimizer.step()
        return norm
