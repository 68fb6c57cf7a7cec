"""When a role was at work, on what: the raw material of a timeline."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SPANS = 50_000
"""Kept until they are taken; the oldest go first. About 300 bytes each, and 1 a sample."""

FOLLOWED_EVERY = 8
"""Samples whose uid is a multiple of this are followed: the same ones in every process."""

NO_SAMPLES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One piece of work of one process."""

    name: str
    """``role.method``, or what else was done."""
    start_s: float
    """Wall-clock time, so that spans of several hosts lie on one line."""
    end_s: float
    num_rows: int = 0
    uids: np.ndarray  # int64; of the samples that are followed, none without a handle


class SpanLog:
    """Spans of one process. Threads may add at once."""

    def __init__(self, max_spans: int = MAX_SPANS) -> None:
        self._spans: deque[Span] = deque(maxlen=max_spans)
        self._lock = threading.Lock()

    @contextmanager
    def span(self, name: str, num_rows: int = 0, uids: np.ndarray = NO_SAMPLES) -> Iterator[None]:
        """The block is one piece of work."""
        start_s = time.time()
        yield
        done = Span(
            name=name,
            start_s=start_s,
            end_s=time.time(),
            num_rows=num_rows,
            uids=uids[uids % FOLLOWED_EVERY == 0],
        )
        with self._lock:
            self._spans.append(done)

    def take(self) -> list[Span]:
        """What has been logged since it was last taken."""
        with self._lock:
            taken = list(self._spans)
            self._spans.clear()
        return taken
