"""The modes of the driver on equal work, with stragglers: who waits for whom, and what it costs.

    python -m examples.compare_modes

The task has answers of very different lengths: exponential, as ServeGen (arXiv:2505.09999) finds
the output lengths of language models in production to be. A rollout takes a fixed time for each
column of tokens, as a serving engine does, so a batch takes as long as its longest answer. All
modes start from the same warm-up, see as many samples and make as many updates; the time is taken
until each has the accuracy (the mean of three evaluations) that all of them reach. Weights are kept
and evaluated when a run is over, as rollouts would get ahead meanwhile. Writes a table and
``modes.png``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import transferqueue as tq
from controller.driver import PpoDriver
from controller.driver_config import DriverConfig, Mode
from controller.timeline import busy_time, chrome_trace
from examples.counts import at_least_one
from examples.hosting import hosted
from examples.reporting.comparison import (
    ModeRun,
    Point,
    first_batch_at_s,
    print_comparison,
    print_seeds,
    save_comparison,
)
from examples.tiny.recipe import Recipe, role_factories, warm_up_to_file
from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from controller.step_report import StepReport

TRAINERS = ("actor", "critic")

EVALUATE_EVERY = 2
"""Updates."""

# Half the learning rate that suits `addition`: at 1e-3 what is learnt from samples two versions old
# went back and forth, and fully_async came to 58 to 67 % where sync came to 72 to 75 %.
RECIPE = Recipe(
    task="spelling",
    batch_rows=128,
    minibatch_rows=64,
    epochs=2,
    slots=256,
    segment_tokens=4,
    stage_rows=64,
    actor_learning_rate=5e-4,
    values_stream=False,
    warmup_accuracy=0.2,
    held_out_problems=256,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    steps: int
    seeds: tuple[int, ...]
    modes: tuple[Mode, ...]
    token_s: float
    max_staleness: int
    updates_ahead: float
    rollouts: int
    host: str
    out: Path


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    every = [mode.value for mode in Mode]
    add("--steps", type=at_least_one, default=40, help="updates of each run (default: 40)")
    add("--seeds", type=int, nargs="+", default=[0], help="one run of each mode a seed")
    add("--modes", nargs="+", choices=every, default=every)
    add("--token-s", type=float, default=0.06, help="seconds a column of tokens (default: 0.06)")
    add("--max-staleness", type=int, default=10, help="of fully_async (default: 10)")
    add("--updates-ahead", type=float, default=3.0, help="of fully_async (default: 3)")
    add("--rollouts", type=at_least_one, default=2, help="processes that generate (default: 2)")
    add("--host", choices=["processes", "ray"], default="processes")
    add("--out", type=Path, default=Path("runs") / "modes")
    given = parser.parse_args(arguments)
    options = Options(
        steps=given.steps,
        seeds=tuple(given.seeds),
        modes=tuple(Mode(mode) for mode in given.modes),
        token_s=given.token_s,
        max_staleness=given.max_staleness,
        updates_ahead=given.updates_ahead,
        rollouts=given.rollouts,
        host=given.host,
        out=given.out,
    )
    try:
        for mode in options.modes:
            driver_config(mode, options)
        for seed in options.seeds:
            replace(RECIPE, token_s=options.token_s, seed=seed)
    except ConfigError as error:
        parser.error(str(error))
    return options


def driver_config(mode: Mode, options: Options) -> DriverConfig:
    return RECIPE.driver_config(
        num_steps=options.steps,
        mode=mode,
        max_staleness=options.max_staleness,
        updates_ahead=options.updates_ahead,
        evaluate_every=0,
    )


def run_mode(mode: Mode, recipe: Recipe, weights: Path, options: Options) -> ModeRun:
    """One run from the warm-up's weights."""
    config = driver_config(mode, options)
    factories = role_factories(recipe, weights, num_rollouts=options.rollouts)
    reports: list[StepReport] = []
    kept_at_s = [0.0]
    with (
        tq.serve(shards=2, budget_bytes=256 << 20) as service,
        tq.connect(service.address) as client,
        hosted(options.host, factories, service) as roles,
        PpoDriver(client, roles, recipe.prompts(), recipe.settings.dataflow(), config) as driver,
    ):
        roles.call("evaluation", "keep").get()
        roles.spans()  # from here on
        started_at_s = time.time()
        for report in driver.run():
            reports.append(report)
            if report.step % EVALUATE_EVERY == 0 or report.step == options.steps:
                kept_at_s.append(time.time() - started_at_s)
                roles.call("evaluation", "keep")  # before the actor's next call
        ended_at_s = time.time()
        spans = roles.spans()
        accuracies = roles.call("evaluation", "kept_accuracies").get()
    path = options.out / f"timeline-{mode.value}-seed{recipe.seed}.json"
    path.write_text(json.dumps(chrome_trace(spans)))
    work = [span for name in TRAINERS for span in spans.get(name, ())]
    return ModeRun(
        mode=mode.value,
        seed=recipe.seed,
        points=tuple(
            Point(seconds=seconds, accuracy=accuracy)
            for seconds, accuracy in zip(kept_at_s, accuracies, strict=True)
        ),
        reports=tuple(reports),
        seconds=ended_at_s - started_at_s,
        trainer_busy_s=busy_time(work, started_at_s, ended_at_s).busy_s,
        idle_share_at_work=busy_time(work, first_batch_at_s(work), ended_at_s).idle_share,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    runs: list[ModeRun] = []
    for seed in options.seeds:
        recipe = replace(RECIPE, seed=seed, token_s=options.token_s)
        with tempfile.TemporaryDirectory() as folder:
            weights = Path(folder) / "warm-up.pt"
            warm = warm_up_to_file(recipe, weights)
            print(f"seed {seed}: warm-up to {warm.accuracy:.0%} in {warm.num_steps} steps")
            for mode in options.modes:
                runs.append(run_mode(mode, recipe, weights, options))
                print(f"  {mode.value}: {runs[-1].seconds:.0f} s", flush=True)
    lines = [
        asdict(report) | {"mode": r.mode, "seed": r.seed} for r in runs for report in r.reports
    ]
    (options.out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print_comparison(runs)
    print_seeds(runs)
    save_comparison(runs, options.out / "modes.png")
    print(f"picture: {options.out / 'modes.png'}   timelines: {options.out}/timeline-*.json")


if __name__ == "__main__":
    main()
