"""A PPO step as verl's ``fit()`` writes it, run with eager batches and then with views.

    python -m examples.ppo_loop

``fit`` is one function. Which kind of batch goes through it is decided where the first one is made,
by the ``make_batch`` that it is given; every line after that is the same, and so are the numbers.
What differs is how much passes through the controller.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import transferqueue as tq
from controller.advantage_stage import AdvantageConfig, AdvantageStage
from controller.score_summary import ScoreSummary
from examples.counts import at_least_one
from examples.loop.processes import CallBytes, Group, RoleFactory
from examples.tiny.model import TinyCritic
from examples.tiny.recipe import Recipe
from transferqueue.view.lazy_connection import close_process_clients
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
from workers.roles.minibatches import MinibatchPlan

RECIPE = Recipe(seed=0)
PLAN = MinibatchPlan(epochs=1, rows=64, seed=0)
LEARNING_RATE = 1e-3

Prompts = Mapping[str, np.ndarray]
MakeBatch = Callable[[Prompts], tq.DataProto]
Metrics = dict[str, float]


# ---- the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The worker groups, by role."""

    actor_rollout: Group
    reference: Group
    reward: Group
    critic: Group
    traffic: Mapping[str, CallBytes]
    """What went through the controller, by method in the order of the calls."""


def fit(
    make_batch: MakeBatch, groups: Groups, prompts: Iterator[Prompts], samples_per_prompt: int
) -> Iterator[Metrics]:
    """One update a step: repeat, generate, union, score, advantages, update."""
    for columns in prompts:
        batch = make_batch(columns)
        batch = batch.repeat(repeat_times=samples_per_prompt, interleave=True)
        gen_batch = batch.pop(non_tensor_batch_keys=["raw_prompt"])
        batch = batch.union(groups.actor_rollout.generate_sequences(gen_batch))
        batch.reorder(balanced_order(len(batch)))
        batch = batch.union(groups.reward.compute_scores(batch))
        batch = batch.union(groups.actor_rollout.compute_log_prob(batch))
        batch = batch.union(groups.reference.compute_ref_log_prob(batch))
        batch = batch.union(groups.critic.compute_values(batch))
        batch = batch.union(groups.critic.compute_advantages(batch))
        metrics: Metrics = {}
        for output in (
            groups.critic.summary(batch),
            groups.critic.update_critic(batch),
            groups.actor_rollout.update_actor(batch),
        ):
            metrics |= {name: values[0] for name, values in output.meta_info["metrics"].items()}
        yield metrics


def balanced_order(num_rows: int) -> torch.Tensor:
    """Stands for verl's balancing by length: some permutation, the same in every run."""
    return torch.randperm(num_rows, generator=torch.Generator().manual_seed(num_rows))


def eager_batch(columns: Prompts) -> tq.DataProto:
    """All columns, here."""
    return tq.DataProto.from_dict(non_tensors=dict(columns))


def view(client: tq.Client, columns: Prompts) -> tq.DataProto:
    """All columns, stored."""
    return client.view(client.put(columns, partition="prompts"))


# ---- the roles


def prompts_of(num_prompts: int, num_steps: int) -> Iterator[Prompts]:
    rows = map(RECIPE.prompts(), count())
    for _ in range(num_steps):
        some = list(islice(rows, num_prompts))
        yield {
            name: np.fromiter((row[name] for row in some), dtype=object, count=num_prompts)
            for name in some[0]
        }


def make_policy() -> Any:
    torch.manual_seed(RECIPE.seed)
    return RECIPE.make_policy()


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)


def actor_and_rollout() -> dict[str, Any]:
    """One policy that generates and learns, as verl's hybrid engine."""
    task, policy = RECIPE.make_task(), make_policy()
    tokenizer = task.tokenizer
    engine = CachedEngine(policy, eos_id=tokenizer.eos_id, pad_id=tokenizer.pad_id, seed=1)
    widths = RolloutConfig(
        prompt_length=task.max_prompt_tokens, response_length=task.max_response_tokens
    )
    config = ActorConfig(plan=PLAN, kl_coefficient=RECIPE.kl_coefficient)
    return {
        "rollout": Rollout(engine, tokenizer, widths),
        "actor": Actor(policy, optimizer_of(policy), config),
    }


def reference() -> dict[str, Any]:
    return {"reference": Reference(make_policy())}


def reward() -> dict[str, Any]:
    task = RECIPE.make_task()
    return {"reward": Reward(share_of_characters, task.tokenizer)}


