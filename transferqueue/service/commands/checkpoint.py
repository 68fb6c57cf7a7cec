"""``transferqueue checkpoint``: write all that a service holds to a folder."""

from __future__ import annotations

from dataclasses import asdict

import click

from transferqueue.service.commands.output import json_epilog, json_option, print_json
from transferqueue.service.commands.target import Target, target_options

KEYS = {
    "path": "the folder",
    "num_rows": "samples that are in",
    "num_bytes": "of all their cells",
    "seconds": "it took",
}


@click.command(epilog=json_epilog(KEYS))
@click.argument("path", type=click.Path(file_okay=False, resolve_path=True))
@click.option("--deadline-s", default=600.0, show_default=True, help="For all of it.")
@target_options
@json_option
def checkpoint(
    path: str,
    deadline_s: float,
    target: Target,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Write all that a service holds to the folder PATH.

    Every host of the service must see it. A later one takes its place there when it is finished;
    `serve --restore PATH` begins with it.
    """
    with target.connect() as client:
        done = client.checkpoint(path, timeout_s=deadline_s)
    if as_json:
        print_json(asdict(done))
    else:
        size, speed = done.num_bytes / 2**20, done.num_bytes / 2**20 / max(done.seconds, 1e-9)
        click.echo(f"{done.num_rows:,} samples, {size:.1f} MiB, {speed:.0f} MiB/s: {done.path}")
