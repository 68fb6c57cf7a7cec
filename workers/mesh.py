"""How the ranks of a group share a batch. Pure.

A batch is cut into as many parts as there are data-parallel ranks. Ranks that differ only in the
other axes (tensor, pipeline, context parallel) are replicas: they get the same part, and one of
them answers for it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which part of a batch each rank gets, and which ranks answer for their part.

    Invariant: parts are numbered from 0 without gaps, and one rank collects for each.
    """

    part_of_rank: tuple[int, ...]
    """By rank: its data-parallel rank."""
    collects: tuple[bool, ...]
    """By rank: whether its answer counts, and whether it stores what a HANDLE method writes."""
    num_parts: int = field(init=False, repr=False, compare=False)
    answering_ranks: list[int] = field(init=False, repr=False, compare=False)
    """The rank that collects for each part, by part: not by rank, so that rows stay in order
    whatever order the mesh numbers its ranks in."""

    def __post_init__(self) -> None:
        if len(self.part_of_rank) != len(self.collects) or not self.part_of_rank:
            raise ConfigError(
                f"part_of_rank and collects have one entry a rank, got {len(self.part_of_rank)} "
                f"and {len(self.collects)}"
            )
        object.__setattr__(self, "num_parts", max(self.part_of_rank) + 1)
        ranks = compress(range(self.world_size), self.collects)
        answering = sorted(ranks, key=lambda rank: self.part_of_rank[rank])
        object.__setattr__(self, "answering_ranks", answering)
        if sorted(set(self.part_of_rank)) != list(range(self.num_parts)):
            raise ConfigError(f"parts must be numbered 0, 1, … without gaps: {self.part_of_rank}")
        num_answering = Counter(compress(self.part_of_rank, self.collects))
        for part in range(self.num_parts):
            if num_answering[part] != 1:
                raise ConfigError(
                    f"{num_answering[part]} ranks collect for part {part} (ranks "
                    f"{self.replicas(part)}); it must be one, or rows are lost or come twice"
                )

    @property
    def world_size(self) -> int:
        return len(self.part_of_rank)

    def replicas(self, part: int) -> list[int]:
        """The ranks that get this part."""
        return [rank for rank, own in enumerate(self.part_of_rank) if own == part]

    @classmethod
    def flat(cls, world_size: int) -> Placement:
        """A part for every rank."""
        return cls(part_of_rank=tuple(range(world_size)), collects=(True,) * world_size)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks laid out along named axes, the last one varying fastest.

    ``Mesh.of(dp=2, tp=4)``: ranks 0 to 3 share the first half of a batch. ``data`` names the axes
    that cut the batch; the ranks at 0 of all others collect.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    data: tuple[str, ...] = ("dp",)

    @classmethod
    def of(cls, *, data: Sequence[str] = ("dp",), **axes: int) -> Mesh:
        """``axes``: name to size, slowest first. Without an axis of ``data`` all ranks are
        replicas of one part."""
        return cls(names=tuple(axes), sizes=tuple(axes.values()), data=tuple(data))

    def __post_init__(self) -> None:
        if not self.sizes or any(type(size) is not int or size < 1 for size in self.sizes):
            raise ConfigError(f"a mesh has axes of size 1 or more, got {dict(self.axes)}")
        if len(set(self.names)) != len(self.sizes):
            raise ConfigError(f"a mesh has one name an axis, got {self.names} for {self.sizes}")

    @property
    def axes(self) -> dict[str, int]:
        return dict(zip(self.names, self.sizes, strict=True))

    @property
    def world_size(self) -> int:
        return math.prod(self.sizes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands along each axis."""
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"rank {rank} is not in a mesh of {self.world_size} ranks")
        place = np.unravel_index(rank, self.sizes)
        return dict(zip(self.names, map(int, place), strict=True))

    @property
    def placement(self) -> Placement:
        """Who gets which part, and who collects."""
        return _placement_of(self)


@lru_cache(maxsize=64)
def _placement_of(mesh: Mesh) -> Placement:
    """Cached: every call of a group asks, and a mesh may have thousands of ranks."""
    places = np.indices(mesh.sizes).reshape(len(mesh.sizes), -1)  # [axes, ranks]
    cutting = [axis for axis, name in enumerate(mesh.names) if name in mesh.data]
    others = [axis for axis in range(len(mesh.sizes)) if axis not in cutting]
    parts = np.zeros(mesh.world_size, dtype=np.int64)
    for axis in cutting:
        parts = parts * mesh.sizes[axis] + places[axis]
    collects = (places[others] == 0).all(axis=0)
    return Placement(part_of_rank=tuple(parts.tolist()), collects=tuple(collects.tolist()))