def share_of_characters(*, answer: str, response: str) -> float:
    """Score of a response: how much of the answer stands where it should. A policy with random
    weights gets something for that, so that there is something to learn from the first step on."""
    return sum(a == b for a, b in zip(answer, response, strict=False)) / len(answer)


def critic_and_advantages() -> dict[str, Any]:
    policy = make_policy()
    model = TinyCritic.from_policy(policy)
    return {
        "critic": Critic(model, optimizer_of(model), CriticConfig(plan=PLAN)),
        "advantages": AdvantageStage(AdvantageConfig()),
        "scores": ScoreSummary(),
    }


@contextmanager
def running_groups(address: str) -> Iterator[Groups]:
    with ExitStack() as stack:
        traffic: dict[str, CallBytes] = {}

        def start(make_roles: RoleFactory, num_ranks: int) -> Group:
            group = Group(
                make_roles=make_roles,
                num_ranks=num_ranks,
                service_address=address,
                traffic=traffic,
            )
            return stack.enter_context(group)

        yield Groups(
            traffic=traffic,
            actor_rollout=start(actor_and_rollout, 1),
            reference=start(reference, 2),
            reward=start(reward, 2),
            critic=start(critic_and_advantages, 1),
        )


# ---- both runs, side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one kind of batch gave."""

    metrics: list[Metrics]
    traffic: Mapping[str, CallBytes]
    client_bytes: int
    """What the controller's own client sent and received: the prompts, for views."""

    def through_controller(self, method: str) -> int:
        return self.traffic[method].sent + self.traffic[method].received

    @property
    def total_bytes(self) -> int:
        return self.client_bytes + sum(map(self.through_controller, self.traffic))


def run(make_batch: Callable[[tq.Client], MakeBatch], options: argparse.Namespace) -> Run:
    """Fresh processes, fresh weights and fresh storage."""
    with (
        tq.serve(shards=2, budget_bytes=128 << 20) as service,
        tq.connect(service.address) as client,
        running_groups(service.address) as groups,
    ):
        prompts = prompts_of(options.prompts, options.steps)
        before = sum(client.wire_bytes().values())
        metrics = list(fit(make_batch(client), groups, prompts, options.samples))
        client_bytes = sum(client.wire_bytes().values()) - before
        close_process_clients()
        return Run(metrics=metrics, traffic=groups.traffic, client_bytes=client_bytes)


def print_numbers(eager: Run, lazy: Run, console: Console) -> None:
    table = Table(title="The same numbers", title_justify="left")
    for heading in ("step", "metric", "eager batches", "views"):
        table.add_column(heading, justify="left" if heading == "metric" else "right")
    for step, (left, right) in enumerate(zip(eager.metrics, lazy.metrics, strict=True), start=1):
        for name in left:
            table.add_row(str(step), name, f"{left[name]:.9f}", f"{right[name]:.9f}")
        table.add_section()
    console.print(table)


def print_bytes(eager: Run, lazy: Run, num_steps: int, console: Console) -> None:
    table = Table(title="Through the controller, KiB a step", title_justify="left")
    for heading in ("call", "eager batches", "views", "ratio"):
        table.add_column(heading, justify="left" if heading == "call" else "right")

    def row(name: str, left: float, right: float) -> None:
        ratio = f"{left / right:.0f} x" if left and right else ""
        kib = [f"{value / 1024 / num_steps:,.1f}" for value in (left, right)]
        table.add_row(name, *kib, ratio)

    row("prompts, by the client", eager.client_bytes, lazy.client_bytes)
    for method in eager.traffic:
        row(method, eager.through_controller(method), lazy.through_controller(method))
    table.add_section()
    row("all", eager.total_bytes, lazy.total_bytes)
    console.print(table)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--steps", type=at_least_one, default=3, help="updates of each run (default: 3)"
    )
    parser.add_argument(
        "--prompts", type=at_least_one, default=64, help="prompts of a step (default: 64)"
    )
    parser.add_argument(
        "--samples", type=at_least_one, default=4, help="responses a prompt (default: 4)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options, console = parse(arguments), Console()
    eager = run(lambda _: eager_batch, options)
    lazy = run(lambda client: partial(view, client), options)
    print_numbers(eager, lazy, console)
    print_bytes(eager, lazy, options.steps, console)
    if eager.metrics != lazy.metrics:
        raise SystemExit("the two runs gave different numbers")


if __name__ == "__main__":
    main()
