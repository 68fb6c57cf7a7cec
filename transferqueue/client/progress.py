"""Bars for moves that take long, on the terminal or in a notebook. Off unless asked for."""

from __future__ import annotations

import sys
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

_WORDS = {ops.WRITE: "put", ops.READ: "get"}


class Bar(Protocol):
    """One bar on a screen."""

    def show(self, num_bytes: int) -> None:
        """So many bytes have gone, of those that the bar was made for."""
        ...

    def close(self) -> None: ...


class Progress:
    """Counts what moves in chunks, and has a bar made when it takes long. What is copied from and
    to memory of this host takes no time worth a bar."""

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
        begun_s, moved, bar = self._clock(), 0, None

        def count(take: Callable[[Call, Message], None]) -> Callable[[Call, Message], None]:
            def counting(call: Call, answer: Message) -> None:
                nonlocal moved, bar
                take(call, answer)
                moved += CHUNK_BYTES
                if bar is None and self._clock() - begun_s >= AFTER_S:
                    bar = self._make_bar(label, total)
                if bar is not None:
                    bar.show(moved)

            return counting

        try:
            yield [replace(flow, take=count(flow.take)) for flow in flows]
        finally:
            if bar is not None:
                bar.close()

    @contextmanager
    def waiting(self, label: str) -> Iterator[None]:
        """For something of which nobody knows how much is done."""
        bar = self._make_bar(label, None)
        try:
            yield
        finally:
            bar.close()


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
