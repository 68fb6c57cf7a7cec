"""The times as a picture: a row of dots a measurement, on a log scale, so a ratio is a distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

from tests.benchmarks.report import Unit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.report import Report, Row

STYLES = {
    "ours": ("o", "#c1121f", 90),
    "ours, 4 KiB pages": ("*", "#c1121f", 90),
    "ours, unencrypted": ("*", "#e5989b", 90),
    "ours, tcp": ("o", "#e5989b", 55),
    "ours, ipc": ("o", "#f4a261", 55),
    "ours, eager": ("o", "#e9c46a", 55),
    "verl": ("P", "#6a4c93", 55),
    "Ascend TQ": ("s", "#1d3557", 60),
    "Ray, tensors": ("^", "#2a9d8f", 55),
    "Ray, numpy": ("v", "#2a9d8f", 55),
    "Redis": ("D", "#8d6a9f", 45),
    "raw ZMQ": ("x", "#6c757d", 50),
    "ZMQ + CURVE": ("1", "#6c757d", 70),
    "raw socket": ("+", "#6c757d", 70),
    "memory": ("|", "#000000", 220),
}
"""Marker, colour and size of each system."""


def save_plot(report: Report, path: Path) -> None:
    """Rows of seconds with somebody beside us: one line, one mark a system, left is better."""
    rows = [row for row in report.rows if _is_compared(row)]
    figure, axes = plt.subplots(figsize=(11, 1.6 + 0.42 * len(rows)), layout="constrained")
    for height, row in enumerate(reversed(rows)):
        _draw(axes, row, height)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [_label(row) for row in reversed(rows)])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xlabel("seconds, median, log scale (left is better; each grid line is 10 times)")
    axes.grid(axis="x", which="major", color="#dddddd")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    machine = report.machine
    axes.set_title(
        f"{machine['cpu']}, {machine['cores']} cores; load {machine['load_average_before']}",
        loc="left",
        fontsize=9,
        color="#555555",
    )
    _legend(figure, axes, rows)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _is_compared(row: Row) -> bool:
    others = [label for label in STYLES if not label.startswith("ours")]
    return (
        row.unit is Unit.SECONDS
        and bool(row.number("ours"))
        and any(row.number(label) for label in others)
    )


def _draw(axes: plt.Axes, row: Row, height: int) -> None:
    numbers = {
        label: number for label in STYLES if (number := row.number(label)) is not None and number
    }
    axes.plot(
        [min(numbers.values()), max(numbers.values())], [height, height], color="#eeeeee", zorder=1
    )
    for label, number in numbers.items():
        marker, colour, size = STYLES[label]
        axes.scatter(number, height, marker=marker, color=colour, s=size, zorder=3)


def _label(row: Row) -> str:
    return f"{row.workload}: {row.what}"


def _legend(figure: plt.Figure, axes: plt.Axes, rows: list[Row]) -> None:
    shown = [label for label in STYLES if any(row.number(label) for row in rows)]
    for label in shown:
        marker, colour, size = STYLES[label]
        axes.scatter([], [], marker=marker, color=colour, s=size, label=label)
    figure.legend(loc="outside upper center", ncols=min(6, len(shown)), frameon=False)
