"""``transferqueue serve``: run a service until told to end."""

from __future__ import annotations

import signal
import sys
import threading

import click


@click.command()
@click.option("--shards", default=1, show_default=True, help="Storage processes.")
@click.option("--budget-mib", default=4096, show_default=True, help="MiB that each may hold.")
@click.option("--host", help="Interface to serve other hosts on; without it this host only.")
@click.option("--arena-dir", help="Folder of the shared memory (default: /dev/shm).")
@click.option("--prefault", is_flag=True, help="Take all memory at the start, in the background.")
@click.option(
    "--no-encryption", is_flag=True, help="For a network where nobody else can listen: faster."
)
@click.option("--restore", metavar="PATH", help="Begin with the checkpoint in this folder.")
def serve(
    shards: int,
    budget_mib: int,
    host: str | None,
    arena_dir: str | None,
    restore: str | None,
    prefault: bool,  # noqa: FBT001 - click's
    no_encryption: bool,  # noqa: FBT001 - click's
) -> None:
    """Run a service until SIGINT or SIGTERM. Prints its address and where its client key lies."""
    from transferqueue.service.embedded import serve as start

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with start(
        shards=shards,
        budget_bytes=budget_mib << 20,
        host=host,
        arena_dir=arena_dir,
        prefault=prefault,
        encrypt=not no_encryption,
        restore=restore,
    ) as service:
        click.echo(f"address   {service.address}")
        click.echo(f"key file  {service.key_file}")
        sys.stdout.flush()
        stop.wait()
