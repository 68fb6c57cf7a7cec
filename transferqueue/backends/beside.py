"""A thread beside the caller's, for loops of calls that let the interpreter go.

A loop over blocks that are read and summed, or summed and written, takes about half of the time
where a second core idles. Where none does, the caller does all of it: it never waits for a thread
that has not begun, and takes block after block from the same list.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING

from transferqueue.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable


class Beside(Closing):
    """Safe to use from several threads: one has the thread, the others do without."""

    def __init__(self) -> None:
        self._is_taken = threading.Lock()
        self._loops: queue.SimpleQueue[_Loop | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def share(self, num: int, step: Callable[[int], None]) -> None:
        """``step`` of 0 to ``num``, each once, in any order and two at a time. Raises what one of
        them raised, and then the others may not have been made."""
        loop = _Loop(num, step)
        if (
            num < 2
            or len(os.sched_getaffinity(0)) < 2
            or not self._is_taken.acquire(blocking=False)
        ):
            loop.run()
        else:
            try:
                self._start()
                self._loops.put(loop)
                loop.run()
                loop.wait_for_other()
            finally:
                self._is_taken.release()
        if loop.error is not None:
            raise loop.error

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="transferqueue-beside", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            loop = self._loops.get()
            if loop is None:
                return
            loop.help()
            del loop  # and with it the memory that it is about

    def close(self) -> None:
        with self._is_taken:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._loops.put(None)
                thread.join()


class _Loop:
    def __init__(self, num: int, step: Callable[[int], None]) -> None:
        self._numbers = iter(range(num))  # its steps are single ones under the interpreter's lock
        self._step = step
        self._may_begin = threading.Lock()
        self._has_ended = threading.Lock()
        self._has_ended.acquire()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number in self._numbers:
                if self.error is not None:
                    return
                self._step(number)
        except BaseException as error:  # noqa: BLE001 - raised by `share`
            self.error = error

    def help(self) -> None:
        if self._may_begin.acquire(blocking=False):
            self.run()
            self._has_ended.release()

    def wait_for_other(self) -> None:
        """If it has begun."""
        if not self._may_begin.acquire(blocking=False):
            self._has_ended.acquire()
