"""Leases that have ended here, on their way back to their shards, and what else gives space back.

A lease ends with the last tensor made from it, in a finalizer that may run at any point of any
thread, so it only puts a value on a reentrant queue. From there

* the next put, get or clear of that shard takes it along, if there is one within `TELL_AFTER_S`: a
  message of its own, and the thread that wakes to send it, cost a third of the get that it ends;
* else a thread tells the shard, several leases at a time. Leases on much memory are never kept
  waiting: finding the pages that their reader has edited takes milliseconds, beside the caller.

A lease that only a cycle of references keeps ends when Python next looks for cycles, which it does
by the number of objects, whatever their size. While a put waits for space the thread looks.

A shard counts as told when it has answered. Until then it is told again: that it may hear of the
end of a lease twice, and by two ways, is why lease ids are never reused.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import queue
import threading
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.forks import Forks
from transferqueue.client.late_calls import LateCalls
from transferqueue.errors import Closed, ServiceUnreachable
from transferqueue.net.calls import Call
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.process_id import ProcessId
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transferqueue.backends.private_views import View
    from transferqueue.backends.shm_reader import ShmReader
    from transferqueue.client.late_calls import Source
    from transferqueue.net.keys import ClientKeys
    from transferqueue.wire.slot_ref import SlotRef

_IPC = "ipc://"

TELL_AFTER_S = 0.02
"""The thread looks so often, and tells what it has seen before and no request has taken: a put
that waits for the space hears of it twice as much later at most."""

BUSY_S = 1.0
"""After so long without the end of a lease the thread sleeps until there is one."""

COLLECT_AFTER_S = 0.5
"""A put that waits for so long has the garbage of its process collected, once."""

LARGE_BYTES = 16 << 20
"""Leases on more are given back at once, by the thread."""

MAX_ALONG = 1024
"""Leases that go along with one request."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a lease holds. Outlives the lease by the time it takes to give it back."""

    reader: ShmReader
    endpoint: str
    lease_id: int
    number: int
    """Among the leases of this client, from 1 on."""
    views: list[View]

    @property
    def is_large(self) -> bool:
        return sum([view.nbytes for view in self.views]) > LARGE_BYTES


class Ended:
    """What finalizers note. No lock: one may interrupt the thread that holds it."""

    def __init__(self) -> None:
        self.waking: queue.SimpleQueue[Held | None] = queue.SimpleQueue()
        """The thread wakes for these; ``None`` when it is to look around."""
        self.quiet: queue.SimpleQueue[Held] = queue.SimpleQueue()
        """Whoever looks next takes these."""
        self.is_watched = False
        """Whether the thread will look at ``quiet`` soon, unasked."""

    def note(self, held: Held) -> None:
        if self.is_watched and not held.is_large:
            self.quiet.put(held)
        else:
            self.waking.put(held)

    def take_quiet(self) -> list[Held]:
        taken = []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self.quiet.get_nowait())
        return taken

    def wait(self, timeout_s: float | None) -> list[Held]:
        """All that there is, as soon as something wakes or the time is up."""
        taken: list[Held | None] = []
        with contextlib.suppress(queue.Empty):
            taken.append(self.waking.get(timeout=timeout_s))
            while True:
                taken.append(self.waking.get_nowait())
        return [held for held in taken if held is not None] + self.take_quiet()


class Lease:
    """Kept alive by every array that looks at leased memory; when it goes, the lease is over."""

    __slots__ = ("__weakref__", "_ended", "held")

    def __init__(self, held: Held, ended: Ended) -> None:
        self.held = held
        self._ended = ended

    def __del__(self) -> None:
        self._ended.note(self.held)


