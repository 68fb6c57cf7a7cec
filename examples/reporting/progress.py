"""A live display of a run, or plain lines where there is no terminal."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from controller.step_report import StepReport


class Progress(Protocol):
    """Shows one update after another."""

    def show(self, report: StepReport, stage_bytes: dict[str, int]) -> None: ...


class PlainProgress:
    """One line an update."""

    def show(self, report: StepReport, stage_bytes: dict[str, int]) -> None:
        accuracy = report.held_out_accuracy
        print(
            f"step {report.step:3d}  reward {report.reward:.3f}  "
            f"held-out {'  -  ' if accuracy is None else f'{accuracy:5.1%}'}  "
            f"staleness {report.staleness_mean:.2f} (max {report.staleness_max})  "
            f"{report.samples_per_s:5.0f} samples/s  "
            f"fetched {sum(stage_bytes.values()) / 2**20:.1f} MiB",
            flush=True,
        )


class LiveProgress:
    """A panel that is redrawn in place."""

    def __init__(self, live: Live, num_steps: int) -> None:
        self._live = live
        self._num_steps = num_steps
        self._accuracy = 0.0

    def show(self, report: StepReport, stage_bytes: dict[str, int]) -> None:
        if report.held_out_accuracy is not None:
            self._accuracy = report.held_out_accuracy
        table = Table.grid(padding=(0, 2))
        table.add_row("step", f"{report.step} of {self._num_steps}")
        table.add_row("", ProgressBar(total=self._num_steps, completed=report.step, width=40))
        table.add_row("reward", f"{report.reward:.3f}")
        table.add_row("held-out accuracy", f"{self._accuracy:.1%}")
        table.add_row(
            "staleness",
            f"mean {report.staleness_mean:.2f}, max {report.staleness_max}, "
            f"{report.stale_rows_dropped} samples dropped as too old, "
            f"{report.generations_resumed} generations went on under newer weights",
        )
        table.add_row("samples/s", f"{report.samples_per_s:.0f}")
        table.add_row("waited for samples", f"{report.wait_s:.2f} of {report.step_s:.2f} s")
        for stage, num_bytes in stage_bytes.items():
            table.add_row(f"fetched by {stage}", f"{num_bytes / 2**20:.1f} MiB")
        self._live.update(table)


@contextmanager
def progress(num_steps: int, *, plain: bool) -> Iterator[Progress]:
    """The display for as long as the block runs."""
    console = Console()
    if plain or not console.is_terminal:
        yield PlainProgress()
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield LiveProgress(live, num_steps)
