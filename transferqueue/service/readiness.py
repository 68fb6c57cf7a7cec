"""When shards that were started can be used: once the coordinator tells clients of them, and, in a
service with two copies of each row, once both are kept.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from transferqueue.errors import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transferqueue.net.keys import ClientKeys

POLL_EVERY_S = 0.02


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


def wait_in_step(address: str, keys: ClientKeys, *, timeout_s: float) -> None:
    """Until every shard that there is has a complete second copy, and that is written down.
    `ServiceFailed` names those that have none.

    Shards begin with no guard: what is put before they have one would be acknowledged on one copy,
    as after a loss, and be gone with it.
    """
    from transferqueue.client.connecting import connect

    deadline_s = time.monotonic() + timeout_s
    with connect(address, keys=keys, timeout_s=timeout_s) as client:
        while True:
            shards = client.status()["shards"]
            late = [shard["slot"] for shard in shards if not shard["copies"]["is_complete"]]
            if not late:
                return
            if time.monotonic() > deadline_s:
                raise ServiceFailed(
                    "the service", f"shards {late} have no second copy after {timeout_s:.0f} s"
                )
            time.sleep(POLL_EVERY_S)
