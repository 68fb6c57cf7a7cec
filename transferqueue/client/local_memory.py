"""The arenas of this host's shards, mapped into this process, and the leases on what was got.

A lease lasts as long as any tensor made from it; see `lease_returns` for how it goes back.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.backends.shm_reader import VIEW_FROM_BYTES, ShmReader
from transferqueue.client.counted_copies import copied_counting
from transferqueue.client.lease_returns import LeaseReturns, this_process
from transferqueue.errors import Malformed
from transferqueue.memory.gather import gather
from transferqueue.process_id import boot_id, pid_namespace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.client.counted_copies import Moved
    from transferqueue.client.lease_returns import Lease
    from transferqueue.net.keys import ClientKeys


def why_out_of_reach(facts: Mapping[str, Any]) -> str:
    """Why this process cannot map the arena of a shard, or the shard could not see it end; "" when
    nothing is in the way."""
    plain = facts.get("arena")
    if facts.get("boot_id") != boot_id():
        return "the shard is on another host"
    if plain is None:
        return "its backend keeps no memory that can be mapped"
    not_watched = why_not_watched(facts)
    if not_watched:
        return not_watched
    try:
        arena = ArenaAddress.from_plain(dict(plain))
    except Malformed as error:
        return str(error)
    return "" if arena.is_here() else f"{arena.lock_path} is not here, or is another user's"


def why_not_watched(facts: Mapping[str, Any]) -> str:
    """Why a shard of this host could not see a process of here end; "" when it can."""
    if facts.get("pid_namespace") != pid_namespace():
        return "another pid namespace: the shard could not tell whether this process still looks"
    return ""


class LocalMemory:
    """Everything one client has mapped. ``arenas``: those within reach, by shard slot."""

    def __init__(self, arenas: Mapping[int, ArenaAddress], keys: ClientKeys | None) -> None:
        self._arenas = dict(arenas)
        self._readers = {slot: ShmReader(arena) for slot, arena in arenas.items()}
        self.returns = LeaseReturns(keys)
        """What has ended, on its way back."""
        self.process = this_process()
        """This process, as the shards are told whom they lend memory to."""

    def process_for(self, slot: int) -> dict[str, Any]:
        """This process, and which memory of the shard it has mapped."""
        return {**self.process, "arena": self._arenas[slot].token}

    def look_again(self, arenas: Mapping[int, ArenaAddress]) -> None:
        """Shards may have another memory now. What was got from an earlier one stays valid."""
        for slot, arena in arenas.items():
            known = self._arenas.get(slot)
            if known is None or known.token != arena.token:
                earlier = self._readers.get(slot)
                self._readers[slot], self._arenas[slot] = ShmReader(arena), arena
                if earlier is not None:
                    earlier.close()
        for slot in self._arenas.keys() - arenas.keys():
            del self._arenas[slot]
            self._readers.pop(slot).close()

    def reaches(self, slot: int) -> bool:
        return slot in self._readers

    def writable(self, slot: int, address: int, nbytes: int) -> np.ndarray:
        """Reserved bytes of a shard, to be filled. uint8[nbytes]."""
        return self._readers[slot].writable(address, nbytes)

    def lease(self, slot: int, endpoint: str, lease_id: int) -> Lease:
        """The lease that a shard gave, to be held by what is read under it."""
        return self.returns.lease(self._readers[slot], endpoint, lease_id)

    def read(
        self, lease: Lease, starts: np.ndarray, sizes: np.ndarray, moved: Moved | None = None
    ) -> np.ndarray:
        """Bytes of ranges, in order, the caller's own to edit. uint8[sum(sizes)]. ``moved`` hears
        of those that are copied.

        One large range is a copy-on-write view that holds the lease; anything else is a copy.
        """
        reader = lease.held.reader
        if len(starts) == 1 and int(sizes[0]) >= VIEW_FROM_BYTES:
            try:
                viewed, view = reader.view(int(starts[0]), int(sizes[0]), keep=lease)
            except OSError:
                pass  # no address space left for a view: copy
            else:
                lease.held.views.append(view)
                return viewed
        return self._copy(reader, starts, sizes, moved)

    def _copy(
        self, reader: ShmReader, starts: np.ndarray, sizes: np.ndarray, moved: Moved | None
    ) -> np.ndarray:
        if len(starts) == 0:
            return np.empty(0, dtype=np.uint8)
        low, high = int(starts.min()), int((starts + sizes).max())
        if moved is not None:
            return copied_counting(reader.readable(low, high), starts - low, sizes, moved)
        copied = gather(reader.readable(low, high), starts - low, sizes)
        return copied.copy() if len(starts) == 1 else copied

    def close(self) -> None:
        """Map nothing new. What is held stays valid, and is given back when its tensors go."""
        if os.getpid() != self.process["pid"]:
            return  # all of it is the parent's
        self.returns.close()
        for reader in self._readers.values():
            reader.close()
