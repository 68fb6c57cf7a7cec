"""The one table, and the figures under it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from tests.benchmarks.report import Cell, Missing, Samples, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

    from tests.benchmarks.report import Figure, Report, Row

WIDTH = 200
COLUMNS = (
    "ours",
    "ours, 4 KiB pages",
    "ours, unencrypted",
    "ours, tcp",
    "ours, ipc",
    "ours, eager",
    "ours, whole batches",
    "verl",
    "Ascend TQ",
    "Ray, tensors",
    "Ray, numpy",
    "Redis",
    "Ray, empty",
    "raw ZMQ",
    "ZMQ + CURVE",
    "raw socket",
    "raw store",
    "memory",
    "disk",
)
"""Columns that stand in the table; numbers of any other system stand under it."""


def print_report(report: Report, titles: Mapping[str, str], stream: IO[str] | None = None) -> None:
    """The machine, the table, what was not run and why, and how many figures were reached."""
    console = Console(file=stream, width=WIDTH, soft_wrap=False, highlight=False)
    console.print(_machine_line(report.machine))
    console.print(_table(report.rows, titles))
    for line in _notes(report):
        console.print(line)
    judged = [f.is_reached for row in report.rows for f in row.figures]
    console.print(
        f"figures: {judged.count(True)} reached, {judged.count(False)} missed, "
        f"{judged.count(None)} not measured"
    )


def _machine_line(machine: Mapping[str, object]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}; "
        f"load average before {machine['load_average_before']}, "
        f"after {machine.get('load_average_after')}"
    )


def _table(rows: Sequence[Row], titles: Mapping[str, str]) -> Table:
    columns = [name for name in COLUMNS if any(name in row.cells for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("median, or as named\n(n×: ours is n times better, by round)", no_wrap=False)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("to reach", no_wrap=False)
    workload = None
    for row in rows:
        if row.workload != workload:
            workload = row.workload
            table.add_row(f"[bold]{workload}[/bold]: {titles.get(workload, '')}", end_section=False)
        table.add_row(
            f"  {row.what}",
            *(_shown(row, name) for name in columns),
            "\n".join(figure_text(figure) for figure in row.figures),
        )
    return table


def _shown(row: Row, label: str) -> str:
    cell = row.cells.get(label)
    if cell is None:
        return ""
    number = row.number(label)
    if number is None:
        return "–"
    is_compared = row.unit in (Unit.SECONDS, Unit.RATE) and not label.startswith("ours")
    times = row.speedup(label) if is_compared else None
    return amount(number, row.unit) + (f"\n{_times(times)}" if times is not None else "")


def figure_text(figure: Figure) -> str:
    """E.g. ``"31 × Ascend TQ (≥ 30) ok"``."""
    if figure.got is None:
        return f"? {figure.text} ({figure.sense.value} {figure.target:g})"
    verdict = "ok" if figure.is_reached else "[bold red]MISSED[/bold red]"
    return (
        f"{_three_digits(figure.got)} {figure.text} "
        f"({figure.sense.value} {figure.target:g}) {verdict}"
    )


def amount(number: float, unit: Unit) -> str:
    """A number with a unit that suits its size."""
    if unit is Unit.SECONDS:
        for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if number >= scale:
                return f"{_three_digits(number / scale)} {name}"
        return f"{_three_digits(number / 1e-6)} µs"
    if unit is Unit.BYTES:
        for shift, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if number >= 1 << shift:
                return f"{_three_digits(number / (1 << shift))} {name}"
        return f"{_three_digits(number)} B"
    if unit is Unit.RATE:
        return f"{number:,.0f}/s"
    return f"{number:.2f}×"


def _times(times: float) -> str:
    return f"{_three_digits(times)}×"


def _three_digits(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


def _notes(report: Report) -> list[str]:
    lines = []
    for row in report.rows:
        for label, cell in row.cells.items():
            text = _note(row, label, cell)
            if text is not None and text not in lines:
                lines.append(text)
    return [*lines, *report.notes]


def _note(row: Row, label: str, cell: Cell) -> str | None:
    if isinstance(cell, Missing):
        return f"not run: {row.workload}, {label}: {cell.reason}"
    if label not in COLUMNS and isinstance(cell, Samples):
        number = row.number(label)
        assert number is not None
        times = row.speedup(label)
        ratio = f" ({_times(times)})" if times is not None else ""
        return f"also: {row.workload}, {row.what}, {label}: {amount(number, row.unit)}{ratio}"
    return None
