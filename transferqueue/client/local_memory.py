"""The arenas of this host's shards, mapped into this process, and the leases on what was got.

A lease lasts as long as any tensor made from it. When the last of them is gone, a finalizer notes
the lease and a thread tells the shards, several leases at a time. The finalizer may run at any
point of any thread, so it only puts a number on a reentrant queue.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.arena_address import ArenaAddress, boot_id
from transferqueue.backends.arena_owner import ProcessId, pid_namespace
from transferqueue.backends.gather import gather
from transferqueue.backends.shm_reader import VIEW_FROM_BYTES, ShmReader
from transferqueue.client.forks import Forks
from transferqueue.errors import Closed, Malformed, ServiceUnreachable
from transferqueue.net.calls import Call
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.backends.private_views import View
    from transferqueue.devices.slots import SlotRef
    from transferqueue.net.keys import ClientKeys

_IPC = "ipc://"

LOOK_AGAIN_S = 0.5
"""How often forked children are looked for, while something is kept for them, and shards that did
not answer are told again."""

ANSWER_S = 0.5
"""How long a shard has to answer that it knows of the end of leases."""

GIVE_UP_S = 5.0
"""For how long a client that was closed tells a shard that does not answer. What it does not hear
of it takes back when this process ends."""

MAX_UNTOLD = 65_536
"""Leases of one shard, the newest, that it is told of when it is back."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What a lease holds. Outlives the lease by the time it takes to give it back."""

    reader: ShmReader
    endpoint: str
    lease_id: int
    number: int
    """Among the leases of this client, from 1 on."""
    views: list[View]


class Lease:
    """Kept alive by every array that looks at leased memory; when it goes, the lease is over."""

    __slots__ = ("__weakref__", "_ended", "held")

    def __init__(self, held: _Held, ended: queue.SimpleQueue[_Held | None]) -> None:
        self.held = held
        self._ended = ended

    def __del__(self) -> None:
        self._ended.put(self.held)


