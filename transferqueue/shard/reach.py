"""What of a shard's memory a process of its host has: mapped, or open on a device, or both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.backends.several import ADDRESS_BITS
from transferqueue.errors import ArenaReplaced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.backends.several import SeveralBackends


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Of one process."""

    arena: bool
    """Whether it has the shard's arena mapped."""
    devices: frozenset[int] = frozenset()
    """Numbers of the backends whose device memory it opens."""

    def of(self, backend: SeveralBackends, addresses: np.ndarray) -> np.ndarray:
        """Which ranges that begin here it can write itself. bool[ranges]"""
        found = np.zeros(len(addresses), np.bool_)
        if self.arena:
            found |= backend.are_in_arena(addresses)
        if self.devices:
            there = np.isin(addresses >> ADDRESS_BITS, list(self.devices))
            found |= there & backend.are_on_device(addresses)
        return found


NOTHING = Reach(arena=False)
ARENA = Reach(arena=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memories:
    """The tokens of what a shard has."""

    slot: int
    arena: str | None = None
    """``None``: there is none."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """The numbers of backends on devices, by token."""

    @classmethod
    def of(cls, slot: int, backend: SeveralBackends) -> Self:
        return cls(
            slot=slot,
            arena=_token_of(backend.client_access()),
            devices={one["token"]: one["number"] for one in backend.device_accesses()},
        )

    def reached_by(self, process: Mapping[str, Any] | None) -> Reach:
        """``process``: as a request names it, with the tokens of what it has. `ArenaReplaced` for
        one that the shard has no more."""
        if process is None:
            return NOTHING
        tokens = list(process.get("devices", ()))
        is_other = process.get("arena") not in (None, self.arena)
        if is_other or not all(token in self.devices for token in tokens):
            raise ArenaReplaced(self.slot)
        has_arena = process.get("arena") is not None or not tokens
        return Reach(
            arena=has_arena and self.arena is not None,
            devices=frozenset(self.devices[token] for token in tokens),
        )


def _token_of(access: Mapping[str, Any] | None) -> str | None:
    return None if access is None else str(access["token"])