class LeaseReturns:
    """Gives leases back. Its thread starts with the first one."""

    def __init__(self, keys: ClientKeys | None) -> None:
        self._keys = keys
        self._pid = os.getpid()
        self._ended = Ended()
        self._kept: list[Held] = []
        """Have ended here, but a forked child may still look."""
        self._untold: defaultdict[str, list[int]] = defaultdict(list)
        """By endpoint, leases that have ended and whose shard has not answered that it knows."""
        self._late: defaultdict[str, list[int]] = defaultdict(list)
        """Of these, those that the thread is to tell of when it looks next."""
        self._num_along = 0
        """Leases that are on their way with a request."""
        self._puts: dict[int, float] = {}
        """Puts without an answer, and since when; not those for which garbage was collected."""
        self._put_numbers = itertools.count()
        self._late_calls = LateCalls()
        self._forks = Forks()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._busy_until_s = 0.0
        self._closing = False
        self._give_up_s = math.inf

    def lease(self, reader: ShmReader, endpoint: str, lease_id: int) -> Lease:
        with self._lock:
            self._forks.num_leases += 1
            self._forks.num_live += 1
            number = self._forks.num_leases
            self._start()
        held = Held(reader=reader, endpoint=endpoint, lease_id=lease_id, number=number, views=[])
        return Lease(held, self._ended)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="transferqueue-leases", daemon=True
            )
            self._thread.start()

    def tell_later(self, calls: Iterable[Call] = (), *, of: Source | None = None) -> None:
        """See `LateCalls`: calls that were not answered, and what has some that may not be sent
        yet."""
        if os.getpid() != self._pid:
            return
        self._late_calls.add(calls)
        if of is not None:
            self._late_calls.look_at(of)
        if self._late_calls:
            with self._lock:
                self._start()
            self._ended.waking.put(None)

    def close(self) -> None:
        """End the thread when the last lease has come back and its shard knows."""
        if os.getpid() != self._pid:
            return
        self._take(self._ended.take_quiet())
        self._late_calls.stop_looking()
        with self._lock:
            self._closing = True
            self._give_up_s = time.monotonic() + GIVE_UP_S
            thread, is_idle = self._thread, self._forks.num_live == 0
        self._ended.waking.put(None)
        if thread is not None and is_idle:
            thread.join(ANSWER_S)

    # -- with a request -------------------------------------------------------------------------

    def take_along(self, endpoint: str) -> list[int]:
        """Leases of a shard that have ended, for a request to tell of. `went_along` must follow."""
        if os.getpid() != self._pid:
            return []  # all of it is the parent's
        if not self._ended.quiet.empty():
            self._take(self._ended.take_quiet())
        if not (self._untold or self._late):
            return []
        with self._lock:
            ids = [*self._late.pop(endpoint, ()), *self._untold.pop(endpoint, ())]
            if len(ids) > MAX_ALONG:
                self._untold[endpoint] = ids[MAX_ALONG:]
            self._num_along += len(ids[:MAX_ALONG])
        self._busy_until_s = time.monotonic() + BUSY_S
        return ids[:MAX_ALONG]

    def went_along(self, endpoint: str, lease_ids: list[int], *, is_told: bool) -> None:
        """The request that took them is answered, or has failed: then they are to be told again."""
        with self._lock:
            self._num_along -= len(lease_ids)
            if not is_told:
                self._untold[endpoint] += lease_ids

    def put_begins(self) -> int:
        """A number for `put_ended`."""
        number = next(self._put_numbers)
        self._puts[number] = time.monotonic()
        return number

    def put_ended(self, number: int) -> None:
        self._puts.pop(number, None)

    # -- on the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        channels = SyncChannelPool(self._keys)
        try:
            while not self._is_done():
                self._take(self._look(), at_once=True)
                self._collect_for_puts()
                self._tell(channels)
        finally:
            channels.close()

    def _is_done(self) -> bool:
        with self._lock:
            is_all_told = not (self._untold or self._late or self._num_along or self._late_calls)
            return self._closing and self._forks.num_live == 0 and is_all_told

    def _look(self) -> list[Held]:
        """Wait for leases to end, or until it is time to look at those that have."""
        self._ended.is_watched = time.monotonic() < self._busy_until_s
        if self._ended.is_watched:
            found = self._ended.wait(TELL_AFTER_S)
        else:
            # What is noted quietly at this very moment is found half a second later.
            self._take(self._ended.take_quiet())
            untold = self._untold or self._late or self._num_along or self._late_calls
            is_waiting = self._forks.num_live or untold
            found = self._ended.wait(LOOK_AGAIN_S if is_waiting else None)
        if found or self._untold or self._late:
            self._busy_until_s = time.monotonic() + BUSY_S
        return found

    def _collect_for_puts(self) -> None:
        begun_before_s = time.monotonic() - COLLECT_AFTER_S
        late = [number for number, begun_s in list(self._puts.items()) if begun_s < begun_before_s]
        for number in late:
            self.put_ended(number)
        if late and self._forks.num_live:
            gc.collect()

    def _take(self, ended: list[Held], *, at_once: bool = False) -> None:
        """Leases that have ended: forget their views, and have their shards told. ``at_once``:
        what is large is told of when `_tell` comes, the rest when it comes the next time."""
        with self._lock:
            ended, self._kept = self._kept + ended, []
        if not ended:
            return
        kept = [held for held in ended if self._forks.may_be_seen(held.number)]
        numbers = {held.number for held in kept}
        gone = [held for held in ended if held.number not in numbers]
        _forget_views(gone)
        with self._lock:
            self._kept += kept
            for held in gone:
                due = self._late if at_once and held.is_large else self._untold
                due[held.endpoint].append(held.lease_id)
            self._forks.num_live -= len(gone)

    def _tell(self, channels: SyncChannelPool) -> None:
        """A shard that was killed holds these leases still when it is back, so it is told until it
        answers. It is not waited for: one that hangs must not keep the others' memory."""
        with self._lock:
            late = self._late
            self._late, self._untold = self._untold, defaultdict(list)
            if self._closing:
                for endpoint, ids in self._late.items():
                    late[endpoint] += ids
                self._late = defaultdict(list)
        calls = [release(endpoint, lease_ids) for endpoint, lease_ids in late.items()]
        others = self._late_calls.take()
        unheard = self._unheard(channels, [*calls, *others])
        self._late_calls.add(call for call in others if call.request_id in unheard)
        for call in (call for call in calls if call.request_id in unheard):
            with self._lock:
                again = late[call.endpoint] + self._untold[call.endpoint]
                self._untold[call.endpoint] = again[-MAX_UNTOLD:]

    def _unheard(self, channels: SyncChannelPool, calls: Sequence[Call]) -> set[int]:
        """The ids of those of these calls, which are made, that are to be made again."""
        if not calls:
            return set()
        try:
            outcomes = run_blocking(channels.exchange(calls, timeout_s=ANSWER_S))
        except Closed:  # a service of this process, which has gone with its memory
            return set()
        if time.monotonic() >= self._give_up_s:
            return set()
        return {
            call.request_id
            for call, outcome in zip(calls, outcomes, strict=True)
            if isinstance(outcome, ServiceUnreachable) and _may_come_back(call.endpoint)
        }


