"""``transferqueue held``: who holds the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from transferqueue.service.commands.output import (
    console,
    json_epilog,
    json_option,
    mib,
    print_json,
    span,
    table,
)
from transferqueue.service.commands.target import Target, target_options

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = {
    "rows": "samples; the JSON has these keys by partition",
    "rows_being_freed": "that no claim gets any more and that shards still hold",
    "bytes": "of all",
    "bytes_by_field": "counted",
    "tasks": "by task: samples that are free, claimed, acked, dead_letter",
    "bytes_by_task": "the same in bytes, each cell taken for a mean one of its field, as below",
    "rows_by_age": "by age class",
    "bytes_by_age": "the same in bytes",
    "oldest_s": "age of the oldest sample",
    "rows_by_site": "by the line of code that put them: rows, bytes, oldest_s",
    "credit": "room that the coordinator has promised to shards: rows, bytes",
    "max_rows": "quota, or null",
    "max_bytes": "quota, or null",
    "held_by": "who keeps samples from being freed, in words",
    "backends": "where the bytes lie: field -> backend -> bytes",
}


@click.command(epilog=json_epilog(KEYS))
@click.argument("partition", required=False)
@target_options
@json_option
def held(
    partition: str | None,
    target: Target,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Who holds the memory.

    Bytes by partition, field, task, age and the line of code that put them.
    """
    with target.connect() as client:
        report = client.held(partition=partition)
    if as_json:
        print_json(report)
    else:
        show(report)


def show(report: Mapping[str, Any]) -> None:
    screen = console()
    for name, of in sorted(report.items(), key=lambda item: -item[1]["bytes"]):
        screen.print(f"{name}: {of['rows']:,} samples, {mib(of['bytes'])} MiB{_limits(of)}")
        if of["held_by"]:
            screen.print(f"held by {of['held_by']}", markup=False)
        if of["rows_being_freed"]:
            screen.print(f"being freed: {of['rows_being_freed']:,} samples")
        screen.print(_table(of))
        screen.print()
    if not report:
        screen.print("nothing is held: there is no partition")


def _limits(of: Mapping[str, Any]) -> str:
    rows = f", at most {of['max_rows']:,} samples" if of["max_rows"] else ""
    return rows + (f", at most {mib(of['max_bytes'])} MiB" if of["max_bytes"] else "")


def _table(of: Mapping[str, Any]) -> Any:
    rows: list[tuple[object, ...]] = [
        ("field", field, "", mib(num), _share(num, of), "")
        for field, num in sorted(of["bytes_by_field"].items(), key=lambda item: -item[1])
    ]
    for task, counts in of["tasks"].items():
        for state, count in counts.items():
            num = of["bytes_by_task"][task][state]
            if count:
                rows.append(("task", f"{task}: {_STATES[state]}", f"{count:,}",
                             mib(num), _share(num, of), ""))  # fmt: skip
    for age, count in of["rows_by_age"].items():
        if count:
            num = of["bytes_by_age"][age]
            rows.append(("age", age, f"{count:,}", mib(num), _share(num, of), ""))
    for site, found in sorted(of["rows_by_site"].items(), key=lambda item: -item[1]["bytes"]):
        rows.append(("put at", site, f"{found['rows']:,}", mib(found["bytes"]),
                     _share(found["bytes"], of), span(found["oldest_s"])))  # fmt: skip
    right = ("rows", "MiB", "share", "oldest")
    return table("by", "", "rows", "MiB", "share", "oldest", rows=rows, right=right)


_STATES = {
    "free": "free (not taken yet)",
    "claimed": "claimed (not acked yet)",
    "acked": "acked (done)",
    "dead_letter": "dead letter (given up)",
}
"""What a task has done with samples."""


def _share(num_bytes: int, of: Mapping[str, Any]) -> str:
    return f"{num_bytes / of['bytes']:.0%}" if of["bytes"] else ""
