"""Whether a cluster has room for the ranks of a pool, from what its nodes have. Pure.

Every node of a pool is a group of bundles that lie together on one node of the cluster; several
groups may lie on one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CPU = "CPU"
GPU = "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is asked for, beside what there is when nobody else is there."""

    groups: Sequence[Mapping[str, float]]
    """By node of the pool: resource -> how much."""
    nodes: Sequence[Mapping[str, float]]
    """By node of the cluster: resource -> how much it has in all."""

    @property
    def names(self) -> list[str]:
        """The resources that are asked for."""
        return sorted({name for group in self.groups for name in group})

    @property
    def asked(self) -> dict[str, float]:
        return {name: sum(group.get(name, 0.0) for group in self.groups) for name in self.names}

    @property
    def there(self) -> dict[str, float]:
        return {name: sum(node.get(name, 0.0) for node in self.nodes) for name in self.names}

    @property
    def can_ever_do(self) -> bool:
        """Some node is large enough for each group, and all together are for all."""
        return all(self._share(name) >= 1 for name in self.names) and all(
            any(all(node.get(name, 0.0) >= n for name, n in group.items()) for node in self.nodes)
            for group in self.groups
        )

    def way_out(self, ranks_on_nodes: Sequence[int], cpus_per_rank: float) -> str:
        """What to do, in words."""
        ways = [f"ray.init(num_cpus={self.asked[CPU]:g})"] if self._lacks(CPU) else []
        ways += [f"ray.init(num_gpus={self.asked[GPU]:g})"] if self._lacks(GPU) else []
        if not ways:
            return (
                "end what else runs there, or ask for less: fewer ranks on a node, or a smaller "
                "cpus_per_rank, of ResourcePool"
            )
        cpus = math.floor(100 * cpus_per_rank * self._share(CPU)) / 100
        less = f"ResourcePool({list(ranks_on_nodes)}, cpus_per_rank={cpus:g})"
        only_cpus = cpus > 0 and not self._lacks(GPU)
        return f"give Ray more ({', '.join(ways)}), or take {less if only_cpus else 'fewer ranks'}"

    def _lacks(self, name: str) -> bool:
        return name in self.names and self._share(name) < 1

    def _share(self, name: str) -> float:
        """How much of what is asked for is there, on single nodes and in all; may be above 1."""
        if not self.asked.get(name):
            return 1.0
        largest = max((node.get(name, 0.0) for node in self.nodes), default=0.0)
        single = min(largest / group[name] for group in self.groups if group.get(name))
        return min(single, self.there[name] / self.asked[name])
