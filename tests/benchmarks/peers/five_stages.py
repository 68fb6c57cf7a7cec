"""The five stages of a PPO step that work on a batch: what each reads and writes, and next to no
arithmetic. Torch alone, for all who dispatch them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL_INPUTS = ("input_ids", "position_ids", "attention_mask", "responses")
DRIVER_WRITES = ("token_level_scores", "token_level_rewards", "advantages", "returns")
"""What the driver adds between the forward stages and the updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFields:
    """One stage."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...] = ()


STAGES = (
    StageFields(name="old_log_prob", reads=MODEL_INPUTS, writes=("old_log_probs",)),
    StageFields(name="ref_log_prob", reads=MODEL_INPUTS, writes=("ref_log_probs",)),
    StageFields(name="values", reads=MODEL_INPUTS, writes=("values",)),
    StageFields(name="update_critic", reads=(*MODEL_INPUTS, "response_mask", "values", "returns")),
    StageFields(
        name="update_actor",
        reads=(*MODEL_INPUTS, "response_mask", "old_log_probs", "ref_log_probs", "advantages"),
    ),
)
FIELDS = {stage.name: stage for stage in STAGES}
FORWARD, UPDATES = STAGES[:3], STAGES[3:]


def rollout_columns(rows: int, prompt: int, response: int) -> dict[str, torch.Tensor]:
    """What rollout and reward leave behind, as verl's padded layout has it."""
    whole = prompt + response
    ids = torch.randint(0, 32_000, (rows, whole))
    return {
        "prompts": ids[:, :prompt].clone(),
        "responses": ids[:, prompt:].clone(),
        "input_ids": ids,
        "position_ids": torch.arange(whole).expand(rows, whole).clone(),
        "attention_mask": torch.ones(rows, whole, dtype=torch.int64),
        "response_mask": torch.ones(rows, response, dtype=torch.int64),
        "rollout_log_probs": torch.randn(rows, response),
        "rm_scores": torch.randn(rows, response),
    }


def driver_columns(rows: int, response: int) -> dict[str, torch.Tensor]:
    """What the driver computes from them."""
    return {name: torch.randn(rows, response) for name in DRIVER_WRITES}


def run_stage(stage: StageFields, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Read every element of what the stage reads, and write what it writes."""
    total = sum(float(batch[name].sum()) for name in stage.reads)
    shape = batch["responses"].shape
    return {name: torch.full(shape, total % 1.0) for name in stage.writes}


def resident_columns(rows: int, prompt: int, response: int) -> dict[str, torch.Tensor]:
    """Everything that a rank reads in a step, in memory of its own."""
    columns = rollout_columns(rows, prompt, response) | driver_columns(rows, response)
    written = {name for stage in STAGES for name in stage.writes}
    return columns | {name: torch.ones(rows, response) for name in written}


def seconds_on_resident(columns: Mapping[str, torch.Tensor]) -> float:
    """What the arithmetic of the five stages takes, when nothing has to be moved for it."""
    started_s = time.perf_counter()
    for stage in STAGES:
        run_stage(stage, columns)
    return time.perf_counter() - started_s