def this_process() -> dict[str, Any]:
    """This process, as shards are told whom they lend memory to, and who gives it back."""
    return _process(os.getpid())


@lru_cache(maxsize=1)
def _process(pid: int) -> dict[str, Any]:
    process = ProcessId.of(pid)
    assert process is not None
    return asdict(process)


def _forget_views(ended: Iterable[Held]) -> None:
    by_arena: defaultdict[ShmReader, list[View]] = defaultdict(list)
    for held in ended:
        by_arena[held.reader] += held.views
    for reader, views in by_arena.items():
        # Pages that were edited are dropped first: the shard may reuse the space at once.
        reader.end(views)


def _may_come_back(endpoint: str) -> bool:
    """Whether a shard that does not answer may yet: a service that ends takes its sockets along."""
    return endpoint.startswith(_IPC) and os.path.exists(endpoint.removeprefix(_IPC))


def release(endpoint: str, lease_ids: list[int], refs: Sequence[SlotRef] = ()) -> Call:
    """Leases that this process gives back. ``refs``: device memory to be checked before."""
    arrays = ArrayWriter()
    body = {
        "reader": this_process(),
        "lease_ids": arrays.add(np.array(lease_ids, dtype=np.int64)),
        **({"refs": [ref.to_plain() for ref in refs]} if refs else {}),
    }
    return Call(endpoint=endpoint, op=ops.RELEASE, body=body, frames=arrays.frames)
