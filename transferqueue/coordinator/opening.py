"""Starting a coordinator: anew, or from what its predecessor left.

A journal that is missing or damaged after a restart ends the start with `JournalDamaged`: going on
without it would give samples out again that were acked. Puts and gets go on; claims do not, until
somebody decides.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.coordinator.dump import dump
from transferqueue.coordinator.journal import CoordinatorJournal
from transferqueue.coordinator.replay import Replay
from transferqueue.errors import JournalDamaged
from transferqueue.journal.file import FileLock, JournalFile, read_journal

if TYPE_CHECKING:
    from transferqueue.coordinator.control_plane import ControlPlane

PREDECESSOR_END_S = 10.0
"""How long a successor waits for the process before it to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a coordinator goes on from."""

    journal: CoordinatorJournal
    found: Replay
    is_successor: bool
    """Whether there was a coordinator before, whose clients and shards are still there."""
    lock: FileLock | None
    """Held as long as this process writes to the journal."""

    def close(self, *, keep: bool) -> None:
        """Let go of the journal; remove it unless ``keep``."""
        self.journal.close(keep=keep)
        if self.lock is not None:
            self.lock.close()


def open_journal(plane: ControlPlane, path: str | None, *, epoch: int) -> Opened:
    """Make ``plane``, which is empty, know what its predecessor wrote down. ``epoch``: how many
    coordinators of the service there were before."""
    found = Replay(plane)
    if path is None:
        journal = CoordinatorJournal(None, {})
        return Opened(journal=journal, found=found, is_successor=epoch > 0, lock=None)
    lock = FileLock.take(f"{path}.lock", timeout_s=PREDECESSOR_END_S)
    try:
        if epoch > 0:
            records = read_journal(path)
            if records is None:
                raise JournalDamaged(path, 0, "there is none")
            found.run(records, path)
        first = [
            *dump(plane, found.requests, found.lost, time.monotonic()),
            *found.answers.values(),
        ]
        journal = CoordinatorJournal(JournalFile(path, first), found.answers)
    except BaseException:
        lock.close()
        raise
    return Opened(journal=journal, found=found, is_successor=epoch > 0, lock=lock)
