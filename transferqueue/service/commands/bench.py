"""``transferqueue bench``: how fast a service is from here."""

from __future__ import annotations

import click

from transferqueue.service.commands.output import json_epilog, json_option, print_json
from transferqueue.service.commands.target import Target, target_options

KEYS = {
    "transport": "how the shards were reached; the JSON is a list of results",
    "operation": "put, get, or get + read",
    "num_rows": "of one call",
    "num_bytes": "payload of one call",
    "num_calls": "how many were timed",
    "p50_s": "median; null when it failed, as the next ones",
    "p90_s": "",
    "p99_s": "",
    "bytes_per_s": "payload over the median",
    "failure": "why there are no numbers, or null",
}


@click.command(epilog=json_epilog(KEYS))
@target_options
@click.option(
    "--transport",
    "transports",
    multiple=True,
    metavar="auto|shm|ipc|tcp|NAME",
    default=["auto"],
    show_default=True,
    help="How to reach the shards; may be given several times.",
)
@click.option(
    "--size-kib", "sizes_kib", multiple=True, type=click.IntRange(min=1), help="Bytes of a batch."
)
@click.option("--seconds", default=2.0, show_default=True, help="For each size and transport.")
@json_option
def bench(
    target: Target,
    transports: tuple[str, ...],
    sizes_kib: tuple[int, ...],
    seconds: float,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """How fast a service is from here.

    Latency and throughput of put, get and read, in a partition of its own that goes again.
    """
    from transferqueue.service.bench import DEFAULT_SIZES, measure, print_results

    address, keys = target.locate()
    results = measure(
        address,
        keys=keys,
        transports=transports,
        sizes=[size << 10 for size in sizes_kib] or DEFAULT_SIZES,
        seconds_each=seconds,
    )
    if as_json:
        print_json([result.to_plain() for result in results])
    else:
        print_results(results)
