"""`ResourcePool`: the places on a Ray cluster that ranks are put at."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from transferqueue.closing import Closing
from transferqueue.errors import ConfigError
from workers.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        """One a rank, reserved. ``WorkerError`` when the cluster has no room in time."""
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
        bundle = {"CPU": self.cpus_per_rank * self.max_groups, **self.resources}
        if self.gpus_per_rank:
            bundle["GPU"] = self.gpus_per_rank
        bundle = {name: amount for name, amount in bundle.items() if amount}
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
            raise WorkerError(
                f"the cluster has no room for {list(self.ranks_on_nodes)} ranks of {bundle} after "
                f"{self.ready_timeout_s:.0f} s; it has {ray.available_resources()}"
            ) from None
        return _same_size_by_node(groups, self.ranks_on_nodes)

    def close(self) -> None:
        """Give the places back; ranks that are still there end. Idempotent."""
        groups, self._groups = self._groups, []
        for group in groups:
            remove_placement_group(group)


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