class LocalMemory:
    """Everything one client has mapped. ``arenas``: those within reach, by shard slot."""

    def __init__(self, arenas: Mapping[int, ArenaAddress], keys: ClientKeys | None) -> None:
        self._arenas = dict(arenas)
        self._readers = {slot: ShmReader(arena) for slot, arena in arenas.items()}
        self._returns = LeaseReturns(keys)
        process = ProcessId.of(os.getpid())
        assert process is not None
        self.process: dict[str, Any] = asdict(process)
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
        return self._returns.lease(self._readers[slot], endpoint, lease_id)

    def read(self, lease: Lease, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Bytes of ranges, in order, the caller's own to edit. uint8[sum(sizes)].

        One large range is a copy-on-write view that holds the lease; anything else is a copy.
        """
        reader = lease.held.reader
        if len(starts) == 1 and int(sizes[0]) >= VIEW_FROM_BYTES:
            with contextlib.suppress(OSError):  # no address space left for a view: copy
                viewed, view = reader.view(int(starts[0]), int(sizes[0]), keep=lease)
                lease.held.views.append(view)
                return viewed
        return self._copy(reader, starts, sizes)

    def _copy(self, reader: ShmReader, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        if len(starts) == 0:
            return np.empty(0, dtype=np.uint8)
        low, high = int(starts.min()), int((starts + sizes).max())
        copied = gather(reader.readable(low, high), starts - low, sizes)
        return copied.copy() if len(starts) == 1 else copied

    def close(self) -> None:
        """Map nothing new. What is held stays valid, and is given back when its tensors go."""
        if os.getpid() != self.process["pid"]:
            return  # all of it is the parent's
        self._returns.close()
        for reader in self._readers.values():
            reader.close()


class LeaseReturns:
    """Gives leases back to their shards, from a thread that starts with the first lease."""

    def __init__(self, keys: ClientKeys | None) -> None:
        self._keys = keys
        self._ended: queue.SimpleQueue[_Held | None] = queue.SimpleQueue()
        self._kept: list[_Held] = []
        """Have ended here, but a forked child may still look."""
        self._untold: dict[str, list[int]] = defaultdict(list)
        """By endpoint, leases that have ended and whose shard has not answered that it knows."""
        self._forks = Forks()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._give_up_s = math.inf

    def lease(self, reader: ShmReader, endpoint: str, lease_id: int) -> Lease:
        with self._lock:
            self._forks.num_leases += 1
            self._forks.num_live += 1
            number = self._forks.num_leases
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="transferqueue-leases", daemon=True
                )
                self._thread.start()
        held = _Held(reader=reader, endpoint=endpoint, lease_id=lease_id, number=number, views=[])
        return Lease(held, self._ended)

    def close(self) -> None:
        """End the thread when the last lease has come back and its shard knows."""
        with self._lock:
            self._closing = True
            self._give_up_s = time.monotonic() + GIVE_UP_S
            thread, is_idle = self._thread, self._forks.num_live == 0 and not self._untold
        self._ended.put(None)
        if thread is not None and is_idle:
            thread.join()

    def _run(self) -> None:
        channels = SyncChannelPool(self._keys)
        try:
            while not self._is_done():
                self._give_back(channels, self._next_batch())
        finally:
            channels.close()

    def _is_done(self) -> bool:
        with self._lock:
            return self._closing and self._forks.num_live == 0 and not self._untold

    def _next_batch(self) -> list[_Held]:
        """Wait for leases to end; those that have, and that no forked child may look at."""
        batch: list[_Held | None] = [*self._kept]
        with contextlib.suppress(queue.Empty):
            is_waiting = bool(self._kept or self._untold)
            batch.append(self._ended.get(timeout=LOOK_AGAIN_S if is_waiting else None))
            while True:
                batch.append(self._ended.get_nowait())
        ended = [held for held in batch if held is not None]
        self._kept = [held for held in ended if self._forks.may_be_seen(held.number)]
        kept = {held.number for held in self._kept}
        return [held for held in ended if held.number not in kept]

    def _give_back(self, channels: SyncChannelPool, batch: list[_Held]) -> None:
        by_arena: dict[ShmReader, list[_Held]] = defaultdict(list)
        for held in batch:
            by_arena[held.reader].append(held)
            self._untold[held.endpoint].append(held.lease_id)
        for reader, ended in by_arena.items():
            # Pages that were edited are dropped first: the shard may reuse the space at once.
            reader.end([view for held in ended for view in held.views])
        self._tell(channels)
        with self._lock:
            self._forks.num_live -= len(batch)

    def _tell(self, channels: SyncChannelPool) -> None:
        """A shard that was killed holds these leases still when it is back, so it is told until it
        answers. It is not waited for: one that hangs must not keep the others' memory."""
        untold, self._untold = self._untold, defaultdict(list)
        calls = [release(endpoint, lease_ids) for endpoint, lease_ids in untold.items()]
        try:
            outcomes = run_blocking(channels.exchange(calls, timeout_s=ANSWER_S)) if calls else []
        except Closed:  # a service of this process, which has gone with its memory
            return
        for call, outcome in zip(calls, outcomes, strict=True):
            is_untold = isinstance(outcome, ServiceUnreachable) and _may_come_back(call.endpoint)
            if is_untold and time.monotonic() < self._give_up_s:
                self._untold[call.endpoint] = untold[call.endpoint][-MAX_UNTOLD:]


def _may_come_back(endpoint: str) -> bool:
    """Whether a shard that does not answer may yet: a service that ends takes its sockets along."""
    return endpoint.startswith(_IPC) and os.path.exists(endpoint.removeprefix(_IPC))


def release(endpoint: str, lease_ids: list[int], refs: Sequence[SlotRef] = ()) -> Call:
    """Leases that this process gives back. ``refs``: device memory to be checked before."""
    arrays = ArrayWriter()
    process = ProcessId.of(os.getpid())
    assert process is not None
    body = {
        "reader": asdict(process),
        "lease_ids": arrays.add(np.array(lease_ids, dtype=np.int64)),
        **({"refs": [ref.to_plain() for ref in refs]} if refs else {}),
    }
    return Call(endpoint=endpoint, op=ops.RELEASE, body=body, frames=arrays.frames)
