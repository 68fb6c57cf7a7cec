"""Ending code of others that takes too long, in the one thread that serves everybody.

A signal interrupts Python code, a sleep and most waits; one call into compiled code is interrupted
when it returns. A thread for such code, or a process, was rejected: the first cannot be ended, and
to the second every candidate would have to be sent.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


class TookTooLong(BaseException):
    """Raised in the middle of what took too long. No ``Exception``, which that might catch."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s


class TimeLimit:
    """Runs one call at a time. In another thread than the main one, where no signal comes, without
    a limit."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._is_running = False

    def run(self, call: Callable[[], Result]) -> Result:
        """What the call returns. `TookTooLong` when it does not in time."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        before = signal.signal(signal.SIGALRM, self._interrupt)
        try:
            return self._timed(call)
        finally:
            # Once more: the alarm may have come in the middle of the same two lines of `_timed`.
            self._is_running = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def _timed(self, call: Callable[[], Result]) -> Result:
        self._is_running = True
        # Again and again: the call may be in a handler of its own that takes the first for news.
        signal.setitimer(signal.ITIMER_REAL, self.limit_s, self.limit_s)
        try:
            return call()
        finally:
            self._is_running = False
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _interrupt(self, number: int, frame: object) -> None:
        del number, frame
        if self._is_running:
            raise TookTooLong(self.limit_s)
