"""Orders to free rows, one for each shard that has some of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.coordinator.effects import FreeRows

if TYPE_CHECKING:
    from transferqueue.coordinator.effects import Effect
    from transferqueue.coordinator.uid_ranges import Uids
    from transferqueue.homes import Homes


def frees(
    partition: str, homes: Homes, uids: Uids, fields: tuple[str, ...] | None = None
) -> list[Effect]:
    """``fields``: free these cells only; ``None`` frees the whole rows."""
    return [
        FreeRows(slot=slot, partition=partition, uids=uids[at], fields=fields)
        for slot, at in homes.split(uids).items()
    ]
