"""``transferqueue metrics``: what Prometheus scrapes."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from transferqueue.service.commands.output import json_epilog, json_option, print_json
from transferqueue.service.commands.target import Target, target_options

PORT = 9464

DASHBOARD = Path(__file__).parents[1] / "metrics" / "dashboard.json"

KEYS = {
    "name": "of a metric; the JSON is a list of them",
    "kind": "gauge, counter or histogram",
    "help": "what it means",
    "samples": "a list: labels, value (of a histogram: bounds, counts, sum)",
}


@click.command(epilog=json_epilog(KEYS))
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option(
    "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any."
)
@click.option("--once", is_flag=True, help="Print one scrape instead, and end.")
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana, and end.")
@target_options
@json_option
def metrics(
    host: str,
    port: int,
    once: bool,  # noqa: FBT001 - click's
    dashboard: bool,  # noqa: FBT001 - click's
    target: Target,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Serve metrics to Prometheus, until told to end.

    Bytes by field, latencies, queues, waits, leases, spilling, stages and errors, at /metrics.
    Needs the extra `metrics`; with --json it prints them once and needs nothing.
    """
    if dashboard:
        click.echo(DASHBOARD.read_text(), nl=False)
        return
    if as_json:
        from transferqueue.service.metrics.families import plain

        with target.connect() as client:
            print_json(plain(client.status()))
        return
    from transferqueue.service.metrics.exporter import Exporter, exposition

    with target.connect() as client:
        if once:
            click.echo(exposition(client.status), nl=False)
            return
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        with Exporter(client.status, host=host, port=port) as exporter:
            click.echo(f"metrics   {exporter.address}")
            stop.wait()
