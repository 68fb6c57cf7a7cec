"""Starting a coordinator: anew, or from what its predecessor left.

A journal that is missing or damaged after a restart ends the start with `JournalDamaged`: going on
without it would give samples out again that were acked. Puts and gets go on; claims do not, until
somebody decides.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.coordinator.dump import dump
from transferqueue.coordinator.journal import CoordinatorJournal, copies_record
from transferqueue.coordinator.replay import Replay
from transferqueue.coordinator.restoring import load_plane
from transferqueue.errors import JournalDamaged
from transferqueue.journal.file import FileLock, JournalFile, read_journal

if TYPE_CHECKING:
    from transferqueue.checkpoint.restore_plan import SavedPlane
    from transferqueue.coordinator.control_plane import ControlPlane

LIMIT_S = 10.0
"""A shard that has not come by then may be gone for good; its rows are missed until it comes."""

PREDECESSOR_END_S = 10.0
"""How long a successor waits for the process before it to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a coordinator goes on from."""

    journal: CoordinatorJournal
    found: Replay
    is_successor: bool
    """Whether there was a coordinator before, whose clients and shards are still there."""
    patience_s: float
    """How long to wait for shards that do not come. One that came before may be gone for good; of
    a service that is just restored all come, or it does not start."""
    lock: FileLock | None
    """Held as long as this process writes to the journal."""

    def close(self, *, keep: bool) -> None:
        """Let go of the journal; remove it unless ``keep``."""
        self.journal.close(keep=keep)
        if self.lock is not None:
            self.lock.close()


def open_journal(
    plane: ControlPlane, path: str | None, *, epoch: int, saved: SavedPlane | None = None
) -> Opened:
    """Make ``plane``, which is empty, know what its predecessor wrote down, or what was ``saved``
    in a checkpoint. ``epoch``: how many coordinators of the service there were before."""
    found = Replay(plane)
    if saved is not None and epoch == 0:
        load_plane(plane, found, saved, time.monotonic())
    is_successor = epoch > 0 or saved is not None
    patience_s = LIMIT_S if epoch > 0 else math.inf
    if path is None:
        journal = CoordinatorJournal(None, {})
        return Opened(
            journal=journal,
            found=found,
            is_successor=is_successor,
            patience_s=patience_s,
            lock=None,
        )
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
            *(copies_record(slot, known) for slot, known in found.copies.items()),
        ]
        journal = CoordinatorJournal(JournalFile(path, first), found.answers)
    except BaseException:
        lock.close()
        raise
    return Opened(
        journal=journal, found=found, is_successor=is_successor, patience_s=patience_s, lock=lock
    )
