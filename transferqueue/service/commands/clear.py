"""``transferqueue clear``: remove samples."""

from __future__ import annotations

from typing import Any

import click

from transferqueue.service.commands.output import json_epilog, json_option, print_json
from transferqueue.service.commands.target import Target, target_options
from transferqueue.service.commands.where import EXAMPLE, parse_where

KEYS = {"partition": "that was asked for", "cleared": "how many samples were removed"}


@click.command(epilog=json_epilog(KEYS))
@click.argument("partition")
@click.option("--where", metavar="CONDITION", help=f"Only samples with these tags, e.g. {EXAMPLE}")
@click.option("--yes", is_flag=True, help="Do not ask.")
@target_options
@json_option
def clear(
    partition: str,
    where: str | None,
    yes: bool,  # noqa: FBT001 - click's
    target: Target,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Remove samples of a partition.

    With all their fields, and at once for readers. What claims still hold is removed too: their
    get raises RowsGone.
    """
    condition = None if where is None else parse_where(where)
    with target.connect() as client:
        # Also without a condition, for UnknownPartition: a shard would clear nothing and say 0.
        num_rows = client.held(partition=partition)[partition]["rows"]
        chosen: Any = None
        if condition is not None:
            chosen = client.select(partition, where=condition)
            num_rows = len(chosen)
        if not yes and num_rows:
            click.confirm(f"Remove {num_rows:,} samples of {partition!r}?", abort=True, err=True)
        if chosen is None:
            cleared = client.clear(partition=partition)
        else:
            cleared = client.clear(chosen) if num_rows else 0
    if as_json:
        print_json({"partition": partition, "cleared": cleared})
    else:
        click.echo(f"removed {cleared:,} samples of {partition!r}")
