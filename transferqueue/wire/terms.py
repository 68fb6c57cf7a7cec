"""What shards have to know of partitions before puts come to them; the coordinator tells them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Of all partitions that have any."""

    limited: frozenset[str] = frozenset()
    """They have a quota: new rows ask the coordinator first."""
    backends: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By partition which backend its fields go to: see `PartitionPolicy.backend`."""

    one_copy: frozenset[str] = frozenset()
    """Their rows have no second copy, although others may."""

    def to_plain(self) -> dict[str, Any]:
        return {
            "partitions": sorted(self.limited),
            "one_copy": sorted(self.one_copy),
            "backends": {name: dict(choice) for name, choice in self.backends.items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        return cls(
            limited=frozenset(str(name) for name in plain["partitions"]),
            one_copy=frozenset(str(name) for name in plain["one_copy"]),
            backends={str(name): dict(choice) for name, choice in plain["backends"].items()},
        )
