"""Peak memory of processes, watched from outside."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

INTERVAL_S = 0.004


def own_bytes(pid: int) -> int:
    """Anonymous memory of a process: what is its own. Shared memory that it maps is not in it,
    and a page of a private mapping only once it was written. 0 when the process is gone."""
    return _status(pid).get("RssAnon", 0)


def shared_bytes(pid: int) -> int:
    """Pages of shared memory that the process has touched. 0 when it is gone."""
    return _status(pid).get("RssShmem", 0)


def _status(pid: int) -> dict[str, int]:
    sizes = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.startswith("Rss"):
                sizes[name] = int(value.split()[0]) * 1024
    return sizes


class MemoryWatch:
    """Looks at `own_bytes` of some processes every few milliseconds while it is entered."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.peaks = dict.fromkeys(pids, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch")

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._look()

    def _look(self) -> None:
        for pid in self.peaks:
            self.peaks[pid] = max(self.peaks[pid], own_bytes(pid))

    def __enter__(self) -> MemoryWatch:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._look()
        self._stop.set()
        self._thread.join()
