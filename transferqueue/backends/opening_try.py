"""One try to open a backend, on a thread of its own: a library may take a minute to find out that
its store is not there, and whoever waits for others is not to wait for that."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.backends.base import Backend


class OpeningTry:
    """Begins at construction. ``open_it`` gives the backend or raises."""

    def __init__(self, name: str, open_it: Callable[[], Backend]) -> None:
        self._open_it = open_it
        self._lock = threading.Lock()
        self._is_done = threading.Event()
        self._is_unwanted = False
        self._backend: Backend | None = None
        self._error: Exception | None = None
        # A daemon: one that hangs in a library does not keep its process from ending.
        threading.Thread(target=self._run, name=f"transferqueue-opens-{name}", daemon=True).start()

    def _run(self) -> None:
        backend, error = None, None
        try:
            backend = self._open_it()
        except Exception as raised:  # noqa: BLE001 - told to whoever takes the outcome
            error = raised
        with self._lock:
            self._backend, self._error = backend, error
            is_unwanted = self._is_unwanted
            self._is_done.set()
        if is_unwanted and backend is not None:
            backend.close()

    def wait(self, limit_s: float) -> None:
        """For its end, so long at most."""
        self._is_done.wait(limit_s)

    def outcome(self) -> Backend | Exception | None:
        """The backend, which is the caller's from now on, or what went wrong; ``None``: it is
        still under way."""
        return (self._backend or self._error) if self._is_done.is_set() else None

    def give_up(self) -> None:
        """Nobody takes the outcome: a backend that is opened later is closed at once."""
        with self._lock:
            self._is_unwanted = True
            backend = self._backend
        if backend is not None:
            backend.close()
