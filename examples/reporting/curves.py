"""The curves of a run as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from controller.step_report import StepReport


def save_curves(
    reports: Sequence[StepReport], *, first_accuracy: float, title: str, path: Path
) -> None:
    """Reward and held-out accuracy, staleness, and time, by update."""
    from matplotlib.figure import Figure  # not imported by the processes of the roles

    steps = [report.step for report in reports]
    evaluated = [(0, first_accuracy)] + [
        (report.step, report.held_out_accuracy)
        for report in reports
        if report.held_out_accuracy is not None
    ]
    figure = Figure(figsize=(8, 8), layout="constrained")  # no display, no global state
    learning, staleness, time = figure.subplots(3, 1, sharex=True, height_ratios=[2, 1, 1])
    learning.plot(steps, [report.reward for report in reports], color="0.6", label="reward")
    learning.plot(*zip(*evaluated, strict=True), "o-", color="C0", label="held-out accuracy")
    learning.axhline(first_accuracy, color="C0", linestyle=":", label="after warm-up")
    learning.set_ylim(0, 1)
    learning.set_ylabel("share right")
    learning.legend(loc="lower right")
    learning.set_title(title)
    staleness.step(steps, [r.staleness_max for r in reports], color="C3", label="max")
    staleness.plot(steps, [r.staleness_mean for r in reports], color="C1", label="mean")
    staleness.set_ylabel("staleness\n(versions)")
    staleness.set_ylim(bottom=0)
    staleness.legend(loc="upper right")
    busy = [report.step_s - report.wait_s for report in reports]
    time.stackplot(
        steps,
        busy,
        [report.wait_s for report in reports],
        labels=["training", "waiting for samples"],
        colors=["C2", "0.8"],
    )
    time.set_ylabel("seconds\nan update")
    time.set_xlabel("update")
    time.legend(loc="upper right")
    figure.savefig(path, dpi=120)
