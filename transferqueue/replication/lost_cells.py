"""Cells of which a copy has no bytes: the store that they lay in did not give them for it.

Their rows are there, for what is put to them later is to be in the copy too. Whoever takes the
rows from such a copy drops those that still lack bytes: they are lost, and are not rows that never
had the field. No socket, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from transferqueue.shard.store import Store


class Unreadable(Exception):
    """Thrown into the steps of a copy: the bytes of the step that came last cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostField:
    """One field of some rows."""

    partition: str
    field: str
    uids: np.ndarray  # int64[rows]


class LostCells:
    """Of a store that is a copy of another."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._uids: dict[tuple[str, str], np.ndarray] = {}

    def lose(self, partition: str, field: str, uids: np.ndarray) -> None:
        """Their bytes did not come."""
        key = partition, field
        known = self._uids.get(key)
        self._uids[key] = np.unique(uids) if known is None else np.union1d(known, uids)

    def forget(self, partition: str, field: str, uids: np.ndarray) -> None:
        """They were written again, or released."""
        key = partition, field
        known = self._uids.get(key)
        if known is not None:
            self._uids[key] = np.setdiff1d(known, uids)

    def each(self) -> Iterator[LostField]:
        """Of the rows that are there still."""
        for (partition, field), uids in self._uids.items():
            table = self._store.partitions.get(partition)
            left = uids[:0] if table is None else uids[table.find(uids)[1]]
            if len(left):
                yield LostField(partition=partition, field=field, uids=left)

    def are_of(self, partition: str, fields: Collection[str]) -> bool:
        """Whether some rows lack one of these."""
        return any(one.partition == partition and one.field in fields for one in self.each())

    def drop_rows(self) -> int:
        """Drop every row that lacks bytes. Returns how many."""
        num_rows = 0
        for one in list(self.each()):
            num_rows += len(self._store.clear(one.partition, one.uids))
            self._store.lost_in[one.partition] = self._store.next_uid
        return num_rows
