"""A shard's edge for whoever looks after it: which puts wait for space, who keeps space, and where
single cells lie."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import InvalidInput
from transferqueue.net.server import Handler, Reply, Request
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.tags import SITE_TAG

if TYPE_CHECKING:
    from transferqueue.backends.base import Backend
    from transferqueue.shard.peers import MappingPeers
    from transferqueue.shard.puts import Budget, Puts
    from transferqueue.shard.rows import RowTable
    from transferqueue.shard.store import Store
    from transferqueue.shard.waiting_puts import WaitingPut

MAX_WAITS = 1000
MAX_READERS = 100
MAX_SAMPLES = 1000


class Inquiries:
    """Changes nothing."""

    def __init__(
        self, *, store: Store, backend: Backend, peers: MappingPeers, budget: Budget, puts: Puts
    ) -> None:
        self._store = store
        self._backend = backend
        self._peers = peers
        self._budget = budget
        self._puts = puts
        self.handlers: dict[str, Handler] = {ops.WAITS: self._waits, ops.DESCRIBE: self._describe}

    def _waits(self, request: Request) -> Reply:
        """Body: ``partition`` or nil for all, ``limit``. Entries as `coordinator.waiting_report`
        has them; who makes the puts that wait for their quota, which the coordinator tells of; and
        who keeps space that was cleared from being given out."""
        partition, now_s = request.body["partition"], time.monotonic()
        limit = _checked_limit(request.number("limit"), MAX_WAITS)
        waiting = [put for put in self._puts.waiting if partition in (None, put.plan.partition)]
        leases = self._store.leases
        readers = leases.of_readers(now_s)
        return Reply(
            body={
                "waits": [self._wait(put, now_s) for put in waiting[:limit]],
                "num_waits": len(waiting),
                "over_quota": [
                    {"partition": put.plan.partition, "who": _who(put)}
                    for put in islice(self._puts.admission, MAX_WAITS)
                ],
                "readers": [
                    {**asdict(reader), "pid": self._pid_of(reader.reader)}
                    for reader in readers[:MAX_READERS]
                ],
                "num_readers": len(readers),
            }
        )

    def _pid_of(self, reader: str) -> int | None:
        process = self._peers.processes.get(reader)
        return None if process is None else int(process["pid"])

    def _wait(self, put: WaitingPut, now_s: float) -> dict[str, Any]:
        plan = put.plan
        free_bytes = self._budget.nbytes - self._backend.used_bytes
        return {
            "kind": "put",
            "partition": plan.partition,
            "task": "",
            "who": _who(put),
            "fields": [column.name for column in plan.columns],
            "wanted": plan.num_rows,
            "ready": 0,
            "ready_by_field": {},
            "since_s": now_s - put.since_s,
            "left_s": put.deadline_s - now_s,
            "why": (
                f"shard {self._budget.slot}: {plan.nbytes:,} bytes wanted, {free_bytes:,} of "
                f"{self._budget.nbytes:,} free, {self._backend.largest_free:,} in one piece"
            ),
        }

    def _describe(self, request: Request) -> Reply:
        """Body: ``partition``, ``uids``. By field: which of them it is stored for, how many bytes
        each of those takes, and its specs. Rows that are not here have no field."""
        uids = ArrayReader(request.frames).int64s(request.body["uids"])
        _checked_limit(len(uids), MAX_SAMPLES)
        table = self._store.partitions.get(str(request.body["partition"]))
        arrays = ArrayWriter()
        body = {} if table is None else self._cells(table, uids, arrays)
        return Reply(body={"fields": body}, frames=arrays.frames)

    def _cells(self, table: RowTable, uids: np.ndarray, arrays: ArrayWriter) -> dict[str, Any]:
        rows, found = table.find(uids)
        at = np.flatnonzero(found)
        fields: dict[str, Any] = {}
        for field in table.fields if len(at) else ():
            cells = table.read(field, rows[at])
            there = cells.is_there
            slabs = cells.slabs[there]
            specs, of_cell = self._store.specs.distinct(self._store.slabs.spec_id[slabs])
            fields[field] = {
                "at": arrays.add(at[there]),
                "nbytes": arrays.add(cells.lengths[there] * self._store.slabs.unit_bytes[slabs]),
                "specs": [list(spec.to_wire()) for spec in specs],
                "of_cell": arrays.add_optional(of_cell),
            }
        return fields


def _who(put: WaitingPut) -> str:
    """The process, where it writes to mapped memory, and the line of its code."""
    writer = put.request.body.get("writer")
    pid = "" if writer is None else f"pid {writer['pid']}"
    site = str(put.plan.tags.get(SITE_TAG, ""))
    return " ".join(filter(None, (pid, site))) or put.request.peer_name


def _checked_limit(limit: int, most: int) -> int:
    if not 1 <= limit <= most:
        raise InvalidInput(f"limit must be 1 to {most}, got {limit}")
    return limit
