"""``transferqueue describe``: single samples, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from transferqueue.byte_text import size
from transferqueue.service.commands.output import (
    console,
    json_epilog,
    json_option,
    left_out,
    print_json,
    silent,
    span,
    table,
    who,
)
from transferqueue.service.commands.target import Target, target_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.client.sync_client import Client

KEYS = {
    "partition": "that the samples are in",
    "num_rows": "samples of the partition, or those asked for by uid",
    "left_out": "how many of them are not shown",
    "absent": "uids that are not there",
    "silent": "shards that have not said what they store: stored is null there",
    "rows": "a list: uid, shard, state, age_s, site (who put it), tags, fields (ready, stored, "
    "bytes, dtype, shape, ragged_dim, kind), tasks (state, deliveries; claim_id, who, left_s "
    "while a claim holds it)",
}


@click.command(epilog=json_epilog(KEYS))
@click.argument("what", metavar="PARTITION|UID...", nargs=-1, required=True)
@click.option("--limit", default=10, show_default=True, type=click.IntRange(1, 1000))
@target_options
@json_option
def describe(
    what: tuple[str, ...],
    limit: int,
    target: Target,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Single samples, cell by cell.

    The oldest of a partition, or those of some uids (decimal, or 0x…).

    Each field: whether it is ready, on which shard, its type and size; each task: what it has done
    with the sample and who holds it.
    """
    with target.connect() as client:
        found = look(client, what, limit)
    if as_json:
        print_json(found)
    else:
        show(found)


def look(client: Client, what: tuple[str, ...], limit: int) -> dict[str, Any]:
    """A name that is a partition's is that, also when it looks like a number."""
    uids = [uid_of(word) for word in what]
    if len(what) == 1 and (uids[0] is None or what[0] in client.status()["partitions"]):
        return client.describe(what[0], limit=limit)
    if any(uid is None for uid in uids):
        raise click.UsageError("name one partition, or uids")
    return client.describe(uids=[uid for uid in uids if uid is not None], limit=limit)


def uid_of(word: str) -> int | None:
    """The uid that a word is, decimal or 0x…; ``None`` if it is none."""
    try:
        return int(word, 0)
    except ValueError:
        return None


def show(found: Mapping[str, Any]) -> None:
    screen = console()
    screen.print(f"partition {found['partition']}, {found['num_rows']:,} samples\n")
    for row in found["rows"]:
        tags = ", ".join(f"{name}={value!r}" for name, value in row["tags"].items())
        screen.print(
            f"sample {row['uid']} ({row['uid']:#x}), shard {row['shard']}, {row['state']}, "
            f"{span(row['age_s'])} old",
            markup=False,
        )
        if row["site"]:
            screen.print(f"  put at {row['site']}", markup=False)
        if tags:
            screen.print(f"  tags: {tags}", markup=False)
        heads = ("  field", "ready", "stored", "type", "shape", "size")
        screen.print(table(*heads, rows=map(_cell, row["fields"].items()), right=("size",)))
        if row["tasks"]:
            screen.print(
                table("  task", "state", "deliveries", "held by", "for another",
                      rows=map(_task, row["tasks"].items()))
            )  # fmt: skip
        screen.print()
    if found["absent"]:
        screen.print(f"not there: {', '.join(map(str, found['absent']))}")
    if found["silent"]:
        screen.print(silent(found["silent"], "what it stores is not known"))
    if found["left_out"]:
        screen.print(left_out(found["left_out"], "samples"))


_WORDS = {True: "yes", False: "no", None: "?"}


def _cell(named: tuple[str, Mapping[str, Any]]) -> tuple[object, ...]:
    name, cell = named
    ready, stored = (_WORDS[cell[key]] for key in ("ready", "stored"))
    if not cell["stored"]:
        return (f"  {name}", ready, stored, "", "", "")
    shape = "×".join("*" if length == -1 else str(length) for length in cell["shape"]) or "scalar"
    return (f"  {name}", ready, stored, cell["dtype"], shape, size(cell["bytes"]))


def _task(named: tuple[str, Mapping[str, Any]]) -> tuple[object, ...]:
    name, task = named
    is_held = "claim_id" in task
    return (
        f"  {name}",
        task["state"],
        task["deliveries"],
        f"{who(task['who'])} (claim {task['claim_id']})" if is_held else "",
        span(task["left_s"]) if is_held else "",
    )
