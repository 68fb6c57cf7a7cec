"""What the stages compute: next to nothing, but from every field that they read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def seconds_of_a_step(rows: int, prompt: int, response: int) -> float:
    """What the three stages take on columns that are in this process's own memory already."""
    whole = prompt + response
    batch = {name: torch.ones(rows, whole, dtype=torch.int64) for name in FORWARD_READS[:3]}
    batch["responses"] = torch.ones(rows, response, dtype=torch.int64)
    batch["response_mask"] = torch.ones(rows, response, dtype=torch.int64)
    batch["old_log_probs"] = batch["advantages"] = torch.ones(rows, response)
    seconds = []
    for _ in range(4):
        started_s = time.perf_counter()
        forward(batch)
        forward(batch)
        loss(batch)
        seconds.append(time.perf_counter() - started_s)
    return min(seconds)
