"""Which service a command is about: options, finding its address, connecting."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from transferqueue.service.commands.output import span

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.client.host_services import RunningService
    from transferqueue.client.sync_client import Client
    from transferqueue.net.keys import ClientKeys

Command = TypeVar("Command", bound="Callable[..., Any]")

ANSWER_S = 0.5
"""How long each service has to answer when there are several to choose from. One that does not is
not left out: the others would be taken for all there are."""

RAY = "ray"
"""An address that stands for the service on the Ray cluster of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the options say."""

    address: str | None
    key_file: Path | None
    timeout_s: float

    def connect(self, **options: Any) -> Client:
        """A client of that service. ``NoService`` when there is none to be found."""
        address, keys = self.locate()
        # Not before it is known which: it imports torch.
        from transferqueue.client.connecting import connect

        return connect(address, keys=keys, timeout_s=self.timeout_s, **options)

    def locate(self) -> tuple[str | None, ClientKeys | None]:
        """Address and key, as `connect` takes them."""
        from transferqueue.net.keys import ClientKeys

        keys = None if self.key_file is None else ClientKeys.load(self.key_file)
        if self.address == RAY:
            from transferqueue.service.ray_lookup import look_up

            connection = look_up()
            return connection.address, keys or connection.keys
        return self.address or _found_address(), keys


def _found_address() -> str | None:
    """The only running service of this user on this host, if there is just one."""
    from transferqueue.client.host_services import running_services
    from transferqueue.environment import address_from_environment
    from transferqueue.errors import NoService

    if address_from_environment() is not None:
        return None
    found = sorted(running_services(), key=lambda service: service.age_s)
    if len(found) > 1:
        listed = "\n  ".join(map(_line, found))
        raise click.UsageError(f"several services run here, name one with --address:\n  {listed}")
    if not found:
        raise NoService(
            ["--address", "$TRANSFERQUEUE_ADDRESS", "this user's services on this host"]
        )
    return found[0].endpoints[0]


def _answers(service: RunningService) -> bool:
    """Whether its coordinator does. Over TCP it is enough that something is there, which may ask
    for another key."""
    from transferqueue.net.greeting import Greeting, greet

    greeting = greet(service.endpoints[0], None, timeout_s=ANSWER_S)
    return greeting in (Greeting.WELCOME, Greeting.REFUSED)


def _line(service: RunningService) -> str:
    says = f"up for {span(service.age_s)}" if _answers(service) else "does not answer: it hangs"
    return f"{service.endpoints[0]}  of process {service.owner_pid}, {says}"


def target_options(command: Command) -> Command:
    """``--address``, ``--key-file`` and ``--timeout-s``, as one argument ``target``."""

    @functools.wraps(command)
    def wrapped(
        *args: Any, address: str | None, key_file: Path | None, timeout_s: float, **kwargs: Any
    ) -> Any:
        target = Target(address=address, key_file=key_file, timeout_s=timeout_s)
        return command(*args, target=target, **kwargs)

    options = (
        click.option(
            "--address",
            metavar="ADDRESS",
            help="ipc:// or tcp:// of the service, or 'ray' for the one on this host's Ray "
            "cluster. Default: $TRANSFERQUEUE_ADDRESS, else the one that runs here.",
        ),
        click.option(
            "--key-file",
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            help="The service's client.key, for tcp:// addresses. Default: "
            "$TRANSFERQUEUE_KEY_FILE, else found for services of this user on this host.",
        ),
        click.option(
            "--timeout-s",
            default=5.0,
            show_default=True,
            type=click.FloatRange(min=0, min_open=True),
            help="For each thing that is asked.",
        ),
    )
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]
