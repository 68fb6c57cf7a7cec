"""What a part of a service holds, by shard and partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from transferqueue.client.sync_client import Client
    from transferqueue.uids import Uids


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows:
    """Samples of one partition on one shard."""

    slot: int
    partition: str
    num_rows: int

    def __str__(self) -> str:
        return f"{self.num_rows} rows of {self.partition!r} on shard {self.slot}"


def count_by_slot(
    partition: str, homes_of_rows: Uids, slots: Collection[int]
) -> tuple[HeldRows, ...]:
    """Of samples on these shards, those on each of ``slots`` that has any."""
    found, counts = np.unique(homes_of_rows, return_counts=True)
    return tuple(
        HeldRows(slot=slot, partition=partition, num_rows=num_rows)
        for slot, num_rows in zip(found.tolist(), counts.tolist(), strict=True)
        if slot in slots
    )


def held_rows(client: Client, slots: Collection[int]) -> tuple[HeldRows, ...]:
    """What these shards hold, as the coordinator knows it: they need not be there any more."""
    homes = client._ops.session.homes
    return tuple(
        held
        for partition in sorted(client.held())
        for held in count_by_slot(partition, homes.of(client.select(partition).uids), slots)
    )
