"""`ResourcePool`: the places on a Ray cluster that ranks are put at."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from transferqueue.closing import Closing
from transferqueue.errors import ConfigError
from workers.cluster_room import CPU, GPU, Room
from workers.errors import NoRoom

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank goes."""

    group: Any
    """The placement group, all on one node."""
    bundle: int
    node: int
    """Number of the node in the pool."""

    @property
    def strategy(self) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(
            placement_group=self.group, placement_group_bundle_index=self.bundle
        )


@dataclass(slots=True)
class ResourcePool(Closing):
    """Ranks by node: ``ResourcePool([8, 8])`` is two nodes of eight.

    Reserved on the cluster at the first use, as one placement group a node whose bundles are
    together on it. Several groups may share a pool, each with ``1 / max_groups`` of a GPU and
    ``cpus_per_rank`` CPUs a rank. A context manager; `close` gives the places back.
    """

    ranks_on_nodes: Sequence[int]
    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    """More that each rank needs, such as ``{"rollout_node": 0.01}``."""
    max_groups: int = 1
    """How many worker groups may have ranks here at once."""
    name: str = ""
    ready_timeout_s: float = 60.0
    _groups: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.ranks_on_nodes or any(count < 1 for count in self.ranks_on_nodes):
            raise ConfigError(f"a pool has 1 or more ranks on each node: {self.ranks_on_nodes}")
        if self.max_groups < 1:
            raise ConfigError(f"max_groups must be at least 1, got {self.max_groups}")

    @property
    def world_size(self) -> int:
        return sum(self.ranks_on_nodes)

    @property
    def actor_options(self) -> dict[str, Any]:
        """What one rank of one group takes of its place."""
        options: dict[str, Any] = {"num_cpus": self.cpus_per_rank}
        if self.gpus_per_rank:
            options["num_gpus"] = self.gpus_per_rank / self.max_groups
        if self.resources:
            options["resources"] = {n: v / self.max_groups for n, v in self.resources.items()}
        return options

    def places(self) -> list[Place]:
        """One a rank, reserved. ``NoRoom`` when the cluster has none in time, and at once when it
        never will; ``ConfigError`` when this process is connected to no cluster."""
        if not self._groups:
            self._groups = self._reserve()
        return [
            Place(group, bundle, node)
            for node, (group, count) in enumerate(
                zip(self._groups, self.ranks_on_nodes, strict=True)
            )
            for bundle in range(count)
        ]

    def _reserve(self) -> list[Any]:
        if not ray.is_initialized():  # Ray would start a cluster of its own for some calls
            raise ConfigError("ranks on Ray need a connected Ray; call ray.init() first")
        bundle = {CPU: self.cpus_per_rank * self.max_groups, **self.resources}
        if self.gpus_per_rank:
            bundle[GPU] = self.gpus_per_rank
        bundle = {name: amount for name, amount in bundle.items() if amount}
        self._check_room(bundle)
        name = self.name or f"workers-{secrets.token_hex(3)}"
        groups = [
            placement_group([bundle] * count, strategy="STRICT_PACK", name=f"{name}-{node}")
            for node, count in enumerate(self.ranks_on_nodes)
        ]
        try:
            ray.get([group.ready() for group in groups], timeout=self.ready_timeout_s)
        except ray.exceptions.GetTimeoutError:
            for group in groups:
                remove_placement_group(group)
            raise self._no_room(self._room(bundle), self.ready_timeout_s) from None
        return _same_size_by_node(groups, self.ranks_on_nodes)

    def _room(self, bundle: Mapping[str, float]) -> Room:
        return Room(
            groups=[
                {name: amount * count for name, amount in bundle.items()}
                for count in self.ranks_on_nodes
            ],
            nodes=[node["Resources"] for node in ray.nodes() if node["Alive"]],
        )

    def _check_room(self, bundle: Mapping[str, float]) -> None:
        """Raise where waiting is no use. A Ray that was there before this process is waited for: an
        autoscaler, or a person, may be adding nodes to it, and Ray does not say whether one is."""
        room = self._room(bundle)
        if room.can_ever_do:
            return
        if _started_here():
            raise self._no_room(room, 0.0)
        _log.warning("waits %.0f s for nodes: %s", self.ready_timeout_s, self._no_room(room, 0.0))

    def _no_room(self, room: Room, waited_s: float) -> NoRoom:
        free = ray.available_resources()
        return NoRoom(
            self.ranks_on_nodes,
            room.asked,
            room.there,
            {name: free.get(name, 0.0) for name in room.names},
            room.way_out(self.ranks_on_nodes, self.cpus_per_rank),
            waited_s,
        )

    def close(self) -> None:
        """Give the places back; ranks that are still there end. Idempotent."""
        groups, self._groups = self._groups, []
        for group in groups:
            remove_placement_group(group)


def _started_here() -> bool:
    """Whether ``ray.init()`` of this process started Ray, on this host alone."""
    node = getattr(ray._private.worker, "_global_node", None)
    return node is not None and bool(node.is_head())


def _same_size_by_node(groups: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Groups of one size by the id of their node: a job that is started again on the same nodes
    has its ranks where they were, so that checkpoints kept on a node's disk are found."""

    def node_of(group: Any) -> str:
        return str(placement_group_table(group)["bundles_to_node_id"][0])

    by_size: dict[int, list[Any]] = {}
    for group, size in zip(groups, sizes, strict=True):
        by_size.setdefault(size, []).append(group)
    ordered = {size: iter(sorted(same, key=node_of)) for size, same in by_size.items()}
    return [next(ordered[size]) for size in sizes]
