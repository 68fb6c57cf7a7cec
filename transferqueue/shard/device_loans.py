"""What processes of this host have been lent of a shard's device memory.

The shard's own leases pin slabs, whatever they lie on. This is what device memory needs beside: a
generation with each lease, so that a reader can have it checked when it has copied, and a while of
quarantine for what a process had when it died. For a backend on no device all of it is empty.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.backends.several import own_addresses
from transferqueue.devices.slots import SlotRef
from transferqueue.fields import FieldKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transferqueue.backends.base import Backend
    from transferqueue.backends.several import SeveralBackends
    from transferqueue.devices.slots import Overdue, SlotTable
    from transferqueue.net.server import Request
    from transferqueue.shard.store import FoundColumn, Reservation

_log = logging.getLogger(__name__)


class DeviceLoans:
    """``backend``: those of a shard, of which one may be on a device; ``None``: none is."""

    def __init__(self, backend: SeveralBackends | None) -> None:
        self._backend = backend
        self._slots: SlotTable | None = None if backend is None else backend.slots
        self.num_overdue = 0
        """Loans that were kept for longer than they were lent, so far."""

    def lend(
        self,
        lease_id: int,
        reader: str,
        columns: Sequence[FoundColumn],
        until_s: float | None,
    ) -> None:
        """The slots of these columns, under a lease that is new."""
        if self._slots is not None and self._backend is not None:
            addresses = np.concatenate([column.runs.starts for column in columns])
            own = own_addresses(addresses[self._backend.are_on_device(addresses)]).tolist()
            if own:
                self._slots.lend(reader, own, until_s, loan_id=lease_id)

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
        if self._slots is None or self._backend is None:
            return
        written: list[int] = []
        for put in writing:
            if put.writer == process:
                has_bytes = np.array([column.nbytes > 0 for column in put.plan.columns], np.bool_)
                there = has_bytes & self._backend.are_on_device(put.addresses)
                written += own_addresses(put.addresses[there]).tolist()
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
    """The tensors that are lent where they lie, if they are together worth a lease."""
    tensors = {
        name: column
        for name, column in found.items()
        if column.specs[0].kind is FieldKind.TENSOR
        and column.num_bytes
        and backend.lies_on_device(column.runs.starts)
    }
    return tensors if sum(column.num_bytes for column in tensors.values()) >= from_bytes else {}


def borrowed_until(request: Request) -> float | None:
    """When a reader is to have given back what it borrows; ``None``: it only copies."""
    if "borrow_s" not in request.body:
        return None
    return time.monotonic() + request.seconds("borrow_s")
