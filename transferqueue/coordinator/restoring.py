"""Loading what a coordinator knew from a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.checkpoint.files import read_saved_records, refuse_unseen
from transferqueue.coordinator import dump
from transferqueue.errors import CheckpointDamaged, JournalDamaged

if TYPE_CHECKING:
    from transferqueue.checkpoint.restore_plan import SavedPlane
    from transferqueue.coordinator.control_plane import ControlPlane
    from transferqueue.coordinator.replay import Replay


def load_plane(plane: ControlPlane, replay: Replay, saved: SavedPlane, now_s: float) -> None:
    """Make ``plane``, which is empty, what it was at the checkpoint, with no claim out. Ages go on
    from what they were then: the time in between counts for none. `CheckpointDamaged`."""
    refuse_unseen(saved.folder, saved.path)
    records = read_saved_records(saved.folder, saved.file, saved.path)
    try:
        replay.run(records, saved.file.name)
        saved_s = next(float(r.body["at_s"]) for r in records if r.kind == dump.HEAD)
    except (JournalDamaged, StopIteration) as error:
        raise CheckpointDamaged(saved.path, saved.file.name, repr(error)) from error
    plane.next_slot = 0  # no uid is of a slot here, so those of the saved service come again
    plane.unclaim_all(saved_s)
    plane.shift_clock(now_s - saved_s)
    plane.leases.skip_to(saved.first_claim_id)
    replay.requests.clear()
