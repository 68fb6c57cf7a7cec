"""Everything that makes one run of the example, and the roles it makes of it.

Role factories run in the process of their role. They start from the warm-up's weights, which lie
in a file of the run's folder; from then on weights come through the service.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from controller.advantage_stage import AdvantageConfig, AdvantageStage
from controller.score_summary import ScoreSummary
from examples.tiny.evaluation import greedy_accuracy
from examples.tiny.model import TinyConfig, TinyCritic, TinyTransformer
from examples.tiny.tasks import Task, make_task, problems
from examples.tiny.warmup import WarmupConfig, WarmupResult, warm_up
from workers.roles import (
    Actor,
    ActorConfig,
    CachedEngine,
    Critic,
    CriticConfig,
    Reference,
    Reward,
    Rollout,
    RolloutConfig,
)
from workers.roles.losses import PolicyClip
from workers.roles.minibatches import MinibatchPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from workers.ray_roles import RoleFactory

TRAIN_SEED_OFFSET = 1000
"""Keeps the prompts of PPO apart from those of the warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The numbers of a run.

    Measured in one process, 45 s of one core, rollouts one version behind: PPO gained 57, 49 and
    32 points of held-out accuracy on seeds 0, 1 and 2; the first 30 took 9, 10 and 45 s. With
    ``num_heads=4`` it gained 61, 55 and 54, for an eighth more time an update.
    """

    task: str = "addition"
    task_options: Mapping[str, Any] = field(
        default_factory=lambda: {"digits": 2, "reversed_answer": True}
    )
    seed: int = 0
    warmup_accuracy: float = 0.2
    batch_rows: int = 512
    rollout_rows: int = 128
    stage_rows: int = 256
    epochs: int = 2
    minibatch_rows: int = 256
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 2e-3
    kl_coefficient: float = 0.005
    importance_cap: float = 2.0
    num_heads: int = 2
    held_out_problems: int = 512

    def make_task(self) -> Task:
        return make_task(self.task, **self.task_options)

    def make_policy(self) -> TinyTransformer:
        task = self.make_task()
        return TinyTransformer(
            TinyConfig(
                vocab_size=task.tokenizer.vocab_size,
                max_positions=task.max_prompt_tokens + task.max_response_tokens,
                num_heads=self.num_heads,
            )
        )

    def prompts(self) -> Iterator[dict[str, Any]]:
        """Rows of the dataset columns, without end."""
        stream = problems(self.make_task(), self.seed + TRAIN_SEED_OFFSET)
        for number, problem in enumerate(stream):
            yield {
                "raw_prompt": problem.prompt,
                "reward_model": {"ground_truth": problem.answer},
                "uid": f"prompt-{number}",
            }


def warm_up_to_file(recipe: Recipe, path: Path) -> WarmupResult:
    """Train a policy from scratch to the recipe's accuracy, and save its weights."""
    torch.manual_seed(recipe.seed)
    policy = recipe.make_policy()
    config = WarmupConfig(target_accuracy=recipe.warmup_accuracy)
    result = warm_up(policy, recipe.make_task(), config, seed=recipe.seed)
    torch.save(policy.state_dict(), path)
    return result


def _warm_policy(recipe: Recipe, weights: Path) -> TinyTransformer:
    policy = recipe.make_policy()
    policy.load_state_dict(torch.load(weights, weights_only=True))
    return policy


class HeldOutEvaluation:
    """Greedy accuracy of a policy on the task's held-out problems."""

    def __init__(self, policy: TinyTransformer, task: Task, num_problems: int) -> None:
        self._policy = policy
        self._task = task
        self._problems = task.held_out(num_problems)

    def accuracy(self) -> float:
        return greedy_accuracy(self._policy, self._task, self._problems)


def _rollout(recipe: Recipe, weights: Path, index: int) -> dict[str, Any]:
    task = recipe.make_task()
    tokenizer = task.tokenizer
    engine = CachedEngine(
        _warm_policy(recipe, weights),
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        seed=recipe.seed * 100 + index,
    )
    config = RolloutConfig(
        prompt_length=task.max_prompt_tokens, response_length=task.max_response_tokens
    )
    return {"rollout": Rollout(engine, tokenizer, config)}


def _reward(recipe: Recipe) -> dict[str, Any]:
    task = recipe.make_task()
    return {"reward": Reward(task.verify, task.tokenizer)}


def _reference(recipe: Recipe, weights: Path) -> dict[str, Any]:
    return {"reference": Reference(_warm_policy(recipe, weights))}


def _critic(recipe: Recipe, weights: Path) -> dict[str, Any]:
    torch.manual_seed(recipe.seed + 1)
    model = TinyCritic.from_policy(_warm_policy(recipe, weights))
    plan = MinibatchPlan(epochs=recipe.epochs, rows=recipe.minibatch_rows, seed=recipe.seed)
    optimizer = _optimizer(model, recipe.critic_learning_rate)
    return {
        "critic": Critic(model, optimizer, CriticConfig(plan=plan, clip_range=0.5)),
        "advantages": AdvantageStage(AdvantageConfig()),
        "scores": ScoreSummary(),
    }


def _actor(recipe: Recipe, weights: Path) -> dict[str, Any]:
    policy = _warm_policy(recipe, weights)
    config = ActorConfig(
        plan=MinibatchPlan(epochs=recipe.epochs, rows=recipe.minibatch_rows, seed=recipe.seed),
        clip=PolicyClip(dual=3.0),
        kl_coefficient=recipe.kl_coefficient,
        importance_cap=recipe.importance_cap,
    )
    optimizer = _optimizer(policy, recipe.actor_learning_rate)
    return {
        "actor": Actor(policy, optimizer, config),
        "evaluation": HeldOutEvaluation(policy, recipe.make_task(), recipe.held_out_problems),
    }


def _optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
    )


def role_factories(recipe: Recipe, weights: Path, *, num_rollouts: int) -> dict[str, RoleFactory]:
    """What each process of the run hosts, by the name of the process."""
    rollouts: dict[str, RoleFactory] = {
        f"rollout-{index}": partial(_rollout, recipe, weights, index)
        for index in range(num_rollouts)
    }
    return {
        **rollouts,
        "reward": partial(_reward, recipe),
        "reference": partial(_reference, recipe, weights),
        "critic": partial(_critic, recipe, weights),
        "actor": partial(_actor, recipe, weights),
    }
