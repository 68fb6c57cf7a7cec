"""Several modes on equal work: a table and a picture."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from controller.step_report import StepReport
    from workers.spans import Span


WINDOW = 3
"""Evaluations that make one figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An evaluation."""

    seconds: float
    """Since the run began."""
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeRun:
    """One run of one mode."""

    mode: str
    seed: int
    points: tuple[Point, ...]
    reports: tuple[StepReport, ...]
    seconds: float
    """From the start of the streams to the end of the last update."""
    trainer_busy_s: float
    """Time in which actor or critic had a stage at work or published."""
    idle_share_at_work: float
    """As `idle_share`, of the time since the trainer had its first batch: what a longer run comes
    nearer to."""

    @property
    def wait_share(self) -> float:
        """Share of the run in which the trainer had no batch to train on."""
        return sum(report.wait_s for report in self.reports) / self.seconds

    @property
    def idle_share(self) -> float:
        """Share of the run in which neither actor nor critic was at work."""
        return max(0.0, 1.0 - self.trainer_busy_s / self.seconds)

    @property
    def smoothed(self) -> tuple[Point, ...]:
        """Each evaluation as the mean of itself and up to `WINDOW` - 1 before it. One alone, of 256
        problems, is off by 2 points or more half of the time (binomial, at 65 %)."""
        return tuple(
            Point(
                seconds=self.points[end - 1].seconds,
                accuracy=statistics.mean(
                    point.accuracy for point in self.points[max(0, end - WINDOW) : end]
                ),
            )
            for end in range(1, len(self.points) + 1)
        )

    def seconds_to(self, accuracy: float) -> float | None:
        """Until the smoothed accuracy first was this high."""
        return next((p.seconds for p in self.smoothed if p.accuracy >= accuracy), None)


def first_batch_at_s(work: Sequence[Span]) -> float:
    """When a trainer that did this had its first batch; it publishes before it has any."""
    return min(span.start_s for span in work if not span.name.endswith(".publish"))


def common_accuracy(runs: Sequence[ModeRun]) -> float:
    """The smoothed accuracy that every one of these runs reaches."""
    return min(max(point.accuracy for point in run.smoothed) for run in runs)


def print_seeds(runs: Sequence[ModeRun]) -> None:
    """A line a seed: each mode's time to the same accuracy, to the first mode's."""
    for seed in dict.fromkeys(run.seed for run in runs):
        mine = [run for run in runs if run.seed == seed]
        shares = ", ".join(f"{run.mode} {_ratio(run, runs):.0%}" for run in mine)
        print(f"seed {seed}, time to {common_accuracy(mine):.1%}: {shares}")


def print_comparison(runs: Sequence[ModeRun]) -> None:
    """A row a mode: medians over the seeds. The ratio is of the time to the accuracy that all
    modes of a seed reach."""
    headings = ("mode", "s an update", "s in all", "s to same accuracy", "ratio", "trainer idle",
                "since its 1st batch", "no batch", "staleness mean/max", "dropped", "resumed",
                "accuracy")  # fmt: skip
    table = Table(title=f"Medians of {len({r.seed for r in runs})} seeds", title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    for mode in dict.fromkeys(run.mode for run in runs):
        table.add_row(mode, *_figures([run for run in runs if run.mode == mode], runs))
    Console(width=max(Console().width, 150)).print(table)


def _figures(mine: Sequence[ModeRun], runs: Sequence[ModeRun]) -> list[str]:
    def median(of: Callable[[ModeRun], float]) -> float:
        return statistics.median(map(of, mine))

    last = [report for run in mine for report in run.reports[-1:]]
    return [
        f"{median(lambda run: run.seconds / len(run.reports)):.2f}",
        f"{median(lambda run: run.seconds):.1f}",
        f"{median(lambda run: _to_common(run, runs)):.1f}",
        f"{median(lambda run: _ratio(run, runs)):.0%}",
        f"{median(lambda run: run.idle_share):.0%}",
        f"{median(lambda run: run.idle_share_at_work):.0%}",
        f"{median(lambda run: run.wait_share):.0%}",
        f"{median(lambda run: statistics.mean(r.staleness_mean for r in run.reports)):.2f} / "
        f"{max(r.staleness_max for run in mine for r in run.reports)}",
        f"{statistics.median(r.stale_rows_dropped + r.generations_dropped for r in last):.0f}",
        f"{statistics.median(r.generations_resumed for r in last):.0f}",
        f"{median(lambda run: run.smoothed[-1].accuracy):.1%}",
    ]


def _of_seed(run: ModeRun, runs: Sequence[ModeRun]) -> list[ModeRun]:
    return [other for other in runs if other.seed == run.seed]


def _to_common(run: ModeRun, runs: Sequence[ModeRun]) -> float:
    seconds = run.seconds_to(common_accuracy(_of_seed(run, runs)))
    assert seconds is not None, "every run reaches what all reach"
    return seconds


def _ratio(run: ModeRun, runs: Sequence[ModeRun]) -> float:
    """To the first mode of the same seed."""
    first = _to_common(_of_seed(run, runs)[0], runs)
    return _to_common(run, runs) / first if first else float("nan")


def save_comparison(runs: Sequence[ModeRun], path: Path) -> None:
    """Accuracy by time, and what the trainer did with the time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    learning, time = figure.subplots(1, 2, width_ratios=[3, 2])
    modes = list(dict.fromkeys(run.mode for run in runs))
    for run in runs:
        color = f"C{modes.index(run.mode)}"
        label = run.mode if run.seed == runs[0].seed else None
        learning.plot(
            [point.seconds for point in run.points],
            [point.accuracy for point in run.points],
            ".-",
            color=color,
            label=label,
        )
    learning.set_xlabel("seconds of training")
    learning.set_ylabel("held-out accuracy")
    learning.set_ylim(0, 1)
    learning.legend(loc="lower right")
    for place, mode in enumerate(modes):
        mine = [run for run in runs if run.mode == mode]
        updates = statistics.median(run.seconds / len(run.reports) for run in mine)
        idle = statistics.median(run.idle_share for run in mine)
        time.bar(place, updates * (1 - idle), color=f"C{place}")
        time.bar(place, updates * idle, bottom=updates * (1 - idle), color="0.8")
        time.annotate(f"{idle:.0%} idle", (place, updates), ha="center", va="bottom")
    time.set_xticks(range(len(modes)), modes)
    time.set_ylabel("seconds an update (grey: trainer idle)")
    figure.savefig(path, dpi=120)
