"""A small transformer learns to add by asynchronous PPO; the controller moves handles only.

    python -m examples.async_ppo

Rollouts, reward, reference, critic and actor are Ray actors. They fetch from the storage service
the fields that they read and put those that they write; weights go from the actor to the rollouts
the same way. Runs on two CPU cores without a network.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import torch

import transferqueue as tq
from controller.async_ppo import (
    PROMPTS,
    TRAIN,
    WEIGHTS,
    AsyncPpoConfig,
    AsyncPpoDriver,
    StepReport,
)
from examples.reporting.bytes_table import print_bytes_table, stage_traffic
from examples.reporting.curves import save_curves
from examples.reporting.metrics_file import MetricsFile
from examples.reporting.progress import progress
from examples.tiny.recipe import Recipe, role_factories, warm_up_to_file
from examples.tiny.tasks import TASKS
from workers.ray_roles import RayRoles, start_role
from workers.stage_runner import StageLoop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NUM_ROLLOUTS = 2
BUDGET_BYTES = 256 << 20

LOOP = (
    ("rollout-0", ("raw_prompt", "reward_model", "uid", "prompts", "responses", "input_ids",
                   "attention_mask", "position_ids", "response_mask", "rollout_log_probs")),
    ("reward", ("rm_scores",)),
    ("reference", ("ref_log_prob",)),
    ("actor", ("old_log_probs", "entropys")),
    ("critic", ("values",)),
    ("critic", ("token_level_rewards", "advantages", "returns")),
    ("critic", ()),
    ("actor", ()),
)  # fmt: skip
"""Who is called in one update, and the fields that it adds, as the whole batch would grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    steps: int
    seed: int
    task: str
    out: Path
    metrics: Path
    plain: bool


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=100, help="PPO updates (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", choices=sorted(TASKS), default="addition")
    parser.add_argument("--out", type=Path, help="folder for curves.png and metrics.jsonl")
    parser.add_argument("--metrics", type=Path, help="JSON lines, one an update")
    parser.add_argument("--plain", action="store_true", help="a line an update, no live display")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error(f"--steps must be at least 1, got {given.steps}")
    out = given.out or Path("runs") / f"{given.task}-seed{given.seed}"
    return Options(
        steps=given.steps,
        seed=given.seed,
        task=given.task,
        out=out,
        metrics=given.metrics or out / "metrics.jsonl",
        plain=given.plain,
    )


@contextmanager
def ray_runtime() -> Iterator[None]:
    """A Ray of our own on this machine, gone when the block ends."""
    root = str(Path(__file__).resolve().parents[1])
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=80 << 20,
        runtime_env={
            "env_vars": {
                "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
                "OMP_NUM_THREADS": "1",
            }
        },
    )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def role_actors(address: str, recipe: Recipe, weights: Path) -> Iterator[dict[str, Any]]:
    """One Ray actor for each process of the run, their roles made and ready."""
    factories = role_factories(recipe, weights, num_rollouts=NUM_ROLLOUTS)
    actors = {name: start_role(name, address, make) for name, make in factories.items()}
    try:
        ray.get([actor.ready.remote() for actor in actors.values()])
        yield actors
    finally:
        try:
            ray.get([actor.close.remote() for actor in actors.values()], timeout=10)
        except ray.exceptions.RayError:
            print("a role did not close in time; it ends with Ray", file=sys.stderr)


def start_streaming(actors: dict[str, Any], recipe: Recipe) -> list[Any]:
    """The stages that claim samples by themselves; returns their actors."""
    rollout = StageLoop(
        task="rollout",
        partition=PROMPTS,
        batch_rows=recipe.rollout_rows,
        target_partition=TRAIN,
        carries=("reward_model", "uid"),
        tag_fields={"group": "uid"},
    )
    reward = StageLoop(task="reward", partition=TRAIN, batch_rows=recipe.stage_rows)
    reference = StageLoop(task="reference", partition=TRAIN, batch_rows=recipe.stage_rows)
    rollouts = [actors[f"rollout-{index}"] for index in range(NUM_ROLLOUTS)]
    started = [
        actor.serve.remote("rollout", "generate_sequences", rollout, WEIGHTS) for actor in rollouts
    ]
    started.append(actors["reward"].serve.remote("reward", "compute_scores", reward))
    started.append(actors["reference"].serve.remote("reference", "compute_ref_log_prob", reference))
    ray.get(started)
    return [*rollouts, actors["reward"], actors["reference"]]


