"""Calls into libraries that may not come back, each with a deadline.

They are made on a thread of their own. One that has not come back when its time is up is left
alone, and until it has, all others are refused at once.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from transferqueue.errors import ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DeadlineCalls:
    """``name`` is that of whoever is called, for errors. What a call uses has to live as long as
    the call, which may be longer than its deadline: a closure that holds it will do."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._name = name
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._late: _Call | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"transferqueue-calls-{name}", daemon=True
        )
        self._thread.start()

    def make(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """What it returns or raises; `ServiceFailed` when that takes too long."""
        if self._late is not None and not self._late.done.is_set():
            raise ServiceFailed(self._name, "an earlier call has not been answered yet")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        made = _Call(call)
        self._late = made
        self._calls.put(made)
        if not made.done.wait(limit_s):
            raise ServiceFailed(self._name, f"did not answer in {limit_s:.1f} s")
        if made.error is not None:
            raise made.error
        result: T = made.result
        return result

    def close(self, timeout_s: float) -> None:
        """End the thread; one that does not come back is left alone."""
        self._calls.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()


class _Call:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call: Callable[[], Any] | None = call
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        assert self._call is not None
        try:
            self.result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            self.error = error
        self._call = None
        self.done.set()
