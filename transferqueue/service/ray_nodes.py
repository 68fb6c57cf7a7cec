"""The nodes of a Ray cluster that shards can be put on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ray

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


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
