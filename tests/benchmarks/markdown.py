"""The report as a table for a page: a row a measurement, the systems that matter beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.benchmarks.table import COLUMNS, amount, figure_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.benchmarks.report import Report, Row


def markdown(report: Report, titles: Mapping[str, str]) -> str:
    """A heading and a table a workload. Ratios and figures as the printed table has them."""
    lines = []
    for name in dict.fromkeys(row.workload for row in report.rows):
        rows = [row for row in report.rows if row.workload == name]
        lines += [f"**{titles.get(name, name)}**", "", *_table(rows), ""]
    return "\n".join(lines)


def _table(rows: Sequence[Row]) -> list[str]:
    columns = [name for name in COLUMNS if any(row.number(name) is not None for row in rows)]
    lines = [
        "| | " + " | ".join([*columns, "to reach"]) + " |",
        "|---|" + "---:|" * len(columns) + "---|",
    ]
    for row in rows:
        numbers = [row.number(name) for name in columns]
        cells = ["" if number is None else amount(number, row.unit) for number in numbers]
        figures = "; ".join(_plain(figure_text(figure)) for figure in row.figures)
        lines.append(f"| {row.what} | " + " | ".join([*cells, figures]) + " |")
    return lines


def _plain(text: str) -> str:
    return text.replace("[bold red]", "").replace("[/bold red]", "")
