"""One step of three stages, dispatched in three ways: what each of them moves and takes.

    python -m examples.dispatch_modes

``compute_log_prob``, ``compute_values`` and ``update_actor`` on Ray actors. By `Dispatch.HANDLE`
the controller passes a handle and workers fetch the fields they read; by ``DP_COMPUTE_PROTO`` it
passes whole batches, as verl's mode of that name does, which is measured too where verl is
installed. The stages do a few passes over what they read; what those take on data that is there
already is measured and taken off, so that the rest is the time of moving data.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import transferqueue as tq
from examples.counts import at_least_one
from examples.hosting import ray_runtime
from examples.reporting.mode_chart import print_modes, save_modes
from examples.reporting.mode_figures import ModeFigures, StepFigures, resident_bytes
from examples.stages.plain import StageWorker
from workers import RayWorkerGroup, ResourcePool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    workers: int
    rows: int
    prompt: int
    response: int
    steps: int
    out: Path | None


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--workers", type=at_least_one, default=2, help="data-parallel ranks (default: 2)"
    )
    parser.add_argument("--rows", type=at_least_one, default=256, help="samples of a step")
    parser.add_argument("--prompt", type=at_least_one, default=128, help="tokens of a prompt")
    parser.add_argument("--response", type=at_least_one, default=1024, help="tokens of a response")
    parser.add_argument("--steps", type=at_least_one, default=5, help="measured steps of each mode")
    parser.add_argument("--out", type=Path, help="a PNG of the figures")
    return Options(**vars(parser.parse_args(arguments)))


def make_batch(options: Options) -> dict[str, Any]:
    """What rollouts, reward and advantages leave behind, as verl lays it out."""
    rows, prompt, response = options.rows, options.prompt, options.response
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
        "token_level_scores": torch.zeros(rows, response),
        "token_level_rewards": torch.zeros(rows, response),
        "advantages": torch.randn(rows, response),
        "returns": torch.randn(rows, response),
        "uid": np.array([f"prompt-{row // 8}" for row in range(rows)], dtype=object),
    }


def stage_seconds(options: Options) -> float:
    """What the stages of a step take without any moving of data, on as many ranks at once."""
    with ResourcePool([options.workers]) as pool, RayWorkerGroup(pool, StageWorker) as group:
        rows = -(-options.rows // options.workers)
        return float(max(group.seconds_of_a_step(rows, options.prompt, options.response)))


def by_handle(options: Options, batch: dict[str, Any]) -> ModeFigures:
    """Workers fetch and put fields; the controller passes handles."""
    with (
        tq.serve(budget_bytes=1 << 30) as service,
        tq.connect(service.address) as client,
        ResourcePool([options.workers]) as pool,
        RayWorkerGroup(pool, StageWorker, service=service) as group,
    ):

        def step(handle: tq.BatchHandle) -> None:
            old = group.compute_log_prob(handle)
            joined = group.compute_values(old)
            group.update_actor(joined)

        def wire_bytes() -> int:
            counts = [*group.wire_bytes(), client.wire_bytes()]
            return sum(count["sent"] + count["received"] for count in counts)

        figures = measure(
            "HANDLE",
            options,
            step,
            make=lambda: client.put(batch, partition="train"),
            clear=client.clear,
            controller_bytes=lambda: group.report().controller_bytes,
            wire_bytes=wire_bytes,
        )
        report = group.report()
        figures.moved_bytes = (report.read_bytes + report.written_bytes) // (options.steps + 1)
        print(report, end="\n\n")
        return figures


def by_proto(options: Options, batch: dict[str, Any]) -> ModeFigures:
    """The same worker, whole batches through the controller."""
    with (
        ResourcePool([options.workers]) as pool,
        RayWorkerGroup(pool, StageWorker, fat=True) as group,
    ):

        def step(data: tq.DataProto) -> None:
            old = group.compute_log_prob(data)
            values = group.compute_values(data.union(old))
            group.update_actor(data.union(values))

        return measure(
            "DP_COMPUTE_PROTO",
            options,
            step,
            make=lambda: tq.DataProto.from_single_dict(batch),
            controller_bytes=lambda: group.report().controller_bytes,
        )


def by_verl(options: Options, batch: dict[str, Any]) -> ModeFigures:
    """verl's own workers, groups and batches."""
    from examples.stages.verl_stages import VerlSteps

    with VerlSteps(options.workers) as steps:
        return measure(
            "verl's own",
            options,
            steps.step,
            make=lambda: tq.DataProto.from_single_dict(batch).to_verl(),
            controller_bytes=lambda: steps.controller_bytes,
        )


def measure(
    name: str,
    options: Options,
    step: Callable[[Any], None],
    *,
    make: Callable[[], Any],
    controller_bytes: Callable[[], int],
    wire_bytes: Callable[[], int] | None = None,
    clear: Callable[[Any], Any] = lambda made: None,
) -> ModeFigures:
    """One step to warm up, then those that count. Making and clearing a batch is not timed."""
    figures = ModeFigures(name=name)
    before_bytes = resident_bytes()
    for number in range(options.steps + 1):
        made = make()
        counted = controller_bytes(), wire_bytes() if wire_bytes else 0
        started_s = time.perf_counter()
        step(made)
        seconds = time.perf_counter() - started_s
        through = controller_bytes() - counted[0]
        # What goes through the controller goes through Ray's object store, twice.
        wire = wire_bytes() - counted[1] if wire_bytes else through
        clear(made)
        if number:
            figures.steps.append(
                StepFigures(seconds=seconds, controller_bytes=through, wire_bytes=wire)
            )
        figures.resident_bytes = max(figures.resident_bytes, resident_bytes() - before_bytes)
    figures.moved_bytes = int(statistics.median(one.controller_bytes for one in figures.steps))
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(1)
    batch = make_batch(options)
    batch_bytes = sum(column.nbytes for column in batch.values())
    modes = [by_handle, by_proto]
    if importlib.util.find_spec("verl") is not None:
        modes.append(by_verl)
    with ray_runtime(
        num_cpus=options.workers * 3, object_store_bytes=max(200 << 20, 12 * batch_bytes)
    ):
        computing_s = stage_seconds(options)
        figures = [mode(options, batch) for mode in modes]
    print(
        f"{options.rows} samples of {options.prompt} + {options.response} tokens, "
        f"{batch_bytes / 2**20:.1f} MiB, {options.workers} workers; the stages themselves take "
        f"{computing_s * 1e3:.1f} ms a step"
    )
    print_modes(figures, computing_s=computing_s)
    if options.out is not None:
        save_modes(figures, options.out, computing_s=computing_s)


if __name__ == "__main__":
    main()
