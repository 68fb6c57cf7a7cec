"""``transferqueue top``: a service, live."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from transferqueue.service.commands.output import (
    console,
    json_epilog,
    json_option,
    left_out,
    mib,
    print_json,
    span,
    table,
)
from transferqueue.service.commands.target import Target, target_options
from transferqueue.service.commands.waits import waits_table
from transferqueue.service.rates import snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transferqueue.client.sync_client import Client

KEYS = {
    "service_id": "of the service",
    "uptime_s": "of the coordinator",
    "interval_s": "that the rates are over",
    "parked": "requests that wait for an answer",
    "shards": "a list: slot, rows, used_bytes, budget_bytes, leases, puts_waiting, puts_per_s, "
    "gets_per_s, bytes_per_s (that were added)",
    "partitions": "by name: rows, bytes, tasks (free, claimed, acked, dead_letter), waiting, "
    "put_per_s, handed_out_per_s (samples)",
    "stages": "a list, by bytes read: stage (role.method), read_bytes, written_bytes, "
    "untouched_bytes (fetched in vain), undeclared_bytes, calls, …_per_s, untouched_share",
    "waits": "those that have waited longest, as `waits --json` has them",
    "waits_left_out": "how many more wait",
}

SHOWN_WAITS = 8
BAR_CELLS = 10


@click.command(epilog=json_epilog(KEYS))
@click.option("--once", is_flag=True, help="One page, after one interval.")
@click.option(
    "--interval-s", default=1.0, show_default=True, type=click.FloatRange(min=0.05, max=3600)
)
@target_options
@json_option
def top(
    once: bool,  # noqa: FBT001 - click's
    interval_s: float,
    target: Target,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """A service, live; Ctrl-C ends it.

    Bytes of its shards, what each task has claimed and acked, rates, and who waits longest.

    With --json or --once it prints once and ends.
    """
    with target.connect() as client:
        pages = watch(client, interval_s)
        if as_json:
            print_json(next(pages))
        elif once:
            console().print(page_of(next(pages)))
        else:
            _live(pages)


def watch(client: Client, interval_s: float) -> Iterator[dict[str, Any]]:
    """A page an interval, without end."""
    before = client.status()
    while True:
        time.sleep(interval_s)
        after = client.status()
        yield snapshot(before, after, client.waits(limit=SHOWN_WAITS))
        before = after


def _live(pages: Iterator[dict[str, Any]]) -> None:
    from rich.live import Live

    screen = console()
    with contextlib.suppress(KeyboardInterrupt):
        if not screen.is_terminal:  # into a file or a pipe: one page after the other
            for page in pages:
                screen.print(page_of(page), "")
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            for page in pages:
                live.update(page_of(page), refresh=True)


def page_of(page: Mapping[str, Any]) -> Any:
    """What a page looks like."""
    from rich.console import Group

    title = (
        f"service {page['service_id']}, up {span(page['uptime_s'])}, {page['parked']} parked, "
        f"rates over {span(page['interval_s'])}"
    )
    parts = [title, "", _shards(page), "", _partitions(page)]
    if page["waits"]:
        parts += ["", waits_table(page["waits"]), left_out(page["waits_left_out"], "waits")]
    return Group(*parts)


def _shards(page: Mapping[str, Any]) -> Any:
    heads = ("shard", "", "MiB used", "of", "rows", "puts/s", "gets/s", "+MiB/s", "leases", "wait")
    rows = [
        (
            shard["slot"],
            bar(shard["used_bytes"] / shard["budget_bytes"]),
            mib(shard["used_bytes"]),
            mib(shard["budget_bytes"]),
            f"{shard['rows']:,}",
            f"{shard['puts_per_s']:,.1f}",
            f"{shard['gets_per_s']:,.1f}",
            mib(shard["bytes_per_s"]),
            shard["leases"],
            shard["puts_waiting"],
        )
        for shard in page["shards"]
    ]
    return table(*heads, rows=rows, right=("shard", *heads[2:]))


def _partitions(page: Mapping[str, Any]) -> Any:
    heads = ("partition", "rows", "put/s", "out/s", "task", "free", "claimed", "acked", "wait")
    rows: list[tuple[object, ...]] = []
    for name, of in page["partitions"].items():
        lead: tuple[object, ...] = (
            name, f"{of['rows']:,}", f"{of['put_per_s']:,.1f}", f"{of['handed_out_per_s']:,.1f}"
        )  # fmt: skip
        for task, states in of["tasks"].items() or [("", {})]:
            counts = [f"{states[s]:,}" if states else "" for s in ("free", "claimed", "acked")]
            waiting = sum(of["waiting"].values()) if lead[0] else ""
            rows.append((*lead, task, *counts, waiting))
            lead = ("", "", "", "")
    return table(*heads, rows=rows, right=(*heads[1:4], *heads[5:]))


def bar(share: float) -> str:
    """How much of something is used, in characters that every terminal has."""
    filled = round(min(1.0, max(0.0, share)) * BAR_CELLS)
    return "#" * filled + "." * (BAR_CELLS - filled)
