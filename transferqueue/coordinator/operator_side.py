"""The side of the control plane for whoever looks after rows: dead letters, filtered rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.coordinator import dead_letters, discards
from transferqueue.coordinator.requests import check_task, checked_uids, distinct_uids
from transferqueue.coordinator.shard_side import ShardSide

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transferqueue.coordinator.effects import DeadLetters, Effect


class OperatorSide(ShardSide):
    """What is asked of rows by name, claimed or not."""

    def dead_letters(self, partition: str, task: str) -> DeadLetters:
        """The rows that a task was given too often without an ack, oldest first. O(rows)."""
        known = self._partitions.known(partition)
        check_task(known, task)
        return dead_letters.look(known, task)

    def redrive(
        self, partition: str, task: str, *, now_s: float, uids: NDArray[np.int64] | None = None
    ) -> tuple[int, list[Effect]]:
        """Let the task have its dead letters again; how many. InvalidInput for a row that is none.

        Their deliveries count from nought again.
        """
        known = self._partitions.known(partition)
        check_task(known, task)
        if uids is not None:
            uids = distinct_uids(uids)
        num_rows, effects = dead_letters.redrive(known, task, uids, now_s)
        return num_rows, self._finish(effects)

    def discard(
        self, partition: str, uids: NDArray[np.int64], *, now_s: float
    ) -> tuple[int, list[Effect]]:
        """No claim gets these rows any more, and they are freed as soon as no claim holds them.

        Returns how many there were; those that are not there are passed over.
        """
        made = self._partitions.made(partition)
        num_rows, effects = discards.discard(made, checked_uids(uids), now_s)
        return num_rows, self._finish(effects)
