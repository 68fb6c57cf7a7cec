"""What processes of this host have been lent of a shard's device memory.

The shard's own leases pin slabs, whatever they lie on. This is what device memory needs beside: a
generation with each lease, so that a reader can have it checked when it has copied, and a while of
quarantine for what a process had when it died. For a backend on no device all of it is empty.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from transferqueue.devices.slots import SlotRef
from transferqueue.fields import FieldKind
from transferqueue.wire.chunks import STREAM_FROM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transferqueue.backends.base import Backend
    from transferqueue.devices.slots import Overdue, SlotTable
    from transferqueue.net.server import Request
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
    ) -> None:
        """The slots of these columns, under a lease that is new."""
        if self._slots is not None:
            addresses = [int(start) for column in columns for start in column.runs.starts]
            self._slots.lend(reader, addresses, until_s, loan_id=lease_id)

    def refs_of(self, lease_id: int | None) -> Sequence[SlotRef]:
        """What was lent under a lease; nothing under one that is of no device memory."""
        if self._slots is None or lease_id is None:
            return ()
        return self._slots.refs_of(lease_id) or ()

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


def lendable(
    found: Mapping[str, FoundColumn], backend: Backend, from_bytes: int
) -> dict[str, FoundColumn]:
    """The tensors that are lent where they lie, if they are together worth a lease and the rest
    can be sent with the answer."""
    tensors = {
        name: column
        for name, column in found.items()
        if column.specs[0].kind is FieldKind.TENSOR
        and column.num_bytes
        and backend.lies_on_device(column.runs.starts)
    }
    lent = sum(column.num_bytes for column in tensors.values())
    rest = sum(column.num_bytes for column in found.values()) - lent
    return tensors if lent >= from_bytes and rest <= STREAM_FROM_BYTES else {}


def borrowed_until(request: Request) -> float | None:
    """When a reader is to have given back what it borrows; ``None``: it only copies."""
    if "borrow_s" not in request.body:
        return None
    return time.monotonic() + request.seconds("borrow_s")
