"""A small transformer learns by PPO; the controller moves handles only.

    python -m examples.async_ppo

Rollouts, reward, reference, critic and actor are processes (Ray actors by default). They fetch from
the storage service the fields that they read and put those that they write; weights go from the
actor to the rollouts the same way. Runs on two CPU cores without a network.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

import transferqueue as tq
from controller.advantage_stage import Algorithm
from controller.checkpoints import CheckpointFolder
from controller.driver import PpoDriver
from controller.driver_config import DriverConfig, Mode, Transport
from controller.timeline import chrome_trace
from examples.hosting import KINDS, hosted
from examples.reporting.bytes_table import print_bytes_table, stage_traffic
from examples.reporting.curves import save_curves
from examples.reporting.metrics_file import MetricsFile
from examples.reporting.progress import progress
from examples.reporting.tensorboard import board
from examples.run_file import RunFile
from examples.tiny.recipe import Recipe, role_factories, warm_up_to_file
from examples.tiny.tasks import TASKS
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from controller.step_report import StepReport
    from workers.role_groups import RoleGroups
    from workers.worker import RunningService

RECIPE_OPTIONS = ("task", "algorithm", "seed", "batch_rows", "samples_per_prompt")
DRIVER_OPTIONS = ("num_steps", "mode", "transport", "max_staleness", "checkpoint_every")
NUM_ROLLOUTS = 2
BUDGET_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    recipe: Recipe
    config: DriverConfig
    out: Path
    metrics: Path
    plain: bool
    host: str
    resume: bool
    service: str | None
    with_tensorboard: bool


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="a TOML file; see examples/run_file.py")
    add("--steps", type=int, dest="num_steps", help="PPO updates (default: 100)")
    add("--seed", type=int, help="(default: 0)")
    add("--task", help=f"{' or '.join(sorted(TASKS))} (default: addition)")
    add("--mode", help=f"{', '.join(Mode)} (default: {Mode.FULLY_ASYNC})")
    add("--algorithm", help=f"{', '.join(Algorithm)} (default: {Algorithm.GAE})")
    add("--transport", help=f"{' or '.join(Transport)} (default: {Transport.HANDLES})")
    add("--max-staleness", type=int, help="versions, of a sample's oldest token (default: 2)")
    add("--batch-rows", type=int, help="samples of one update (default: 512)")
    add("--samples-per-prompt", type=int, help="(default: 4 where an algorithm compares, else 1)")
    add("--checkpoint-every", type=int, metavar="N", help="updates (default: 0, no checkpoints)")
    add("--host", choices=KINDS, default="ray", help="where the roles run (default: ray)")
    add("--service", metavar="ADDRESS", help="a running service, instead of one of this process")
    add("--resume", action="store_true", help="go on from the newest checkpoint under --out")
    add("--out", type=Path, help="folder for curves, metrics, timeline and checkpoints")
    add("--metrics", type=Path, help="JSON lines, one an update")
    add("--tensorboard", action="store_true", help="event files under --out as well")
    add("--plain", action="store_true", help="a line an update, no live display")
    given = parser.parse_args(arguments)
    try:
        written = RunFile() if given.config is None else RunFile.read(given.config)
        recipe = Recipe.from_mapping(over(written.recipe, given, RECIPE_OPTIONS))
        config = driver_config(recipe, over(written.driver, given, DRIVER_OPTIONS))
    except ConfigError as error:
        parser.error(str(error))
    out = given.out or Path("runs") / f"{recipe.task}-seed{recipe.seed}"
    return Options(
        recipe=recipe,
        config=config,
        out=out,
        metrics=given.metrics or out / "metrics.jsonl",
        plain=given.plain,
        host=given.host,
        resume=given.resume,
        service=given.service,
        with_tensorboard=given.tensorboard,
    )


def over(
    written: Mapping[str, Any], given: argparse.Namespace, names: Sequence[str]
) -> dict[str, Any]:
    """What the file says, and over it what the command line does."""
    said = {name: getattr(given, name) for name in names}
    return {**written, **{name: value for name, value in said.items() if value is not None}}


def driver_config(recipe: Recipe, settings: Mapping[str, Any]) -> DriverConfig:
    """What the recipe leaves open. ``ConfigError`` also for what follows from the recipe."""
    rows = {"prompts_per_step", "samples_per_prompt", "stage_rows"}
    for name in rows & settings.keys():
        raise ConfigError(f"driver setting {name!r} follows from the recipe: set its rows there")
    every = {"num_steps": 100, "mode": Mode.FULLY_ASYNC.value, "lease_s": 20.0, **settings}
    checked = DriverConfig.from_mapping({**every, "prompts_per_step": 1})
    return recipe.driver_config(**{name: getattr(checked, name) for name in every})


@contextmanager
def data_plane(address: str | None) -> Iterator[tuple[RunningService | str, tq.Client]]:
    """A service of this process, or the one at ``address``, and a client of it."""
    if address is not None:
        with tq.connect(address) as client:
            yield address, client
        return
    with (
        tq.serve(shards=2, budget_bytes=BUDGET_BYTES) as service,
        tq.connect(service.address) as client,
    ):
        yield service, client


def train(options: Options, weights: Path) -> None:
    recipe, config = options.recipe, options.config
    factories = role_factories(recipe, weights, num_rollouts=NUM_ROLLOUTS)
    reports: list[StepReport] = []
    with (
        data_plane(options.service) as (service, client),
        hosted(options.host, factories, service) as roles,
        PpoDriver(
            client,
            roles,
            recipe.prompts(),
            recipe.settings.dataflow(),
            config,
            checkpoints=CheckpointFolder(options.out / "checkpoints"),
            about={"task": recipe.task, "algorithm": recipe.algorithm.value, "seed": recipe.seed},
        ) as driver,
    ):
        first_accuracy = driver.evaluate()
        print(f"held-out accuracy after the warm-up: {first_accuracy:.1%}", flush=True)
        started_s = time.monotonic()
        with (
            progress(config.num_steps, plain=options.plain) as shown,
            board(options.out if options.with_tensorboard else None) as events,
        ):
            metrics = MetricsFile(options.metrics, keep_before=options.resume)
            for report in driver.run(resume=options.resume):
                reports.append(report)
                fetched = fetched_by_process(roles)
                shown.show(report, fetched)
                more = {f"fetched_bytes/{name}": value for name, value in fetched.items()}
                metrics.write(report, seconds=time.monotonic() - started_s, **more)
                events.write(report, more)
        spent_s = time.monotonic() - started_s
        wire = client.wire_bytes()
        traffic = roles.reports()
        trace = chrome_trace(roles.spans())
    if not reports:
        print(f"all {config.num_steps} updates had been done before")
        return
    (options.out / "timeline.json").write_text(json.dumps(trace))
    summarize(options, reports, first_accuracy, spent_s)
    print_bytes_table(
        stage_traffic(recipe.settings.dataflow(), traffic),
        controller_bytes=wire["sent"] + wire["received"],
        batch_bytes=sum(report.batch_bytes for report in reports),
        num_steps=len(reports),
    )
    print(
        f"curves: {options.out / 'curves.png'}   metrics: {options.metrics}   "
        f"timeline for ui.perfetto.dev: {options.out / 'timeline.json'}"
    )


def fetched_by_process(roles: RoleGroups) -> dict[str, int]:
    """Bytes that each process has got from the service so far."""
    return {
        name: sum(field["got_bytes"] for field in report["fields"].values())
        for name, report in roles.reports().items()
    }


def summarize(
    options: Options, reports: Sequence[StepReport], first_accuracy: float, spent_s: float
) -> None:
    """The curves, and what they come to."""
    recipe, config = options.recipe, options.config
    title = (
        f"{recipe.task}, seed {recipe.seed}: {recipe.algorithm.value}, {config.mode.value}, "
        f"{config.transport.value}"
    )
    path = options.out / "curves.png"
    save_curves(reports, first_accuracy=first_accuracy, title=title, path=path)
    last = next(
        (r.held_out_accuracy for r in reversed(reports) if r.held_out_accuracy is not None),
        first_accuracy,
    )
    first_token = [r.first_token_s for r in reports if r.first_token_s is not None]
    print(
        f"held-out accuracy {first_accuracy:.1%} -> {last:.1%} "
        f"({(last - first_accuracy) * 100:+.1f} points) in {spent_s:.0f} s of PPO, "
        f"{len(reports)} updates; largest staleness {max(r.staleness_max for r in reports)} of "
        f"{config.staleness_bound} allowed"
        + (f"; first token {median(first_token):.2f} s after a publish" if first_token else "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    options.metrics.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    print("warm-up: a few supervised steps from random weights…", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "warm-up.pt"
        warm = warm_up_to_file(options.recipe, weights)
        print(f"warm-up: {warm.num_steps} steps in {warm.duration_s:.0f} s", flush=True)
        try:
            train(options, weights)
        except KeyboardInterrupt:
            print("interrupted; everything that was started has been stopped", file=sys.stderr)
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
