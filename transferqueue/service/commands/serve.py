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
from transferqueue.service.commands.serve_settings import arguments

if TYPE_CHECKING:
    from transferqueue.service.embedded import Service


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A TOML file with the arguments of tq.serve() by name; flags count more.",
)
@click.option("--shards", type=int, help="Storage processes (default: 1).")
@click.option("--budget-mib", type=int, help="MiB that each may hold (default: 4096).")
@click.option("--host", help="Interface to serve other hosts on; without it this host only.")
@click.option("--backend", help="Where bytes lie (default: shm).")
@click.option(
    "--backend-option",
    "backend_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of that backend.",
)
@click.option("--arena-dir", help="Folder of the shared memory (default: /dev/shm).")
@click.option(
    "--also",
    "backends",
    multiple=True,
    metavar="NAME:KEY=VALUE,…",
    help="Another backend, for partitions that name it: disk:budget_mib=65536,arena_dir=/data",
)
@click.option(
    "--transport",
    "transports",
    multiple=True,
    metavar="NAME[:KEY=VALUE,…]",
    help="A way for large bytes beside the socket: sockets, or one of yours.",
)
@click.option("--spill-dir", help="Folder on a disk for what memory has no room for.")
@click.option("--spill-mib", type=int, help="MiB there for each shard.")
@click.option("--spill-high", type=float, help="Part of the budget from which on (default: 0.9),")
@click.option("--spill-low", type=float, help="and down to which, slabs go there (default: 0.75).")
@click.option(
    "--replicas",
    type=click.IntRange(1, 2),
    help="Copies of every row; two need two shards, and take twice the memory.",
)
@click.option(
    "--copy-mib-per-s", type=float, help="At which a lost copy is made again (default: 512)."
)
@click.option(
    "--takeover-s",
    type=click.FloatRange(min=0, min_open=True),
    help="A shard that is away for so long is not waited for: the other copy takes its place "
    "(default 60 with --replicas 2), or its rows are lost (default: never).",
)
@click.option(
    "--guard-silence-s",
    type=click.FloatRange(min=0, min_open=True),
    help="How long puts wait for a second copy whose process stands still (default: 5).",
)
@click.option("--prefault", is_flag=True, help="Take all memory at the start, in the background.")
@click.option(
    "--sampler", "samplers", multiple=True, metavar="MODULE:CLASS", help="An own sampler's class."
)
@click.option(
    "--tracing",
    metavar="WHERE",
    help="Spans of requests: chrome:FILE, or module:function. Needs the extra otel.",
)
@click.option(
    "--no-encryption", is_flag=True, help="For a network where nobody else can listen: faster."
)
@click.option(
    "--read-key",
    "read_keys",
    multiple=True,
    metavar="NAME[=PARTITION,…]",
    help="A key that only reads, all partitions or these; NAME.read.key beside the key file.",
)
@click.option("--no-restart", is_flag=True, help="Leave a process that died as it is.")
@click.option(
    "--start-timeout-s",
    type=click.FloatRange(min=0, min_open=True),
    help="How long all of it may take to start (default: 30).",
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
    config: Path | None,
    join: str | None,
    service_key: Path | None,
    metrics_port: int | None,
    page_port: int | None,
    drain_s: float,
    **flags: Any,
) -> None:
    """Run a service until SIGINT or SIGTERM.

    Prints its address and where its client key lies. With --join this host adds shards to a
    service that runs, until it is told to end: their samples are gone then.
    """
    if join is None and (service_key is not None or drain_s):
        raise click.UsageError("--service-key and --drain-s go with --join")
    if join is not None and (metrics_port, page_port) != (None, None):
        raise click.UsageError(
            "--metrics-port and --page-port go with the service, not with --join"
        )
    settings = _settings(flags, config, joins=join is not None)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if join is None:
        _serve(settings, stop, metrics_port=metrics_port, page_port=page_port)
    else:
        _join(settings, stop, join, service_key, drain_s)


def _settings(flags: dict[str, Any], config: Path | None, *, joins: bool) -> dict[str, Any]:
    """The arguments of `serve`, or of `join`."""
    import inspect

    from transferqueue.service.embedded import serve as start
    from transferqueue.service.joining import join

    given = {_ARGUMENTS.get(name, name): value for name, value in flags.items()}
    if joins:
        allowed = inspect.signature(join).parameters.keys() - {"address", "keys"}
        return arguments(given, config, allowed, "shards that --join a service")
    allowed = inspect.signature(start).parameters.keys() - {"in_process"}
    return arguments(given, config, allowed, "a service of its own")


_ARGUMENTS = {
    "budget_mib": "budget_bytes",
    "spill_mib": "spill_bytes",
    "copy_mib_per_s": "copy_bytes_per_s",
    "no_encryption": "encrypt",
    "no_restart": "restart",
}
"""By name of the flag, where that is another."""


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
