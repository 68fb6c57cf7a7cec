"""Where the bytes went: what each stage fetched, and what handing it whole batches would move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from controller.dataflow import Dataflow

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTraffic:
    """One stage, over all its processes."""

    name: str
    fetched_bytes: int
    unread_bytes: int
    """Of them, of columns that the stage never looked at."""
    stored_bytes: int
    whole_batch_bytes: int
    """What it would have received had each of its calls been handed the batch as it was then."""


def stage_traffic(
    dataflow: Dataflow, reports: Mapping[str, Mapping[str, Any]]
) -> list[StageTraffic]:
    """``reports``: by process, as `RoleWorker.report` gives them."""
    row_bytes = _bytes_per_row(reports)
    present = set(dataflow.inputs)
    found = []
    for stage in dataflow.stages:
        label = f"{stage.role}.{stage.method}"
        totals = [r["stages"][label] for r in reports.values() if label in r["stages"]]
        rows = sum(one["rows"] for one in totals)
        found.append(
            StageTraffic(
                name=stage.name,
                fetched_bytes=sum(one["read_bytes"] for one in totals),
                unread_bytes=sum(one["unread_bytes"] for one in totals),
                stored_bytes=sum(one["written_bytes"] for one in totals),
                whole_batch_bytes=int(rows * sum(row_bytes.get(name, 0.0) for name in present)),
            )
        )
        present |= {*stage.writes}
    return found


def _bytes_per_row(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Mean bytes of one row of each field, over all that was put or got."""
    sums: dict[str, list[int]] = {}
    for report in reports.values():
        for name, field in report["fields"].items():
            num_bytes, num_rows = sums.setdefault(name, [0, 0])
            sums[name] = [
                num_bytes + field["put_bytes"] + field["got_bytes"],
                num_rows + field["put_rows"] + field["got_rows"],
            ]
    return {name: total / rows for name, (total, rows) in sums.items() if rows}


def print_bytes_table(
    stages: Sequence[StageTraffic],
    *,
    controller_bytes: int,
    batch_bytes: int,
    num_steps: int,
) -> None:
    """The closing table of a run. ``batch_bytes``: of what the driver handed to stages, handles or
    whole batches; ``controller_bytes``: of its own messages to the service."""
    table = Table(title="Bytes moved (MiB)", title_justify="left")
    headings = ("stage", "fetched", "never read", "whole-batch hand-off", "ratio", "stored")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for stage in stages:
        _add(table, stage.name, stage)
    total = StageTraffic(
        name="all",
        fetched_bytes=sum(stage.fetched_bytes for stage in stages),
        unread_bytes=sum(stage.unread_bytes for stage in stages),
        stored_bytes=sum(stage.stored_bytes for stage in stages),
        whole_batch_bytes=sum(stage.whole_batch_bytes for stage in stages),
    )
    table.add_section()
    _add(table, "all", total)
    console = Console()
    console.print(table)
    through = controller_bytes + batch_bytes
    console.print(
        f"Through the controller: {through / 1024:.0f} KiB in {num_steps} updates, "
        f"{through / num_steps / 1024:.1f} KiB an update ({controller_bytes / 1024:.0f} KiB of "
        f"messages, prompts included, and {batch_bytes / 1024:.0f} KiB handed to roles and back). "
        f"Whole batches, in and out, would have been {2 * total.whole_batch_bytes / MIB:.0f} MiB."
    )


def _add(table: Table, name: str, stage: StageTraffic) -> None:
    fetched, whole = stage.fetched_bytes, stage.whole_batch_bytes
    table.add_row(
        name,
        f"{fetched / MIB:.1f}",
        f"{stage.unread_bytes / MIB:.1f}",
        f"{whole / MIB:.1f}",
        f"{whole / fetched:.1f} x" if fetched else "",
        f"{stage.stored_bytes / MIB:.1f}",
    )
