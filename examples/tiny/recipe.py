"""Everything that makes one run of the example, and the roles it makes of it.

Role factories run in the process of their role. They start from the warm-up's weights, which lie
in a file of the run's folder; from then on weights come through the service.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch

from controller.advantage_stage import AdvantageStage, Algorithm
from controller.driver_config import DriverConfig, Mode, Transport
from controller.plain_settings import from_plain
from controller.ppo_settings import KlPlace, PpoSettings
from controller.score_summary import ScoreSummary
from examples.tiny.evaluation import HeldOutEvaluation
from examples.tiny.model import TinyConfig, TinyCritic, TinyTransformer
from examples.tiny.pace import PacedEngine
from examples.tiny.problems import BLOCK_PROBLEMS, Task
from examples.tiny.tasks import make_task
from examples.tiny.warmup import WarmupConfig, WarmupResult, warm_up
from transferqueue.errors import ConfigError
from workers.roles import Actor, CachedEngine, Critic, Reference, Reward, Rollout, RolloutConfig
from workers.roles.losses import PolicyClip
from workers.roles.minibatches import MinibatchPlan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from workers.role_worker import RoleFactory

TRAIN_SEED_OFFSET = 1000
"""Keeps the prompts of PPO apart from those of the warm-up."""


TASK_OPTIONS: dict[str, dict[str, Any]] = {
    "addition": {"digits": 2, "reversed_answer": True},
    "spelling": {},
}
"""Settings of each task that suit the tiny model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The numbers of a run.

    Measured on two shared cores, 100 asynchronous updates of ``addition``: seeds 0, 1 and 2 gained
    57, 58 and 52 points of held-out accuracy in 91, 73 and 87 s. With ``num_heads=2`` it had been
    54, 46 and 43.
    """

    task: str = "addition"
    task_options: Mapping[str, Any] | None = None
    """``None``: as in `TASK_OPTIONS`."""
    algorithm: Algorithm = Algorithm.GAE
    seed: int = 0
    warmup_accuracy: float = 0.2
    batch_rows: int = 512
    samples_per_prompt: int = 1
    slots: int = 128
    """Generations under way at once in each rollout that streams."""
    segment_tokens: int = 8
    stage_rows: int = 256
    epochs: int = 2
    minibatch_rows: int = 256
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 2e-3
    kl_coefficient: float = 0.005
    importance_cap: float = 2.0
    values_stream: bool = True
    """As `PpoSettings.values_stream`."""
    num_heads: int = 4
    width: int = 64
    held_out_problems: int = 512
    token_s: float = 0.0
    """Time that a rollout takes for a token, whatever the batch; 0: as fast as it can."""

    def __post_init__(self) -> None:
        for name in ("batch_rows", "samples_per_prompt", "held_out_problems"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("actor_learning_rate", "critic_learning_rate"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("seed", "token_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if not 0.0 <= self.warmup_accuracy <= 1.0:
            raise ConfigError(f"warmup_accuracy must be 0 to 1, got {self.warmup_accuracy}")

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> Recipe:
        """From plain values. ``ConfigError`` names a wrong key, also of the task, and near ones,
        and what some role would refuse when it is made.
        Where an algorithm compares the answers to a prompt, there are 4 of them by default."""
        recipe = from_plain(cls, "recipe", settings)
        if "samples_per_prompt" not in settings:
            least = recipe.settings.least_samples_per_prompt
            recipe = replace(recipe, samples_per_prompt=4 if least > 1 else 1)
        try:
            recipe._check_roles()
        except ValueError as error:
            raise ConfigError(f"recipe settings: {error}") from error
        return recipe

    def _check_roles(self) -> None:
        """What is made in the processes of the run can be made."""
        self.make_task().held_out(max(self.held_out_problems, WarmupConfig().check_problems))
        _ = self.model_config, self.rollout_config, self.plan

    @property
    def settings(self) -> PpoSettings:
        """The algorithm's."""
        return PpoSettings(
            algorithm=self.algorithm,
            clip=PolicyClip(dual=3.0),
            value_clip=0.5,
            kl_place=KlPlace.LOSS if self.kl_coefficient else KlPlace.NOWHERE,
            kl_coefficient=self.kl_coefficient,
            importance_cap=self.importance_cap,
            values_stream=self.values_stream,
        )

    def driver_config(
        self, *, num_steps: int, mode: Mode, transport: Transport = Transport.HANDLES, **more: Any
    ) -> DriverConfig:
        """Of a driver for this recipe. ``ConfigError`` before anything is started."""
        if self.batch_rows % self.samples_per_prompt:
            raise ConfigError(
                f"batch_rows={self.batch_rows} is no multiple of "
                f"samples_per_prompt={self.samples_per_prompt}: a group would be torn apart"
            )
        config = DriverConfig(
            num_steps=num_steps,
            prompts_per_step=self.batch_rows // self.samples_per_prompt,
            samples_per_prompt=self.samples_per_prompt,
            mode=mode,
            transport=transport,
            stage_rows=self.stage_rows,
            **more,
        )
        config.check_groups(self.settings)
        return config

    def make_task(self) -> Task:
        options = (
            TASK_OPTIONS.get(self.task, {}) if self.task_options is None else self.task_options
        )
        return make_task(self.task, **options)

    @property
    def model_config(self) -> TinyConfig:
        task = self.make_task()
        return TinyConfig(
            vocab_size=task.tokenizer.vocab_size,
            max_positions=task.max_prompt_tokens + task.max_response_tokens,
            num_heads=self.num_heads,
            width=self.width,
        )

    @property
    def rollout_config(self) -> RolloutConfig:
        task = self.make_task()
        return RolloutConfig(
            prompt_length=task.max_prompt_tokens,
            response_length=task.max_response_tokens,
            with_greedy_rows=self.settings.has_greedy_rows,
            slots=self.slots,
            segment_tokens=self.segment_tokens,
        )

    @property
    def plan(self) -> MinibatchPlan:
        return MinibatchPlan(epochs=self.epochs, rows=self.minibatch_rows, seed=self.seed)

    def make_policy(self) -> TinyTransformer:
        return TinyTransformer(self.model_config)

    def prompts(self) -> NumberedPrompts:
        """The dataset."""
        return NumberedPrompts(self.make_task(), self.seed + TRAIN_SEED_OFFSET)


