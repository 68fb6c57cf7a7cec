"""A shard as the coordinator knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(slots=True, kw_only=True)
class ShardLink:
    """A shard as the coordinator knows it."""

    slot: int
    peer: bytes
    incarnation: str
    lineage: str
    """The same of all processes that one owner starts for the slot, one after the other."""
    endpoints: list[str]
    facts: dict[str, Any]
    """What clients need to choose a way to it: boot id, arena, …"""
    next_event: int = 1
    """The event of its stream that comes next; earlier ones are repeats."""
    heard_s: float = 0.0
    """When it said something last."""
    terms_heard: int = 0
    """The number of the last `Terms` that it knows; all that it had done before is known here."""
    told: list[NDArray[np.int64]] | None = field(default_factory=list)
    """The rows that its account named so far; ``None`` when all of it has come."""
