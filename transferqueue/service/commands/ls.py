"""``transferqueue ls``: the partitions of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from transferqueue.service.commands.output import (
    console,
    json_epilog,
    json_option,
    mib,
    print_json,
    table,
)
from transferqueue.service.commands.target import Target, target_options

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = {
    "partition": "its name; the JSON is a list of partitions",
    "rows": "samples in it",
    "bytes": "that they hold",
    "fields": "field -> samples that have it",
    "tasks": "names of the tasks",
    "retention": "when samples are freed: consumed, explicit or ttl",
    "waiting": "requests that wait on it",
    "newest_policy_version": "that it has heard of, or null",
}


_FREED = {
    "consumed": "when all tasks have acked",
    "explicit": "when somebody clears them",
    "ttl": "when they are old enough",
}
"""By retention."""


@click.command("ls", epilog=json_epilog(KEYS))
@target_options
@json_option
def list_partitions(target: Target, as_json: bool) -> None:  # noqa: FBT001 - click's
    """The partitions: samples, bytes, fields, tasks."""
    with target.connect() as client:
        report = client.status()
    entries = [entry_of(name, partition) for name, partition in report["partitions"].items()]
    if as_json:
        print_json(entries)
    else:
        show(entries)


def entry_of(name: str, partition: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of one partition."""
    return {
        "partition": name,
        "rows": partition["rows"],
        "bytes": partition["bytes"],
        "fields": partition["fields"],
        "tasks": list(partition["tasks"]),
        "retention": partition["policy"]["retention"],
        "waiting": sum(partition["waiting"].values()),
        "newest_policy_version": partition["newest_policy_version"],
    }


def show(entries: list[dict[str, Any]]) -> None:
    rows = [
        (
            entry["partition"],
            f"{entry['rows']:,}",
            mib(entry["bytes"]),
            _fields(entry),
            " ".join(entry["tasks"]),
            _FREED[entry["retention"]],
            entry["waiting"],
        )
        for entry in entries
    ]
    heads = ("partition", "rows", "MiB", "fields", "tasks", "samples go", "waiting")
    console().print(table(*heads, rows=rows, right=("rows", "MiB", "waiting")))


def _fields(entry: dict[str, Any]) -> str:
    """Names, with a count where not every sample has the field."""
    return " ".join(
        field if count == entry["rows"] else f"{field}({count:,})"
        for field, count in entry["fields"].items()
    )