def train(options: Options, recipe: Recipe, weights: Path) -> None:
    config = AsyncPpoConfig(num_steps=options.steps, batch_rows=recipe.batch_rows)
    metrics = MetricsFile(options.metrics)
    reports: list[StepReport] = []
    with (
        ray_runtime(),
        tq.serve(shards=2, budget_bytes=BUDGET_BYTES) as service,
        tq.connect(service.address) as client,
        role_actors(service.address, recipe, weights) as actors,
    ):
        hosted = {
            "actor": actors["actor"],
            "evaluation": actors["actor"],
            "critic": actors["critic"],
            "advantages": actors["critic"],
            "scores": actors["critic"],
        }
        roles = RayRoles(hosted)
        driver = AsyncPpoDriver(client, roles, recipe.prompts(), config)
        driver.create_partitions()
        roles.watch(start_streaming(actors, recipe))
        first_accuracy = driver.evaluate()
        print(f"held-out accuracy after the warm-up: {first_accuracy:.1%}", flush=True)
        started_s = time.monotonic()
        with progress(options.steps, plain=options.plain) as shown:
            for report in driver.run():
                reports.append(report)
                stage_bytes = fetched_by_stage(actors)
                shown.show(report, stage_bytes)
                metrics.write(
                    report,
                    seconds=time.monotonic() - started_s,
                    **{f"fetched_bytes/{name}": value for name, value in stage_bytes.items()},
                )
        spent_s = time.monotonic() - started_s
        wire = client.wire_bytes()
        by_process = ray.get([actor.report.remote() for actor in actors.values()])
        traffic = dict(zip(actors, by_process, strict=True))
    last = next(r.held_out_accuracy for r in reversed(reports) if r.held_out_accuracy is not None)
    save_curves(
        reports,
        first_accuracy=first_accuracy,
        title=f"{options.task}, seed {options.seed}: asynchronous PPO on handles",
        path=options.out / "curves.png",
    )
    print(
        f"held-out accuracy {first_accuracy:.1%} -> {last:.1%} "
        f"({(last - first_accuracy) * 100:+.1f} points) in {spent_s:.0f} s of PPO, "
        f"{options.steps} updates; largest staleness "
        f"{max(report.staleness_max for report in reports)} of {config.max_staleness} allowed"
    )
    print_bytes_table(
        stage_traffic(traffic, LOOP),
        controller_bytes=wire["sent"] + wire["received"],
        handle_bytes=driver.handle_bytes,
        num_steps=options.steps,
    )
    print(f"curves: {options.out / 'curves.png'}   metrics: {options.metrics}")


def fetched_by_stage(actors: dict[str, Any]) -> dict[str, int]:
    """Bytes that each process has got from the service so far."""
    reports = ray.get([actor.report.remote() for actor in actors.values()])
    return {
        name: sum(field["got_bytes"] for field in report["fields"].values())
        for name, report in zip(actors, reports, strict=True)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    options.metrics.parent.mkdir(parents=True, exist_ok=True)
    recipe = Recipe(task=options.task, seed=options.seed)
    torch.set_num_threads(1)
    print("warm-up: a few supervised steps from random weights…", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "warm-up.pt"
        warm = warm_up_to_file(recipe, weights)
        print(f"warm-up: {warm.num_steps} steps in {warm.duration_s:.0f} s", flush=True)
        try:
            train(options, recipe, weights)
        except KeyboardInterrupt:
            print("interrupted; everything that was started has been stopped", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
