"""Waiting for something to become true, rather than for a time that is long enough."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Return when ``condition`` holds; fail when it does not within the time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s"
        time.sleep(0.01)