class NumberedPrompts:
    """Prompts of a task by number, as columns of a dataset."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self._block = lru_cache(maxsize=4)(partial(task.block, seed))

    def __call__(self, number: int) -> dict[str, Any]:
        block, place = divmod(number, BLOCK_PROBLEMS)
        problem = self._block(block)[place]
        return {
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


def _rollout(recipe: Recipe, weights: Path, index: int) -> dict[str, Any]:
    tokenizer = recipe.make_task().tokenizer
    engine: Any = CachedEngine(
        _warm_policy(recipe, weights),
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        seed=recipe.seed * 100 + index,
    )
    if recipe.token_s:
        engine = PacedEngine(engine, recipe.token_s)
    return {"rollout": Rollout(engine, tokenizer, recipe.rollout_config)}


def _reward(recipe: Recipe) -> dict[str, Any]:
    task = recipe.make_task()
    return {"reward": Reward(task.verify, task.tokenizer)}


def _reference(recipe: Recipe, weights: Path) -> dict[str, Any]:
    return {"reference": Reference(_warm_policy(recipe, weights))}


def _advantages(recipe: Recipe) -> dict[str, Any]:
    return {
        "advantages": AdvantageStage(recipe.settings.advantage_config()),
        "scores": ScoreSummary(),
    }


def _critic(recipe: Recipe, weights: Path) -> dict[str, Any]:
    torch.manual_seed(recipe.seed + 1)
    model = TinyCritic.from_policy(_warm_policy(recipe, weights))
    optimizer = _optimizer(model, recipe.critic_learning_rate)
    critic = Critic(model, optimizer, recipe.settings.critic_config(recipe.plan))
    return {"critic": critic, **_advantages(recipe)}


def _actor(recipe: Recipe, weights: Path) -> dict[str, Any]:
    policy = _warm_policy(recipe, weights)
    optimizer = _optimizer(policy, recipe.actor_learning_rate)
    actor = Actor(policy, optimizer, recipe.settings.actor_config(recipe.plan))
    task = recipe.make_task()
    roles = {
        "actor": actor,
        "evaluation": HeldOutEvaluation(policy, task, recipe.held_out_problems),
    }
    return roles if recipe.settings.with_critic else {**roles, **_advantages(recipe)}


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
    settings = recipe.settings
    factories: dict[str, RoleFactory] = {**rollouts, "reward": partial(_reward, recipe)}
    if settings.with_reference:
        factories["reference"] = partial(_reference, recipe, weights)
    if settings.with_critic:
        factories["critic"] = partial(_critic, recipe, weights)
    return {**factories, "actor": partial(_actor, recipe, weights)}
