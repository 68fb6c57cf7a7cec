"""When shards that were started can be used: once the coordinator tells clients of them, and, in a
service with two copies of each row, once both are kept. And why they cannot, in the terms of who
starts them.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from transferqueue.errors import ArenaTooSmall, ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from transferqueue.net.keys import ClientKeys

POLL_EVERY_S = 0.02


@contextlib.contextmanager
def room_for(shards_per_host: int) -> Iterator[None]:
    """A shard whose directory is too small knows of itself alone: who starts several on one host
    needs room for all of them."""
    try:
        yield
    except ArenaTooSmall as error:
        raise error.of_each(shards_per_host) from None


def wait_registered(
    address: str, keys: ClientKeys, slots: Iterable[int], *, timeout_s: float
) -> None:
    """Until the coordinator tells clients of these shards. `ServiceFailed` names those that did not
    come."""
    from transferqueue.client.connecting import connect

    deadline_s = time.monotonic() + timeout_s
    missing = set(slots)
    with connect(address, keys=keys, timeout_s=timeout_s) as client:
        while missing:
            missing -= {int(shard["slot"]) for shard in client.status()["shards"]}
            if missing and time.monotonic() > deadline_s:
                raise ServiceFailed("the service", f"shards {sorted(missing)} did not register")
            time.sleep(POLL_EVERY_S * bool(missing))


def wait_in_step(address: str, keys: ClientKeys, *, num_shards: int, timeout_s: float) -> None:
    """Until each of so many shards says that it has a complete second copy, and that is written
    down. `ServiceFailed` names those that have none, or say nothing.

    Shards begin with no guard: what is put before they have one would be acknowledged on one copy,
    as after a loss, and be gone with it.
    """
    from transferqueue.client.connecting import connect

    deadline_s = time.monotonic() + timeout_s
    with connect(address, keys=keys, timeout_s=timeout_s) as client:
        while True:
            lack = _lack(client.status(), num_shards)
            if lack is None:
                return
            if time.monotonic() > deadline_s:
                raise ServiceFailed("the service", f"{lack} after {timeout_s:.0f} s")
            time.sleep(POLL_EVERY_S)


def _lack(status: Mapping[str, Any], num_shards: int) -> str | None:
    """What has not come yet. A shard that is slow to answer may have a copy or not."""
    shards, away = status["shards"], status["shards_away"]
    late = sorted(
        [*away, *(shard["slot"] for shard in shards if not shard["copies"]["is_complete"])]
    )
    if late:
        return f"shards {late} have no second copy"
    if len(shards) < num_shards:
        return f"only {len(shards)} of {num_shards} shards are there"
    return None
