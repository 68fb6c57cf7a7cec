"""What of a shard's memory a process of its host has: mapped, or open on a device, or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.errors import ArenaReplaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.backends.several import SeveralBackends


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Of one process."""

    arena: bool
    """Whether it has the shard's arena mapped."""
    device: bool
    """Whether it has the shard's device memory open."""

    def of(self, backend: SeveralBackends, addresses: np.ndarray) -> np.ndarray:
        """Which ranges that begin here it can write itself. bool[ranges]"""
        found = np.zeros(len(addresses), np.bool_)
        if self.arena:
            found |= backend.are_in_arena(addresses)
        if self.device:
            found |= backend.are_on_device(addresses)
        return found


NOTHING = Reach(arena=False, device=False)
ARENA = Reach(arena=True, device=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """The tokens of what a shard has; ``None``: nothing of the kind."""

    slot: int
    arena: str | None
    device: str | None

    @classmethod
    def of(cls, slot: int, backend: SeveralBackends) -> Self:
        return cls(
            slot=slot,
            arena=_token_of(backend.client_access()),
            device=_token_of(backend.device_access()),
        )

    def reached_by(self, process: Mapping[str, Any] | None) -> Reach:
        """``process``: as a request names it, with the tokens of what it has. `ArenaReplaced` for
        one that the shard has no more."""
        if process is None:
            return NOTHING
        for mine, its in ((self.arena, process.get("arena")), (self.device, process.get("device"))):
            if its is not None and its != mine:
                raise ArenaReplaced(self.slot)
        has_device = process.get("device") is not None
        has_arena = process.get("arena") is not None or not has_device
        return Reach(arena=has_arena and self.arena is not None, device=has_device)


def _token_of(access: Mapping[str, Any] | None) -> str | None:
    return None if access is None else str(access["token"])
