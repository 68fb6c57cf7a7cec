"""A shard's edge for whoever looks after it: which puts wait for space, who keeps space, and where
single cells lie."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.several import ADDRESS_BITS
from transferqueue.errors import InvalidInput
from transferqueue.net.server import Handler, Reply, Request
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.tags import SITE_TAG

if TYPE_CHECKING:
    from transferqueue.backends.several import SeveralBackends
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
        self,
        *,
        store: Store,
        backend: SeveralBackends,
        peers: MappingPeers,
        budget: Budget,
        puts: Puts,
    ) -> None:
        self._store = store
        self._backend = backend
        self._peers = peers
        self._budget = budget
        self._puts = puts
        self.handlers: dict[str, Handler] = {
            ops.WAITS: self._waits,
            ops.DESCRIBE: self._describe,
            ops.STORED: self._stored,
        }

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
            "why": f"shard {self._budget.slot}: "
            + "; ".join(self._need(number, nbytes) for number, nbytes in put.needs.items()),
        }

    def _need(self, number: int, nbytes: int) -> str:
        member = self._backend.members[number]
        where = "" if number == self._backend.default else f" in backend {member.name!r}"
        free_bytes = member.budget_bytes - member.backend.used_bytes
        return (
            f"{nbytes:,} bytes wanted, {free_bytes:,} of {member.budget_bytes:,} free{where}, "
            f"{member.backend.largest_free:,} in one piece"
        )

    def _describe(self, request: Request) -> Reply:
        """Body: ``partition``, ``uids``. By field: which of them it is stored for, how many bytes
        each of those takes, in which backend, and its specs. Rows that are not here have no
        field."""
        uids = ArrayReader(request.frames).int64s(request.body["uids"])
        _checked_limit(len(uids), MAX_SAMPLES)
        table = self._store.partitions.get(str(request.body["partition"]))
        arrays = ArrayWriter()
        body = {} if table is None else self._cells(table, uids, arrays)
        return Reply(body={"fields": body, "backends": self._backend.names}, frames=arrays.frames)

    def _stored(self, request: Request) -> Reply:
        """Body: ``partition`` or nil for all. By partition, field and backend the bytes of it,
        padding included. O(cells)."""
        asked = request.body["partition"]
        found = {
            name: {field: self._by_backend(cells.slabs) for field, _, cells in table.columns()}
            for name, table in self._store.partitions.items()
            if asked in (None, name)
        }
        return Reply(body={"stored": found})

    def _by_backend(self, of_cells: np.ndarray) -> dict[str, int]:
        slabs = self._store.slabs
        is_in = np.zeros(len(slabs.num_rows), dtype=bool)
        is_in[of_cells] = True
        ids = np.flatnonzero(is_in)
        numbers = slabs.address[ids] >> ADDRESS_BITS
        return {
            name: int(slabs.live_bytes[ids[numbers == number]].sum())
            for number, name in enumerate(self._backend.names)
            if (numbers == number).any()
        }

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
                "backend": arrays.add(self._store.slabs.address[slabs] >> ADDRESS_BITS),
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
