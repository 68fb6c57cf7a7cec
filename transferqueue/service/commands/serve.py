"""``transferqueue serve``: run a service until told to end."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transferqueue.errors import ServiceUnreachable

if TYPE_CHECKING:
    from transferqueue.service.embedded import Service


@click.command()
@click.option("--shards", default=1, show_default=True, help="Storage processes.")
@click.option("--budget-mib", default=4096, show_default=True, help="MiB that each may hold.")
@click.option("--host", help="Interface to serve other hosts on; without it this host only.")
@click.option("--arena-dir", help="Folder of the shared memory (default: /dev/shm).")
@click.option("--spill-dir", help="Folder on a disk for what memory has no room for.")
@click.option("--spill-mib", type=int, help="MiB there for each shard.")
@click.option(
    "--replicas",
    default=1,
    show_default=True,
    type=click.IntRange(1, 2),
    help="Copies of every row; two need two shards, and take twice the memory.",
)
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
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics to Prometheus on this port of 127.0.0.1 (0: any). Needs the extra metrics.",
)
@click.option(
    "--page-port",
    type=click.IntRange(0, 65535),
    help="Show the service in browsers of this host on this port (0: any). Needs the extra web.",
)
@click.option(
    "--drain-s",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="With --join: when told to end, take no new samples and wait for the others to go.",
)
def serve(
    shards: int,
    budget_mib: int,
    host: str | None,
    arena_dir: str | None,
    spill_dir: str | None,
    spill_mib: int | None,
    replicas: int,
    restore: str | None,
    prefault: bool,  # noqa: FBT001 - click's
    samplers: tuple[str, ...],
    no_encryption: bool,  # noqa: FBT001 - click's
    join: str | None,
    service_key: Path | None,
    metrics_port: int | None,
    page_port: int | None,
    drain_s: float,
) -> None:
    """Run a service until SIGINT or SIGTERM.

    Prints its address and where its client key lies. With --join this host adds shards to a
    service that runs, until it is told to end: their samples are gone then.
    """
    if join is None and (service_key is not None or drain_s):
        raise click.UsageError("--service-key and --drain-s go with --join")
    if restore is not None and join is not None:
        raise click.UsageError("--restore begins a service, --join does not")
    if join is not None and (metrics_port, page_port) != (None, None):
        raise click.UsageError(
            "--metrics-port and --page-port go with the service, not with --join"
        )
    if replicas > 1 and join is not None:
        raise click.UsageError("--replicas is of a whole service, not of shards that join")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    common = {
        "shards": shards,
        "budget_bytes": budget_mib << 20,
        "host": host,
        "arena_dir": arena_dir,
        "spill_dir": spill_dir,
        "spill_bytes": None if spill_mib is None else spill_mib << 20,
        "prefault": prefault,
    }
    if join is None:
        begun = {
            "samplers": samplers,
            "restore": restore,
            "encrypt": not no_encryption,
            "replicas": replicas,
        }
        _serve({**common, **begun}, stop, metrics_port=metrics_port, page_port=page_port)
    else:
        _join(common, stop, join, service_key, drain_s)


def _serve(
    settings: dict[str, Any],
    stop: threading.Event,
    *,
    metrics_port: int | None,
    page_port: int | None,
) -> None:
    from transferqueue.service.embedded import serve as start

    with start(**settings) as service, contextlib.ExitStack() as beside:
        click.echo(f"address   {service.address}")
        click.echo(f"key file  {service.key_file}")
        if metrics_port is not None:
            click.echo(f"metrics   {_export(service, beside, metrics_port)}")
        if page_port is not None:
            click.echo(f"page      {_show(service, beside, page_port)}")
        sys.stdout.flush()
        stop.wait()


def _export(service: Service, beside: contextlib.ExitStack, port: int) -> str:
    from transferqueue.client.connecting import connect
    from transferqueue.service.metrics.exporter import Exporter

    client = beside.enter_context(connect(service.address))
    return beside.enter_context(Exporter(client.status, host="127.0.0.1", port=port)).address


def _show(service: Service, beside: contextlib.ExitStack, port: int) -> str:
    from transferqueue.service.page.server import PageServer

    return beside.enter_context(PageServer(service.address, port=port)).address


def _join(
    common: dict[str, Any],
    stop: threading.Event,
    address: str,
    service_key: Path | None,
    drain_s: float,
) -> None:
    from transferqueue.service.joining import join, load_service_keys

    keys = None if service_key is None else load_service_keys(service_key)
    with join(address, keys=keys, **common) as joined:
        click.echo(f"joined    {address}")
        click.echo(f"shards    {' '.join(map(str, joined.slots))}")
        sys.stdout.flush()
        stop.wait()
        num_lost = 0
        with contextlib.suppress(ServiceUnreachable):  # it ended before
            num_lost = joined.drain(timeout_s=drain_s)
        if num_lost:
            click.echo(f"lost      {num_lost:,} samples that were still here", err=True)
