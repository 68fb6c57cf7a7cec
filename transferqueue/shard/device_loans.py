"""What processes of this host have been lent of a shard's device memory.

The shard's own leases pin slabs, whatever they lie on. This is what device memory needs beside: a
generation with each lease, so that a reader can have it checked when it has copied, and a while of
quarantine for what a process had when it died. For a backend on no device all of it is empty.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from transferqueue.devices.slots import SlotRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transferqueue.devices.slots import Overdue, SlotTable
    from transferqueue.shard.store import FoundColumn, Reservation

_log = logging.getLogger(__name__)


class DeviceLoans:
    """``slots``: of the backend, ``None`` when it is on no device."""

    def __init__(self, slots: SlotTable | None) -> None:
        self._slots = slots
        self.num_overdue = 0
        """Loans that were kept for longer than they were lent, so far."""

    @property
    def is_on(self) -> bool:
        """Whether there is device memory to lend."""
        return self._slots is not None

    def lend(
        self,
        lease_id: int,
        reader: str,
        columns: Sequence[FoundColumn],
        until_s: float | None,
    ) -> list[SlotRef]:
        """The slots of these columns, under a lease; again the same for the same lease."""
        if self._slots is None:
            return []
        refs = self._slots.refs_of(lease_id)
        if refs is None:
            addresses = [int(start) for column in columns for start in column.runs.starts]
            refs = self._slots.lend(reader, addresses, until_s, loan_id=lease_id).refs
        return list(refs)

    def end(self, reader: str, lease_ids: Iterable[int], now_s: float) -> None:
        if self._slots is not None:
            self._report(self._slots.give_back(reader, lease_ids, now_s))

    def check(self, plain: Iterable[Sequence[object]]) -> None:
        """Refs as they were sent. `StaleGeneration` or `OwnerLost` for one that is not right."""
        for ref in plain:
            if self._slots is not None:
                self._slots.check(SlotRef.from_plain(ref))

    def process_gone(self, process: str, writing: Iterable[Reservation], now_s: float) -> None:
        """To be told before its space is given back."""
        if self._slots is None:
            return
        written = [
            address
            for put in writing
            if put.writer == process
            for address, column in zip(put.addresses.tolist(), put.plan.columns, strict=True)
            if column.nbytes
        ]
        self._slots.process_gone(process, written, now_s)

    def tick(self, now_s: float) -> bool:
        """Whether space came free."""
        if self._slots is None:
            return False
        held_bytes = self._slots.held_bytes
        self._report(self._slots.tick(now_s))
        return self._slots.held_bytes < held_bytes

    def next_s(self) -> float | None:
        """When `tick` is due."""
        return None if self._slots is None else self._slots.next_s()

    def _report(self, overdue: Iterable[Overdue]) -> None:
        for loan in overdue:
            self.num_overdue += 1
            _log.warning(
                "process %s has kept %d bytes of device memory for %.1f s longer than it borrowed "
                "them: they are not given out again before it lets go or ends",
                loan.reader,
                loan.nbytes,
                loan.over_s,
            )
