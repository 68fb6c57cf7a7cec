"""``transferqueue waits``: who waits for what, since when, and what is in the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from transferqueue.service.commands.output import (
    console,
    json_epilog,
    json_option,
    left_out,
    mib,
    print_json,
    silent,
    span,
    table,
    who,
)
from transferqueue.service.commands.target import Target, target_options

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = {
    "waits": "a list, the longest first: kind (claim, cells, select, put), partition, task, who "
    "(host:pid/…, or the process and line of a put), fields, wanted, ready, ready_by_field, "
    "since_s, left_s, why",
    "left_out": "how many more wait",
    "shards": "a list: slot, readers (processes that keep memory from being given out again: pid, "
    "num_leases, extent_bytes, oldest_s), num_readers",
    "silent": "shards that have not said who waits there",
}


@click.command(epilog=json_epilog(KEYS))
@click.argument("partition", required=False)
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 1000))
@target_options
@json_option
def waits(
    partition: str | None,
    limit: int,
    target: Target,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Who waits for what, since when, and why.

    Claims, waits and selects for samples; puts for space, and who holds it.
    """
    with target.connect() as client:
        found = client.waits(partition=partition, limit=limit)
    if as_json:
        print_json(found)
    else:
        show(found)


def show(found: Mapping[str, Any]) -> None:
    screen = console()
    if not found["waits"]:
        screen.print("nobody waits")
    else:
        screen.print(waits_table(found["waits"]))
    if found["left_out"]:
        screen.print(left_out(found["left_out"], "waits"))
    if found["silent"]:
        screen.print(silent(found["silent"], "who waits there for space is not known"))
    readers = [(shard["slot"], reader) for shard in found["shards"] for reader in shard["readers"]]
    has_puts = any(wait["kind"] == "put" for wait in found["waits"])
    if readers and has_puts:
        screen.print("\nProcesses that look at memory; what they cleared comes free when they end:")
        heads = ("shard", "pid", "leases", "MiB", "oldest")
        rows = [
            (slot, reader["pid"] or reader["reader"], reader["num_leases"],
             mib(reader["extent_bytes"]), span(reader["oldest_s"]))
            for slot, reader in readers
        ]  # fmt: skip
        screen.print(table(*heads, rows=rows, right=heads))


def waits_table(entries: list[dict[str, Any]]) -> Any:
    """A request on two lines: who wants what, and what is in the way."""
    rows = [
        (span(entry["since_s"]), f"{_who_wants_what(entry)}\n{entry['why']}") for entry in entries
    ]
    return table("since", "who waits for what, and why", rows=rows, right=("since",))


def _who_wants_what(entry: Mapping[str, Any]) -> str:
    what = f"{entry['kind']} {entry['task']}".strip()
    start = f"{what} on {entry['partition']}, {who(entry['who'])}: "
    if entry["kind"] == "put":
        return f"{start}{entry['wanted']:,} samples"
    fields = ", ".join(f"{field} {count:,}" for field, count in entry["ready_by_field"].items())
    return f"{start}{entry['ready']:,} of {entry['wanted']:,} ready ({fields})"
