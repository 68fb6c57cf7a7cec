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

from transferqueue.backends.several import ADDRESS_BITS, own_addresses
from transferqueue.errors import OwnerLost
from transferqueue.fields import FieldKind
from transferqueue.wire.slot_ref import SlotRef

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.devices.slots import Overdue, SlotTable
    from transferqueue.net.server import Request
    from transferqueue.shard.store import FoundColumn, Reservation

_log = logging.getLogger(__name__)


class DeviceLoans:
    """``backend``: those of a shard, of which some may be on devices; ``None``: none is."""

    def __init__(self, backend: SeveralBackends | None) -> None:
        self._backend = backend
        self._tables: dict[int, SlotTable] = {} if backend is None else backend.slot_tables
        """By the number of the backend."""
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
        if not self._tables:
            return
        addresses = np.concatenate([column.runs.starts for column in columns])
        for table, own in self._on_devices(addresses):
            table.lend(reader, own, until_s, loan_id=lease_id)

    def _on_devices(self, addresses: NDArray[np.int64]) -> Iterator[tuple[SlotTable, list[int]]]:
        """The tables of the devices that some of these ranges are on, and their own addresses."""
        assert self._backend is not None
        there = addresses[self._backend.are_on_device(addresses)]
        numbers = there >> ADDRESS_BITS
        for number in np.unique(numbers).tolist():
            yield self._tables[number], own_addresses(there[numbers == number]).tolist()

    def refs_of(self, lease_id: int | None) -> Sequence[SlotRef]:
        """What was lent under a lease; nothing under one that is of no device memory."""
        if lease_id is None:
            return ()
        return [ref for table in self._tables.values() for ref in table.refs_of(lease_id) or ()]

    def end(self, reader: str, lease_ids: Iterable[int], now_s: float) -> None:
        ended = list(lease_ids)
        for table in self._tables.values():
            self._report(table.give_back(reader, ended, now_s))

    def check(self, plain: Iterable[Sequence[object]]) -> None:
        """Refs as they were sent. `StaleGeneration` or `OwnerLost` for one that is not right."""
        tables = {table.pool: table for table in self._tables.values()}
        for one in plain:
            ref = SlotRef.from_plain(one)
            if ref.pool in tables:
                tables[ref.pool].check(ref)
            elif tables:
                raise OwnerLost(ref.pool, f"the owner of epoch {ref.epoch}")

    def process_gone(self, process: str, writing: Iterable[Reservation], now_s: float) -> None:
        """To be told before its space is given back."""
        if not self._tables:
            return
        written: dict[str, list[int]] = {table.pool: [] for table in self._tables.values()}
        for put in writing:
            if put.writer == process:
                has_bytes = np.array([column.nbytes > 0 for column in put.plan.columns], np.bool_)
                for table, own in self._on_devices(put.addresses[has_bytes]):
                    written[table.pool] += own
        for table in self._tables.values():
            table.process_gone(process, written[table.pool], now_s)

    def tick(self, now_s: float) -> bool:
        """Whether space came free."""
        if not self._tables:
            return False
        came_free = [self._tick(table, now_s) for table in self._tables.values()]
        return any(came_free)

    def _tick(self, table: SlotTable, now_s: float) -> bool:
        held_bytes = table.held_bytes
        self._report(table.tick(now_s))
        return table.held_bytes < held_bytes

    def next_s(self) -> float | None:
        """When `tick` is due."""
        if not self._tables:
            return None
        ends = [at_s for table in self._tables.values() if (at_s := table.next_s()) is not None]
        return min(ends, default=None)

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
    found: Mapping[str, FoundColumn],
    backend: SeveralBackends,
    devices: Collection[int],
    from_bytes: int,
) -> dict[str, FoundColumn]:
    """The tensors that are lent where they lie, if they are together worth a lease. ``devices``:
    the numbers of those that the reader opens."""
    if not devices:
        return {}
    tensors = {
        name: column
        for name, column in found.items()
        if column.specs[0].kind is FieldKind.TENSOR
        and column.num_bytes
        and backend.on_one_device(column.runs.starts) in devices
    }
    return tensors if sum(column.num_bytes for column in tensors.values()) >= from_bytes else {}


def borrowed_until(request: Request) -> float | None:
    """When a reader is to have given back what it borrows; ``None``: it only copies."""
    if "borrow_s" not in request.body:
        return None
    return time.monotonic() + request.seconds("borrow_s")
