"""The first words with a service: who is there, and whether it takes our key."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from transferqueue.client.session import Session
from transferqueue.errors import (
    KeyRefused,
    Malformed,
    MemoryOutOfReach,
    ServiceUnreachable,
    TransferQueueError,
)
from transferqueue.net.calls import Call, Channel, raise_first
from transferqueue.net.listening import is_listening
from transferqueue.process_id import boot_id
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.config import Transport
    from transferqueue.net.keys import ClientKeys

SETTLE_S = 1.0
"""A shard that listens has told the coordinator which memory it has after so long."""

PATIENCE_S = 2.0
"""Who has said nothing for so long may have refused the key, which is not answered."""

GREETING_S = 0.5


async def open_session(
    channel: Channel,
    address: str,
    keys: ClientKeys | None,
    *,
    transport: Transport,
    timeout_s: float,
    window: str | None = None,
) -> Session:
    """Greet the coordinator at ``address``. `ServiceUnreachable` when nobody answers in time;
    `KeyRefused`, soon, when somebody is there and does not take the key.

    A shard that has just lost its memory may still stand there with it: where memory must be
    mapped the coordinator's next word is waited for.
    """
    deadline_s = time.monotonic() + timeout_s
    hello = await _first_hello(channel, address, keys, timeout_s)
    while True:
        try:
            return _session(address, hello, transport, window)
        except MemoryOutOfReach as error:
            shard = next(one for one in hello["shards"] if one["slot"] == error.args[0])
            if shard.get("boot_id") != boot_id():
                raise
            wait_s = deadline_s - time.monotonic()
            if any(map(is_listening, shard["endpoints"])):
                wait_s = min(wait_s, SETTLE_S)
            known = hello.get(ops.SHARDS_EPOCH)
            if known is None or wait_s <= 0:
                raise
            try:
                hello = await _greet(channel, address, {"unless": known}, wait_s)
            except ServiceUnreachable:
                raise error from None
            if hello.get(ops.SHARDS_EPOCH) == known:  # it did not wait for another one
                raise


async def _first_hello(
    channel: Channel, address: str, keys: ClientKeys | None, timeout_s: float
) -> Mapping[str, Any]:
    patience_s = min(timeout_s, PATIENCE_S)
    try:
        return await _greet(channel, address, {}, patience_s)
    except ServiceUnreachable as error:
        if await _is_refused(channel, address, keys):
            raise KeyRefused(*error.args) from None
        if patience_s == timeout_s:
            raise
    try:
        return await _greet(channel, address, {}, timeout_s - patience_s)
    except ServiceUnreachable as error:
        endpoint, op, waited_s = error.args
        raise ServiceUnreachable(endpoint, op, patience_s + waited_s) from None


async def _is_refused(channel: Channel, address: str, keys: ClientKeys | None) -> bool:
    """Whether the key is the reason for a silence."""
    if not address.startswith("tcp://"):
        return False
    from transferqueue.net.greeting import Greeting, greet

    (found,) = await channel.apart([partial(greet, address, keys, timeout_s=GREETING_S)])
    return found is Greeting.REFUSED


async def _greet(
    channel: Channel, address: str, body: Mapping[str, Any], timeout_s: float
) -> Mapping[str, Any]:
    call = Call(endpoint=address, op=ops.HELLO, body=body)
    (message,) = raise_first(await channel.exchange([call], timeout_s=timeout_s))
    return message.body


def _session(
    address: str, hello: Mapping[str, Any], transport: Transport, window: str | None
) -> Session:
    try:
        return Session(coordinator=address, hello=hello, transport=transport, window=window)
    except TransferQueueError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed(f"{address} answered hello with something else: {error!r}") from error
