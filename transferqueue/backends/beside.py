"""A thread beside the caller's, that sums what the caller writes or has read.

On a core that idles this takes the sums out of the time of a put or a get. On a busy one it must
not cost any: where the last minute had no core to spare there is no other thread, and the caller
never waits for it, but makes itself what that has not made, also what it is at. (Shared loops of
writing and reading were tried too: a thread that loses its core within a write holds up the one
that waits for it, and a put took 2 to 3 times as long at load 20.)
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from transferqueue.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


FROM_BLOCKS = 4
"""Blocks are of 1 or 2 MiB. Waking the other thread costs as much as the sums of 1 MiB."""


class Beside(Closing):
    """Safe to use from several threads. What it is given may be looked at for a moment after the
    caller has gone on, so it must stay memory, whatever is in it by then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: queue.SimpleQueue[Sums[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, num: int, make: Callable[[int], T]) -> Sums[T]:
        """``make`` will be called for each number below ``num``, on either thread, of some numbers
        on both."""
        is_beside = self.has_time_for(num)
        sums = Sums(num, make, is_beside=is_beside)
        if is_beside:
            self._start()
            self._given.put(sums)
        return sums

    @staticmethod
    def has_time_for(num: int) -> bool:
        """Whether there is another thread for so many."""
        return num >= FROM_BLOCKS and has_core_to_spare()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                name = "transferqueue-sums"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            sums = self._given.get()
            if sums is None:
                return
            sums.make_those_ready()
            del sums  # and with it the memory that they are of

    def close(self) -> None:
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._given.put(None)
                thread.join()


class Sums(Closing, Generic[T]):
    """One of each number: made beside, where somebody is, or by the caller."""

    def __init__(self, num: int, make: Callable[[int], T], *, is_beside: bool) -> None:
        self._make = make
        self._made: list[T | None] = [None] * num
        self.is_beside = is_beside
        self._ready: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def ready(self, number: int) -> None:
        """This one can be made from now on. It is made at once where nobody else does it: what it
        is of is in the caches now."""
        if self.is_beside:
            self._ready.put(number)
        else:
            self._made[number] = self._make(number)

    def finish(self) -> list[T]:
        """All of them. The last ones first, which the other thread comes to last."""
        made = self._made
        for number in reversed(range(len(made))):
            if made[number] is None:
                made[number] = self._make(number)
        return made  # type: ignore[return-value]

    def close(self) -> None:
        """No more are wanted."""
        self._ready.put(None)

    def make_those_ready(self) -> None:
        """Until no more are wanted."""
        while (number := self._ready.get()) is not None:
            if self._made[number] is None:
                self._made[number] = self._make(number)


def has_core_to_spare() -> bool:
    """Whether fewer ran in the last minute than there are cores for."""
    num_cores = len(os.sched_getaffinity(0))
    return num_cores > 1 and os.getloadavg()[0] < num_cores
