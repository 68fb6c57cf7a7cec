"""The figures of several dispatch modes as a table and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from examples.reporting.mode_figures import ModeFigures

MIB = 2**20


def print_modes(modes: Sequence[ModeFigures], *, computing_s: float) -> None:
    """Medians of a step; the ratio is of moving, to the first mode."""
    headings = ("mode", "ms", "ms moving", "ratio", "KiB through controller", "MiB copied",
                "MiB to and from workers", "MiB controller RSS")  # fmt: skip
    table = Table(title="One step of three stages", title_justify="left")
    for heading in headings:
        is_mode = heading == "mode"
        table.add_column(heading, justify="left" if is_mode else "right", no_wrap=is_mode)
    for mode in modes:
        moving_s = mode.moving_seconds(computing_s)
        table.add_row(
            mode.name,
            f"{mode.seconds * 1e3:.1f}",
            f"{moving_s * 1e3:.1f}",
            f"{moving_s / modes[0].moving_seconds(computing_s):.1f} ×",
            f"{mode.controller_bytes / 1024:,.1f}",
            f"{mode.wire_bytes / MIB:.2f}",
            f"{mode.moved_bytes / MIB:.1f}",
            f"+{mode.resident_bytes / MIB:.1f}",
        )
    console = Console()
    Console(width=max(console.width, 110)).print(table)


def save_modes(modes: Sequence[ModeFigures], path: Path, *, computing_s: float) -> None:
    """Four bars a mode, on scales of their own."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = {
        "ms a step, moving data": [mode.moving_seconds(computing_s) * 1e3 for mode in modes],
        "KiB through the controller": [mode.controller_bytes / 1024 for mode in modes],
        "MiB copied": [mode.wire_bytes / MIB for mode in modes],
        "MiB controller memory": [mode.resident_bytes / MIB for mode in modes],
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(12, 3.2), layout="constrained")
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        bars = axis.bar([mode.name for mode in modes], values, color=["C0", "C1", "C3"])
        axis.bar_label(bars, [f"{v:,.0f}" if v >= 100 else f"{v:.2g}" for v in values])
        axis.set_yscale("symlog", linthresh=1)
        axis.set_ylim(bottom=0, top=max(values) * 3 + 1)
        axis.set_title(title)
        axis.tick_params(axis="x", labelrotation=20)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
