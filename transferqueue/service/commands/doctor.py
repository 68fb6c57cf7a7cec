"""``transferqueue doctor``: what is wrong with this host, or with a service as seen from it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from transferqueue.service.commands.exits import Exit
from transferqueue.service.commands.output import (
    console,
    json_epilog,
    json_option,
    print_json,
    table,
)
from transferqueue.service.commands.target import Target, target_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.service.doctor.check import Check

KEYS = {
    "healthy": "whether no check failed",
    "checks": "a list: name, health (ok, warn, fail), found, advice",
}


@click.command(epilog=json_epilog(KEYS))
@target_options
@click.option(
    "--device",
    metavar="NAME",
    help="Say by which way tensors come to this device (cuda:0), and why not by a better one.",
)
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    target: Target,
    device: str | None,
    as_json: bool,  # noqa: FBT001 - click's
) -> None:
    """What is wrong with this host or a service.

    Versions, memory and limits of the host; ports, clocks and waits of the service, and the way
    from here to each shard with the reason that it is not a better one.

    Without a service it looks at the host alone. Warnings do not change the exit status.
    """
    checks = examine(target, device)
    healthy = not any(check.health == "fail" for check in checks)
    if as_json:
        print_json({"healthy": healthy, "checks": [asdict(check) for check in checks]})
    else:
        show(checks)
    if not healthy:
        ctx.exit(Exit.UNHEALTHY)


def examine(target: Target, device: str | None = None) -> list[Check]:
    """Every check there is. ``device``: where tensors are wanted."""
    from transferqueue.service.doctor.host_checks import check_host
    from transferqueue.service.doctor.host_facts import read_host

    return [*check_host(read_host()), *_of_service(target, device)]


def _of_service(target: Target, device: str | None) -> list[Check]:
    from transferqueue.environment import address_from_environment
    from transferqueue.errors import TransferQueueError
    from transferqueue.service.doctor.service_checks import check_service, unreached
    from transferqueue.service.doctor.service_facts import read_service

    try:
        with target.connect(device=device) as client:
            return check_service(read_service(client))
    except TransferQueueError as error:
        named = target.address is not None or address_from_environment() is not None
        return [unreached(error, was_named=named)]


def show(checks: Sequence[Check]) -> None:
    rows = [
        (check.health.upper() if check.health != "ok" else "ok", check.name,
         check.found + (f"\n  → {check.advice}" if check.advice else ""))
        for check in checks
    ]  # fmt: skip
    console().print(table("", "check", "found", rows=rows))
