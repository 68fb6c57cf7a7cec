"""``transferqueue serve``: run a service until told to end."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from transferqueue.closing import Closing


@click.command()
@click.option("--shards", default=1, show_default=True, help="Storage processes.")
@click.option("--budget-mib", default=4096, show_default=True, help="MiB that each may hold.")
@click.option("--host", help="Interface to serve other hosts on; without it this host only.")
@click.option("--arena-dir", help="Folder of the shared memory (default: /dev/shm).")
@click.option("--prefault", is_flag=True, help="Take all memory at the start, in the background.")
@click.option(
    "--sampler", "samplers", multiple=True, metavar="MODULE:CLASS", help="An own sampler's class."
)
@click.option(
    "--no-encryption", is_flag=True, help="For a network where nobody else can listen: faster."
)
@click.option(
    "--join",
    metavar="ADDRESS",
    help="Add the shards to the service of this coordinator, rather than start one.",
)
@click.option(
    "--service-key",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --join over tcp://: the service.key that lies beside the service's client.key.",
)
@click.option("--restore", metavar="PATH", help="Begin with the checkpoint in this folder.")
def serve(
    shards: int,
    budget_mib: int,
    host: str | None,
    arena_dir: str | None,
    restore: str | None,
    prefault: bool,  # noqa: FBT001 - click's
    samplers: tuple[str, ...],
    no_encryption: bool,  # noqa: FBT001 - click's
    join: str | None,
    service_key: Path | None,
) -> None:
    """Run a service until SIGINT or SIGTERM.

    Prints its address and where its client key lies. With --join this host adds shards to a
    service that runs, until it is told to end: their samples are gone then.
    """
    if service_key is not None and join is None:
        raise click.UsageError("--service-key goes with --join")
    if restore is not None and join is not None:
        raise click.UsageError("--restore begins a service, --join does not")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    common = {
        "shards": shards,
        "budget_bytes": budget_mib << 20,
        "host": host,
        "arena_dir": arena_dir,
        "prefault": prefault,
    }
    with (
        _serve(common, encrypt=not no_encryption, samplers=samplers, restore=restore)
        if join is None
        else _join(common, join, service_key)
    ):
        sys.stdout.flush()
        stop.wait()


def _serve(
    common: dict[str, Any], *, encrypt: bool, samplers: tuple[str, ...], restore: str | None
) -> Closing:
    from transferqueue.service.embedded import serve as start

    service = start(**common, encrypt=encrypt, samplers=samplers, restore=restore)
    click.echo(f"address   {service.address}")
    click.echo(f"key file  {service.key_file}")
    return service


def _join(common: dict[str, Any], address: str, service_key: Path | None) -> Closing:
    from transferqueue.service.joining import join, load_service_keys

    keys = None if service_key is None else load_service_keys(service_key)
    joined = join(address, keys=keys, **common)
    click.echo(f"joined    {address}")
    click.echo(f"shards    {' '.join(map(str, joined.slots))}")
    return joined
