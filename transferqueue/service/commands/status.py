"""``transferqueue status``: what a service holds and does."""

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
    from collections.abc import Mapping, Sequence

KEYS = {
    "service_id": "of the service; its handles carry it",
    "uptime_s": "of the coordinator",
    "time_s": "the coordinator's clock, seconds since 1970",
    "partitions": "by name: rows, bytes, fields (field -> samples that have it), tasks (free, "
    "claimed, acked, dead_letter), waiting (claims, cells, selects, puts), rows_put, "
    "rows_handed_out, policy",
    "shards": "a list: slot, rows, used_bytes, budget_bytes, leases, puts_waiting, backend, "
    "backends (by name; of one whose store is away also away, which says why, away_since_s and "
    "times_looked), spill, "
    "copies (nil: one of each row; else guard, phase, is_complete, bytes_to_copy, kept), "
    "moved (bytes by field and way), requests, refusals, latencies",
    "shards_away": "a list: slots whose shard says nothing, and whose second copies are read",
    "parked": "requests that wait for an answer",
    "waiting_for_shards": "requests that wait until all shards have come, after a restart",
    "journal_bytes": "of the coordinator's journal",
    "requests": "operation -> how often",
    "refusals": "error -> how often",
    "keys_refused": "TCP peers that came without the key",
    "latencies": "how long requests took (bounds_s; by operation counts, sums_s, busy_s)",
    "stages": "a list, what methods of workers moved: role, method, field, read_bytes, "
    "written_bytes, untouched_bytes (never looked at), undeclared_bytes, calls",
    "claims_out": "claims that are neither acked nor given back",
    "claims_expired": "claims whose lease ran out",
    "ways": "a list, how bytes come here from each shard: slot, way, rung (of tensors to device), "
    "why_not_better",
}


@click.command(epilog=json_epilog(KEYS))
@target_options
@click.option(
    "--device", metavar="NAME", help="Say by which way tensors come to this device (cuda:0)."
)
@json_option
def status(target: Target, device: str | None, as_json: bool) -> None:  # noqa: FBT001 - click's
    """What a service holds and does.

    And by which way bytes come here from each of its shards.
    """
    with target.connect(device=device) as client:
        report = {**client.status(), "ways": client.links()}
    if as_json:
        print_json(report)
    else:
        show(report)


def show(report: Mapping[str, Any]) -> None:
    screen = console()
    screen.print(f"service {report['service_id']}, up {span(report['uptime_s'])}\n")
    screen.print(shards_table(report))
    if report["shards_away"]:
        away = ", ".join(map(str, report["shards_away"]))
        screen.print(f"away: shards {away}; their second copies are read")
    for line in _backends_away(report["shards"]):
        screen.print(line, markup=False)
    for line in _ways(report["ways"]):
        screen.print(line)
    screen.print()
    screen.print(partitions_table(report))


def shards_table(report: Mapping[str, Any]) -> Any:
    """A row a shard."""
    heads = (
        "shard", "rows", "MiB used", "of", "on disk", "copies", "leases", "puts waiting", "refused"
    )  # fmt: skip
    rows = [
        (
            shard["slot"],
            f"{shard['rows']:,}",
            mib(shard["used_bytes"]),
            mib(shard["budget_bytes"]),
            _on_disk(shard),
            _copies(shard),
            shard["leases"],
            shard["puts_waiting"] + shard["puts_over_quota"],
            sum(shard["refusals"].values()),
        )
        for shard in report["shards"]
    ]
    return table(*heads, rows=rows, right=heads)


def _ways(links: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for all shards that are reached alike."""
    alike: dict[str, list[str]] = {}
    for link in links:
        how = f"by {link['way']}"
        if link["device"]:
            how += f", tensors to {link['device']} by {link['rung']}"
        if link["beside"]:
            how += f", those on its device by {link['beside']}"
        if link["why_not_better"]:
            how += f" (not better: {link['why_not_better']})"
        alike.setdefault(how, []).append(str(link["slot"]))
    return [f"bytes of shard {', '.join(slots)} come here {how}" for how, slots in alike.items()]


def _backends_away(shards: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each backend whose store is away."""
    return [
        f"shard {shard['slot']}: backend {name!r} is away since "
        f"{span(shard['time_s'] - backend['away_since_s'])}, looked for "
        f"{backend['times_looked']} times: {backend['away']}"
        for shard in shards
        for name, backend in shard["backends"].items()
        if "away" in backend
    ]


def _on_disk(shard: Mapping[str, Any]) -> str:
    spill = shard.get("spill")
    return "" if spill is None else mib(spill["used_bytes"])


def _copies(shard: Mapping[str, Any]) -> str:
    """Of each row; what is under-replicated says why."""
    copies = shard.get("copies")
    if copies is None:
        return "1"
    return "2" if copies["is_complete"] else f"1 of 2 ({copies['phase']})"


def partitions_table(report: Mapping[str, Any]) -> Any:
    """A row a partition and task: what stands still shows in its columns."""
    heads = ("partition", "rows", "MiB", "fields", "task", "free", "claimed", "acked", "waiting")
    rows: list[tuple[object, ...]] = []
    for name, partition in report["partitions"].items():
        waiting = sum(partition["waiting"].values())
        first = (name, f"{partition['rows']:,}", mib(partition["bytes"]), len(partition["fields"]))
        for at, (task, states) in enumerate(partition["tasks"].items() or [("", {})]):
            counts = [f"{states[s]:,}" if states else "" for s in ("free", "claimed", "acked")]
            lead = first if at == 0 else ("", "", "", "")
            rows.append((*lead, task, *counts, waiting if at == 0 else ""))
    right = ("rows", "MiB", "fields", "free", "claimed", "acked", "waiting")
    return table(*heads, rows=rows, right=right)
