"""What a way of dispatching took, step by step."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """One step."""

    seconds: float
    controller_bytes: int
    """Through the controller's process: handles, or batches."""
    wire_bytes: int
    """Through sockets and Ray's object store, copied; what is read in mapped memory is not."""


@dataclass(slots=True, kw_only=True)
class ModeFigures:
    """All measured steps of one mode."""

    name: str
    steps: list[StepFigures] = field(default_factory=list)
    moved_bytes: int = 0
    """To and from workers in one step, whichever way."""
    resident_bytes: int = 0
    """How much more memory the controller had at most than when the mode began."""

    @property
    def seconds(self) -> float:
        return statistics.median(step.seconds for step in self.steps)

    def moving_seconds(self, computing_s: float) -> float:
        """Without what the stages take themselves; a millisecond at least, which is noise."""
        return max(self.seconds - computing_s, 1e-3)

    @property
    def controller_bytes(self) -> float:
        return statistics.median(step.controller_bytes for step in self.steps)

    @property
    def wire_bytes(self) -> float:
        return statistics.median(step.wire_bytes for step in self.steps)


def resident_bytes() -> int:
    """Memory of this process that is its own: what it shares, such as mapped arenas and Ray's
    object store, is not counted."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")
