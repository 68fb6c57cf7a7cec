"""The nodes of a Ray cluster that shards can be put on."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import ray
from ray.exceptions import RayError

from transferqueue.closing import Closing
from transferqueue.errors import ConfigError, TransferQueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LOOK_EVERY_S = 2.0
MOST_PAUSE_S = 120.0
"""Between attempts to put shards on a node that cannot have them."""

_log = logging.getLogger(__name__)


def alive_nodes() -> list[str]:
    """Ids of the nodes of the cluster."""
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def chosen_nodes(nodes: Sequence[str] | None, shards_per_node: int) -> list[str]:
    """Those that a service goes to; ``nodes`` ``None``: all. ConfigError when that cannot be."""
    if not ray.is_initialized():
        raise ConfigError("serve_ray needs a connected Ray; call ray.init() first")
    if shards_per_node < 1:
        raise ConfigError(f"shards_per_node must be at least 1, got {shards_per_node}")
    if nodes is None:
        return alive_nodes()
    alive = set(alive_nodes())
    gone = [node for node in nodes if node not in alive]
    if gone or not nodes:
        raise ConfigError(f"no such nodes on the cluster: {gone}; alive are {sorted(alive)}")
    return list(nodes)


class NodeWatch(Closing):
    """Has shards put on nodes that join, in a thread. ``add``: see `RayService.add_shards`."""

    def __init__(self, add: Callable[[], Sequence[int]]) -> None:
        self._add = add
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transferqueue-nodes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        pause_s = LOOK_EVERY_S
        while not self._ended.wait(pause_s):
            pause_s = LOOK_EVERY_S if self._try_to_add() else min(2 * pause_s, MOST_PAUSE_S)

    def _try_to_add(self) -> bool:
        try:
            added = self._add() if ray.is_initialized() else []
        except (TransferQueueError, RayError) as error:
            _log.warning("nodes have joined that have no shard: %s", error)
            return False
        if added:
            _log.info("nodes have joined, with shards %s", list(added))
        return True

    def close(self) -> None:
        """Idempotent. Returns when what was begun has ended."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
