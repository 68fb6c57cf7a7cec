"""The ``transferqueue`` command.

Exit status: 0 done; 1 the service refused or failed; 2 wrong usage; 3 no service was found.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import click

from transferqueue.errors import NoService, ServiceUnreachable, TransferQueueError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT_FAILED = 1
EXIT_NO_SERVICE = 3


class _Command(click.Group):
    """Turns our errors into one line and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (NoService, ServiceUnreachable) as error:
            click.echo(f"transferqueue: {error}", err=True)
            ctx.exit(EXIT_NO_SERVICE)
        except TransferQueueError as error:
            click.echo(f"transferqueue: {error}", err=True)
            ctx.exit(EXIT_FAILED)


@click.group(cls=_Command)
def main() -> None:
    """A data plane for RL post-training: serve it, look at it."""


@main.command()
@click.option("--shards", default=1, show_default=True, help="Storage processes.")
@click.option("--budget-mib", default=4096, show_default=True, help="MiB that each may hold.")
@click.option("--host", help="Interface to serve other hosts on; without it this host only.")
@click.option("--arena-dir", help="Folder of the shared memory (default: /dev/shm).")
@click.option("--prefault", is_flag=True, help="Take all memory at the start, in the background.")
@click.option(
    "--no-encryption", is_flag=True, help="For a network where nobody else can listen: faster."
)
def serve(
    shards: int,
    budget_mib: int,
    host: str | None,
    arena_dir: str | None,
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
    ) as service:
        click.echo(f"address   {service.address}")
        click.echo(f"key file  {service.key_file}")
        sys.stdout.flush()
        stop.wait()


@main.command()
@click.option("--address", help="Of the service; default: $TRANSFERQUEUE_ADDRESS, or one found.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
@click.option("--timeout-s", default=5.0, show_default=True)
def status(address: str | None, as_json: bool, timeout_s: float) -> None:  # noqa: FBT001 - click's
    """What a service holds and does."""
    from transferqueue.client.connecting import connect

    with connect(address or _found_address(), timeout_s=timeout_s) as client:
        report = client.status()
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        _print_status(report)


@main.command()
@click.option("--address", help="Of the service; default: $TRANSFERQUEUE_ADDRESS, or one found.")
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(["auto", "shm", "ipc", "tcp"]),
    default=["auto"],
    show_default=True,
    help="How to reach the shards; may be given several times.",
)
@click.option(
    "--size-kib", "sizes_kib", multiple=True, type=click.IntRange(min=1), help="Bytes of a batch."
)
@click.option("--seconds", default=2.0, show_default=True, help="For each size and transport.")
@click.option("--json", "as_json", is_flag=True, help="Every number, as JSON.")
def bench(
    address: str | None,
    transports: tuple[str, ...],
    sizes_kib: tuple[int, ...],
    seconds: float,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """How fast a service is from here: latency and throughput of put, get and read."""
    from transferqueue.service.bench import DEFAULT_SIZES, measure, print_results

    results = measure(
        address or _found_address(),
        transports=transports,
        sizes=[size << 10 for size in sizes_kib] or DEFAULT_SIZES,
        seconds_each=seconds,
    )
    if as_json:
        click.echo(json.dumps([result.to_plain() for result in results], indent=2))
    else:
        print_results(results)


def _found_address() -> str | None:
    """The only running service of this user on this host, if there is just one."""
    from transferqueue.config import address_from_environment
    from transferqueue.service.runtime_dir import running_services

    if address_from_environment() is not None:
        return None
    found = [service.endpoints[0] for service in running_services()]
    if len(found) > 1:
        listed = ", ".join(found)
        raise click.UsageError(f"several services run here, name one with --address: {listed}")
    return found[0] if found else None


def _print_status(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"service {report['service_id']}, up {report['uptime_s']:.0f} s")
    shards = Table("shard", "rows", "MiB used", "of", "leases", "puts waiting", "refused")
    for shard in report["shards"]:
        shards.add_row(
            str(shard["slot"]),
            f"{shard['rows']:,}",
            f"{shard['used_bytes'] / 2**20:.1f}",
            f"{shard['budget_bytes'] / 2**20:.0f}",
            str(shard["leases"]),
            str(shard["puts_waiting"]),
            str(sum(shard["refusals"].values())),
        )
    console.print(shards)
    partitions = Table("partition", "rows", "MiB", "fields", "tasks: free/claimed/acked", "waiting")
    for name, partition in report["partitions"].items():
        tasks = ", ".join(
            f"{task} {state['free']}/{state['claimed']}/{state['acked']}"
            for task, state in partition["tasks"].items()
        )
        partitions.add_row(
            name,
            f"{partition['rows']:,}",
            f"{partition['bytes'] / 2**20:.1f}",
            str(len(partition["fields"])),
            tasks,
            str(sum(partition["waiting"].values())),
        )
    console.print(partitions)


if __name__ == "__main__":
    main()
