"""Finding a service and connecting to it: `connect` and `connect_async`."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from transferqueue.client.hello import open_session
from transferqueue.client.host_services import running_services
from transferqueue.client.local_memory import LocalMemory
from transferqueue.client.operations import Operations
from transferqueue.client.own_services import running_service
from transferqueue.client.progress import is_notebook
from transferqueue.client.sync_client import Client
from transferqueue.config import ClientConfig, Transport
from transferqueue.environment import (
    ADDRESS_VARIABLE,
    address_from_environment,
    key_file_from_environment,
)
from transferqueue.errors import ConfigError, NoKey, NoService
from transferqueue.net.keys import ClientKeys
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.transports.registry import transport_names
from transferqueue.wire.columns import ObjectPolicy

if TYPE_CHECKING:
    from transferqueue.client.async_client import AsyncClient
    from transferqueue.client.session import Session
    from transferqueue.net.calls import Channel
    from transferqueue.service.ray_supervisor import RayConnection


Choice = TypeVar("Choice", bound=StrEnum)


def connect(
    address: str | None = None,
    *,
    keys: ClientKeys | None = None,
    timeout_s: float = 30.0,
    objects: str = "plain",
    transport: str = "auto",
    progress: bool | None = None,
    tracing: bool = False,
    device: str | None = None,
    required: str | None = None,
) -> Client:
    """Connect to a service.

    ``address``: ``Service.address`` or any ``ipc://`` or ``tcp://`` address of its coordinator.
    Without it: ``$TRANSFERQUEUE_ADDRESS``, else the service that this process started, else the one
    that ``serve_ray`` started on the Ray cluster that this process is connected to. ``keys``:
    needed over TCP; found by itself for a service of this user on this host or on that cluster,
    else read from ``$TRANSFERQUEUE_KEY_FILE``. ``timeout_s``: deadline of this call and default of
    all calls of the client. ``objects="pickle"`` lets object columns hold any Python object, on
    both ends; only among peers that trust one another. ``transport``: a `Transport`, to force a
    way, or the name of a transport of your own that large bytes must take, but for those that a
    shard keeps on a disk or in thousands of pieces. ``progress``: whether
    puts, gets and checkpoints that take long show a bar; ``None``: in a notebook. ``tracing``:
    whether calls make OpenTelemetry spans (extra ``otel``), by the provider that this process has
    set. ``device``: where gets land, e.g. ``"cuda:0"``; default: memory of the host. ``required``:
    the worst way, a `Rung` such as ``"same-gpu"``, by which bytes may come there.

    Raises ``NoService`` without an address, ``ConfigError`` for one that cannot be (``NoKey`` for
    a TCP address without a key; ``DeviceMissing``, ``RungRefused``), and ``ServiceUnreachable``
    when nobody answers there in time (``KeyRefused`` when somebody is there and does not take the
    key).
    """
    address, keys = _locate(address, keys)
    config = _config(
        timeout_s, transport, progress, tracing=tracing, device=device, required=required
    )
    policy = _choice(ObjectPolicy, "objects", objects)
    channels = SyncChannelPool(keys)
    try:
        session = run_blocking(
            open_session(
                channels,
                address,
                keys,
                transport=config.transport,
                timeout_s=timeout_s,
                window=config.window,
            )
        )
        memory = LocalMemory(session.arenas, keys)
        operations = _operations(channels, session, memory, config, policy)
    except BaseException:
        channels.close()
        raise
    return Client(operations, channels)


async def connect_async(
    address: str | None = None,
    *,
    keys: ClientKeys | None = None,
    timeout_s: float = 30.0,
    objects: str = "plain",
    transport: str = "auto",
    progress: bool | None = None,
    tracing: bool = False,
    device: str | None = None,
    required: str | None = None,
) -> AsyncClient:
    """As `connect`, for an event loop."""
    from transferqueue.client.async_client import AsyncClient
    from transferqueue.net.async_channel import AsyncChannel

    address, keys = _locate(address, keys)
    config = _config(
        timeout_s, transport, progress, tracing=tracing, device=device, required=required
    )
    policy = _choice(ObjectPolicy, "objects", objects)
    channel = AsyncChannel(keys)
    try:
        session = await open_session(
            channel,
            address,
            keys,
            transport=config.transport,
            timeout_s=timeout_s,
            window=config.window,
        )
        memory = LocalMemory(session.arenas, keys)
        operations = _operations(channel, session, memory, config, policy)
    except BaseException:
        await channel.close()
        raise
    return AsyncClient(operations, channel)


def _config(
    timeout_s: float,
    transport: str,
    progress: bool | None,  # noqa: FBT001
    *,
    tracing: bool,
    device: str | None,
    required: str | None,
) -> ClientConfig:
    is_window = transport not in list(Transport)
    if is_window and transport not in transport_names():
        known = [*(choice.value for choice in Transport), *transport_names()]
        raise ConfigError(f"transport must be one of {known}, got {transport!r}")
    return ClientConfig(
        timeout_s=timeout_s,
        transport=Transport.AUTO if is_window else Transport(transport),
        window=transport if is_window else None,
        progress=is_notebook() if progress is None else progress,
        tracing=tracing,
        device=device,
        required=required,
    )


def _operations(
    channel: Channel,
    session: Session,
    memory: LocalMemory,
    config: ClientConfig,
    policy: ObjectPolicy,
) -> Operations:
    """With the way to every shard as good as required, or nothing is left open."""
    operations = Operations(channel, session, memory, config, policy)
    try:
        operations.data.devices.check(session.shard(slot) for slot in session.slots)
        operations.windows.check(session.shard(slot) for slot in session.slots)
    except BaseException:
        operations.close()
        raise
    return operations


def _choice(choices: type[Choice], argument: str, value: str) -> Choice:
    try:
        return choices(value)
    except ValueError:
        known = [choice.value for choice in choices]
        raise ConfigError(f"{argument} must be one of {known}, got {value!r}") from None


def _locate(address: str | None, keys: ClientKeys | None) -> tuple[str, ClientKeys | None]:
    service = running_service()
    if address is None:
        address = address_from_environment()
    if address is None and service is not None:
        address = service.address
    if address is None:
        connection = _ray_connection()
        if connection is None:
            raise NoService([f"${ADDRESS_VARIABLE}", "this process", "Ray"], _running_elsewhere())
        return connection.address, keys or connection.keys
    if not address.startswith(("ipc://", "tcp://", "inproc://")):
        raise ConfigError(f"an address starts with ipc:// or tcp://, got {address!r}")
    if address.startswith("tcp://") and keys is None:
        keys = _find_keys(address)
    return address, keys


def _running_elsewhere() -> list[str]:
    """Services that other processes of this user have started on this host. They are not taken
    without being named: they may be another job's."""
    return [service.endpoints[0] for service in running_services()]


def _ray_connection() -> RayConnection | None:
    """The service on the Ray cluster that this process is connected to, if it is to any."""
    if "ray" not in sys.modules:
        return None
    from transferqueue.service.ray_actors import ray_connection

    return ray_connection()


def _find_keys(address: str) -> ClientKeys:
    key_file = key_file_from_environment()
    if key_file is not None:
        return ClientKeys.load(key_file)
    for service in running_services():
        if address in service.endpoints:
            return ClientKeys.load(service.key_file)
    connection = _ray_connection()
    if connection is not None and address in connection.endpoints:
        return connection.keys
    raise NoKey(address)
