"""The side of the control plane for whoever looks after rows: dead letters, filtered rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.coordinator import (
    cell_report,
    dead_letters,
    discards,
    picture,
    waiting_report,
)
from transferqueue.coordinator.requests import check_task, checked_uids, distinct_uids
from transferqueue.coordinator.shard_side import ShardSide
from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transferqueue.coordinator.cell_report import Described
    from transferqueue.coordinator.effects import DeadLetters, Effect
    from transferqueue.coordinator.picture import Picture


class OperatorSide(ShardSide):
    """What is asked of rows by name, claimed or not, and of those who wait for them."""

    def waits(
        self, *, now_s: float, partition: str | None = None, limit: int
    ) -> tuple[list[dict[str, Any]], int]:
        """The first ``limit`` requests that wait (`waiting_report`), and how many there are."""
        chosen = (
            list(self._partitions) if partition is None else [self._partitions.known(partition)]
        )
        entries: list[dict[str, Any]] = []
        for each in chosen:
            hint = self._partitions.hint(each.name)
            left = limit - len(entries)
            entries += waiting_report.waits(each, now_s, hint=hint, limit=left) if left else []
        return entries, sum(waiting_report.num_waiting(each) for each in chosen)

    def describe(
        self,
        *,
        now_s: float,
        partition: str | None = None,
        uids: NDArray[np.int64] | None = None,
        limit: int,
    ) -> Described:
        """Samples cell by cell: those of ``uids``, or the oldest of ``partition``. RowsGone when
        uids alone are given, and no partition has any of them."""
        if uids is not None:
            uids = distinct_uids(uids)
        if partition is not None:
            known = self._partitions.known(partition)
        elif uids is not None:
            known = cell_report.find_partition(self._partitions, uids)
        else:
            raise InvalidInput("describe takes a partition, uids, or both")
        return cell_report.describe(known, uids, self._leases, limit=limit, now_s=now_s)

    def picture(self, partition: str, num_columns: int) -> Picture:
        """A partition as its operator sees it, of a size that does not depend on its samples."""
        return picture.picture(self._partitions.known(partition), num_columns)

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
