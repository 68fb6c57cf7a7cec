"""Bars for moves that take long, on the terminal or in a notebook. Off unless asked for."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from transferqueue.wire import ops
from transferqueue.wire.chunks import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from transferqueue.net.calls import Call, Flow
    from transferqueue.wire.format import Message

AFTER_S = 0.5
"""What is over sooner shows nothing."""

LOOK_EVERY_S = 0.2

_WORDS = {ops.WRITE: "put", ops.READ: "get"}


class Bar(Protocol):
    """One bar on a screen."""

    def show(self, num_bytes: int) -> None:
        """So many bytes have gone, of those that the bar was made for."""
        ...

    def close(self) -> None: ...


class Progress:
    """Counts what moves, in chunks or from and to memory of this host, and has a bar made when it
    takes long. Safe to use from several threads."""

    def __init__(
        self,
        make_bar: Callable[[str, int | None], Bar] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``make_bar``: of a label and the bytes in all, ``None`` where nobody knows them."""
        self._make_bar = make_bar or RichBar
        self._clock = clock

    @contextmanager
    def of(self, flows: Sequence[Flow]) -> Iterator[list[Flow]]:
        """The same flows, counted until the block ends."""
        total = sum(flow.num_calls for flow in flows) * CHUNK_BYTES
        label = " and ".join(dict.fromkeys(_WORDS.get(flow.op, flow.op) for flow in flows))
        with self.counting(label, total) as moved:
            yield [replace(flow, take=_counted(flow.take, moved)) for flow in flows]

    @contextmanager
    def counting(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """What is to be told of bytes that have moved, of ``total``, until the block ends."""
        begun_s, num_moved, bar = self._clock(), 0, None
        lock = threading.Lock()

        def moved(num_bytes: int) -> None:
            nonlocal num_moved, bar
            with lock:
                num_moved += num_bytes
                if bar is None and self._clock() - begun_s >= AFTER_S:
                    bar = self._make_bar(label, total)
                if bar is not None:
                    bar.show(num_moved)

        try:
            yield moved
        finally:
            if bar is not None:
                bar.close()

    @contextmanager
    def watching(self, label: str, total: int, look: Callable[[], int]) -> Iterator[None]:
        """For something that others do: ``look`` says how many of its bytes are done, at any time,
        on a thread."""
        bar, is_over = self._make_bar(label, total), threading.Event()

        def watch() -> None:
            while not is_over.wait(LOOK_EVERY_S):
                bar.show(min(total, look()))

        watcher = threading.Thread(target=watch, name="transferqueue-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()
            bar.close()

    @contextmanager
    def waiting(self, label: str) -> Iterator[None]:
        """For something of which nobody knows how much is done."""
        bar = self._make_bar(label, None)
        try:
            yield
        finally:
            bar.close()


def _counted(
    take: Callable[[Call, Message], None], moved: Callable[[int], None]
) -> Callable[[Call, Message], None]:
    def taking(call: Call, answer: Message) -> None:
        take(call, answer)
        moved(CHUNK_BYTES)

    return taking


class RichBar:
    """Drawn by rich, which knows terminals and notebooks; gone when it is closed."""

    def __init__(self, label: str, num_bytes: int | None) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        counted: list[Any] = [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            *(counted if num_bytes is not None else []),
            TimeElapsedColumn(),
            transient=True,
        )
        self._task = self._progress.add_task(label, total=num_bytes)
        self._progress.start()

    def show(self, num_bytes: int) -> None:
        self._progress.update(self._task, completed=num_bytes)

    def close(self) -> None:
        self._progress.stop()


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook; imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"
