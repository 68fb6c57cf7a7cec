"""The reference: a frozen policy that the trained one is kept near."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from workers.roles.fields import Columns, stage
from workers.roles.layout import response_columns
from workers.roles.logits import token_log_probs

if TYPE_CHECKING:
    from workers.roles.models import PolicyModel


class Reference:
    """Log-probabilities under a model that no one trains."""

    def __init__(self, model: PolicyModel) -> None:
        self._model = model

    @stage(
        reads=("input_ids", "attention_mask", "position_ids", "responses"),
        writes=("ref_log_prob",),
    )
    @torch.no_grad()
    def compute_ref_log_prob(self, data: Columns) -> dict[str, Tensor]:
        """``ref_log_prob`` float32 [B, R]; pad columns hold numbers that mean nothing."""
        responses: Tensor = data["responses"]
        logits = self._model(data["input_ids"], data["attention_mask"], data["position_ids"])
        return {
            "ref_log_prob": token_log_probs(
                response_columns(logits, responses.shape[-1]), responses
            )
        }
