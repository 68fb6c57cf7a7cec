"""A shard's edge for moving slabs from one of its backends to another.

A move is: copy and seal; write it in the journal; only then point the index at the copy and free
what was copied. Killed in between, the shard's successor finds in its journal where each slab is,
and the room of a copy that nobody knows of is free again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.shard.moving import Move

if TYPE_CHECKING:
    import numpy as np

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """What a move needs."""

    store: Store
    backend: SeveralBackends
    journal: ShardJournal

    def move(self, slab_ids: np.ndarray, number: int) -> int:
        """Move slabs, which nobody looks at and no put writes, to the backend of this number, as
        many of the first as there is room for. Returns how many; 0, and no change, also when the
        journal has no room.

        ServiceFailed or BytesDamaged when they could not be copied; no change then either.
        """
        while len(slab_ids):
            move = Move(self.store, slab_ids)
            found = self.backend.copy_to(number, move.ranges())
            if found is not None:
                return len(slab_ids) if self._point_at(found, move) else 0
            slab_ids = slab_ids[: len(slab_ids) // 2]  # the room there may be in pieces
        return 0

    def _point_at(self, found: tuple[np.ndarray, np.ndarray], move: Move) -> bool:
        if not self.journal.moved(self.store, move.slab_ids, *found):
            self.backend.free(*found)
            return False
        self.backend.free(*move.to(*found))
        return True
