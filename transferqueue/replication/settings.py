"""What a home is told of its guard when it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


def guard_of(slot: int, num_shards: int) -> int:
    """The slot whose shard keeps the second copy of this one's rows: the next, so that each shard
    keeps one and no two keep one another's unless there are only two."""
    return (slot + 1) % num_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """Where the second copy goes."""

    slot: int
    endpoint: str
    bytes_per_s: float
    """Of copies in the background."""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> GuardSettings:
        return cls(**plain)
