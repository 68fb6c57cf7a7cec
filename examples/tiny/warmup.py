"""The supervised warm-up: from random weights to a policy that is right now and then.

Reinforcement learning needs some right answers to begin with. The warm-up stops at a chosen
accuracy on purpose, well short of what more of it would reach, so that the rest is PPO's to learn.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.tiny.evaluation import greedy_accuracy
from examples.tiny.problems import Problem, Task, problems
from workers.roles.layout import join_prompts_and_responses, response_columns

if TYPE_CHECKING:
    from examples.tiny.model import TinyTransformer


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupConfig:
    """How to train, and when to stop."""

    target_accuracy: float = 0.3
    """Greedy accuracy on held-out problems at which to stop, 0 to 1."""
    batch_problems: int = 128
    learning_rate: float = 3e-3
    ramp_steps: int = 50
    """Steps over which the learning rate rises to its full value."""
    max_steps: int = 2000
    check_every_steps: int = 10
    check_problems: int = 256
    """Held-out problems a check; few, because checks are frequent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupResult:
    """What the warm-up came to."""

    accuracy: float
    """At the last check."""
    num_steps: int
    duration_s: float


def warm_up(model: TinyTransformer, task: Task, config: WarmupConfig, *, seed: int) -> WarmupResult:
    """Train ``model`` in place on answers until the target accuracy or the step limit."""
    started_s = time.monotonic()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    ramp = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (config.ramp_steps + 1))
    )
    stream = problems(task, seed)
    held_out = task.held_out(config.check_problems)
    accuracy, step = 0.0, 0
    while step < config.max_steps and accuracy < config.target_accuracy:
        for _ in range(config.check_every_steps):
            batch = list(itertools.islice(stream, config.batch_problems))
            optimizer.zero_grad()
            answer_loss(model, task, batch).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            ramp.step()
            step += 1
        accuracy = greedy_accuracy(model, task, held_out)
    return WarmupResult(accuracy=accuracy, num_steps=step, duration_s=time.monotonic() - started_s)


def answer_loss(model: TinyTransformer, task: Task, batch: list[Problem]) -> Tensor:
    """Mean cross-entropy of the answers' tokens, end token included."""
    prompts, prompt_mask = task.tokenizer.encode_left_padded(
        [problem.prompt for problem in batch], task.max_prompt_tokens
    )
    responses, response_mask = encode_answers(task, [problem.answer for problem in batch])
    inputs = join_prompts_and_responses(prompts, prompt_mask, responses, response_mask)
    logits = response_columns(model(**inputs), responses.shape[-1])
    return F.cross_entropy(logits[response_mask.bool()], responses[response_mask.bool()])


def encode_answers(task: Task, answers: list[str]) -> tuple[Tensor, Tensor]:
    """``(responses, response_mask)`` int64 [B, R], padded on the right after the end token."""
    tokenizer, width = task.tokenizer, task.max_response_tokens
    rows = [[*tokenizer.encode(answer), tokenizer.eos_id] for answer in answers]
    padded = torch.tensor([row + [tokenizer.pad_id] * (width - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return padded, (torch.arange(width) < lengths[:, None]).long()
