"""What a home is told of its guard when it starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


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
