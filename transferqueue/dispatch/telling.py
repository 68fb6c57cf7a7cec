"""A worker's counters on their way to the coordinator, where an operator looks at them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from transferqueue.errors import TransferQueueError

if TYPE_CHECKING:
    from transferqueue.client.sync_client import Client
    from transferqueue.dispatch.traffic import Traffic

EVERY_S = 1.0
TIMEOUT_S = 1.0
AFTER_FAILURE_S = 30.0
"""A stage may run while there is no coordinator, and is held up by this no more than 1 s in 30."""


def tell(client: Client, traffic: Traffic, *, at_once: bool = False) -> None:
    """Tell the service what was counted, every `EVERY_S` at most or ``at_once``. Never fails: the
    counters are for people, and what could not be told is told later."""
    now_s = time.monotonic()
    rows = traffic.take_untold(now_s, again_after_s=EVERY_S, at_once=at_once)
    if not rows:
        return
    try:
        client.tell_stages(rows, timeout_s=TIMEOUT_S)
    except TransferQueueError:
        traffic.not_told(rows, now_s + AFTER_FAILURE_S)
