"""What the stages compute: next to nothing, but from every field that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

FORWARD_READS = ("input_ids", "position_ids", "attention_mask", "responses")
UPDATE_READS = (*FORWARD_READS, "response_mask", "old_log_probs", "advantages")


def forward(batch: Mapping[str, Any]) -> torch.Tensor:
    """A number for each token of the responses, [B, R]."""
    length = batch["responses"].size(1)
    mixed = batch["input_ids"] + batch["position_ids"] * batch["attention_mask"]
    return (mixed[:, -length:] - batch["responses"]).float()


def loss(batch: Mapping[str, Any]) -> float:
    """One number of a whole batch."""
    ratio = forward(batch) - batch["old_log_probs"]
    return float((ratio * batch["advantages"] * batch["response_mask"]).mean())
