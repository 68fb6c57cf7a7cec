"""``transferqueue page``: a service in a browser."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from transferqueue.service.commands.output import json_epilog, json_option, print_json
from transferqueue.service.commands.target import Target, target_options

PORT = 9465

KEYS = {
    "address": "of the page; printed when it is served",
    "token_file": "whose text a browser has to show, or null",
}


@click.command(epilog=json_epilog(KEYS))
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option(
    "--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0: any."
)
@click.option(
    "--name", "names", multiple=True, help="Another name of this host that browsers may ask for."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Ask browsers for the text of this file; a new one is written if there is none. Needed "
    "with a --host that others reach.",
)
@click.option(
    "--interval-s", default=1.0, show_default=True, type=click.FloatRange(min=0.1, max=3600),
    help="Between two looks at the service, while a browser is open.",
)  # fmt: skip
@target_options
@json_option
def page(
    host: str,
    port: int,
    names: tuple[str, ...],
    token_file: Path | None,
    interval_s: float,
    target: Target,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """Show a service in a browser, live, until told to end.

    Hosts, shards, what each partition holds, who waits for what and what stages move. It changes
    nothing. Without encryption: from elsewhere use an SSH tunnel, or a proxy with TLS.

    Needs the extra `web`.
    """
    from transferqueue.service.page.server import PageServer
    from transferqueue.service.page.token import token_in

    token = None if token_file is None else token_in(token_file)
    address, keys = target.locate()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with PageServer(
        address,
        keys=keys,
        host=host,
        port=port,
        names=names,
        token=token,
        interval_s=interval_s,
        timeout_s=target.timeout_s,
    ) as served:
        told = {"address": served.address, "token_file": token and str(token_file)}
        if as_json:
            print_json(told)
        else:
            click.echo(f"page      {served.address}")
            if token is not None:
                click.echo(f"token in  {token_file}")
        stop.wait()
