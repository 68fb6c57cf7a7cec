"""Where the bytes went: what each stage fetched, and what handing it whole batches would move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTraffic:
    """One process of the run."""

    name: str
    fetched_bytes: int
    """Of batch columns."""
    weights_bytes: int
    """Of model weights, fetched too."""
    stored_bytes: int
    whole_batch_bytes: int
    """What it would have received had each of its calls been handed the batch as it was then."""


def stage_traffic(
    reports: Mapping[str, Mapping[str, Any]], calls: Sequence[tuple[str, Sequence[str]]]
) -> list[StageTraffic]:
    """``reports``: by process, as `RoleActor.report` gives them. ``calls``: in the order of the
    loop, which process ran and which fields it added; each call is handed what is there by then.
    """
    row_bytes = _bytes_per_row(reports)
    rows = {name: _rows_of(report) for name, report in reports.items()}
    present: set[str] = set()
    whole = dict.fromkeys(reports, 0)
    for name, written in calls:
        whole[name] += int(sum(row_bytes.get(field, 0.0) for field in present) * rows[name])
        present |= set(written)
    return [
        StageTraffic(
            name=name,
            fetched_bytes=_total(report, "got_bytes", of_weights=False),
            weights_bytes=_total(report, "got_bytes", of_weights=True),
            stored_bytes=_total(report, "put_bytes", of_weights=False),
            whole_batch_bytes=whole[name],
        )
        for name, report in reports.items()
    ]


def _total(report: Mapping[str, Any], counter: str, *, of_weights: bool) -> int:
    """Sum of a counter over batch columns, or over weights: their fields have dotted names."""
    return sum(
        field[counter] for name, field in report["fields"].items() if ("." in name) == of_weights
    )


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


def _rows_of(report: Mapping[str, Any]) -> int:
    """Rows that passed the process: of the stage that saw the most."""
    return max((stage["rows"] for stage in report["stages"].values()), default=0)


def print_bytes_table(
    stages: Sequence[StageTraffic],
    *,
    controller_bytes: int,
    handle_bytes: int,
    num_steps: int,
) -> None:
    """The closing table of a run."""
    table = Table(title="Bytes moved (MiB)", title_justify="left")
    headings = ("process", "fetched", "whole-batch hand-off", "ratio", "stored", "weights fetched")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "process" else "right")
    for stage in stages:
        table.add_row(
            stage.name,
            f"{stage.fetched_bytes / MIB:.1f}",
            f"{stage.whole_batch_bytes / MIB:.1f}" if stage.whole_batch_bytes else "",
            f"{stage.whole_batch_bytes / stage.fetched_bytes:.1f} x"
            if stage.whole_batch_bytes
            else "",
            f"{stage.stored_bytes / MIB:.1f}",
            f"{stage.weights_bytes / MIB:.1f}" if stage.weights_bytes else "",
        )
    handed = [stage for stage in stages if stage.whole_batch_bytes]
    fetched = sum(stage.fetched_bytes for stage in handed)
    whole = sum(stage.whole_batch_bytes for stage in handed)
    table.add_section()
    table.add_row(
        "all but rollouts", f"{fetched / MIB:.1f}", f"{whole / MIB:.1f}", f"{whole / fetched:.1f} x"
    )
    console = Console()
    console.print(table)
    through = controller_bytes + handle_bytes
    console.print(
        f"Through the controller: {through / 1024:.0f} KiB in {num_steps} updates, "
        f"{through / num_steps / 1024:.1f} KiB an update ({controller_bytes / 1024:.0f} KiB of "
        f"messages, prompts included, and {handle_bytes / 1024:.0f} KiB of handles to and from "
        f"the roles). A controller that hands whole batches on would have moved "
        f"{2 * whole / MIB:.0f} MiB, in and out."
    )
