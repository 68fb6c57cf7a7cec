"""Work on files that would hold up the loop, in a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Background(Generic[T]):
    """Runs at once. ``wake`` is called, from the thread, when it has ended."""

    def __init__(self, work: Callable[[], T], wake: Callable[[], None]) -> None:
        self._work = work
        self._wake = wake
        self._result: T | None = None
        self._error: BaseException | None = None
        self.has_ended = False
        self._thread = threading.Thread(target=self._run, name="transferqueue-files")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._error = error
        self.has_ended = True
        self._wake()

    def result(self) -> T:
        """What the work returned or raised, waiting for its end."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]
