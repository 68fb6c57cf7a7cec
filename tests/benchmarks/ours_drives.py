"""What is measured of the product alone, inside its processes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

import transferqueue as tq
from tests.benchmarks.claim_drives import CLAIM_DRIVES
from tests.benchmarks.columns import bytes_of_cells, dense
from tests.benchmarks.ours import Ours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transferqueue import AsyncClient


class MeasuredOurs(Ours):
    """`Ours`, and its drives."""

    def drive_handle_algebra(
        self, *, rows: int, fields: int, parts: int, times: int
    ) -> dict[str, Any]:
        """Chunk, concat, reorder and union of a handle; seconds of each, by name. ``bytes``: what
        a handle of 1,024 rows takes on the wire."""

        def handle(prefix: str, num_rows: int = rows) -> tq.BatchHandle:
            spec = tq.FieldSpec(
                dtype="float32", shape=(1024,), ragged_dim=None, kind=tq.FieldKind.TENSOR
            )
            return tq.BatchHandle(
                service_id="bench",
                partition="train",
                uids=np.arange(num_rows, dtype=np.int64) + (1 << 48),
                fields={f"{prefix}_{k}": spec for k in range(fields)},
            )

        whole, other = handle("field"), handle("more")
        order = np.random.default_rng(0).permutation(rows)
        chunks = whole.chunk(parts)
        steps: dict[str, Callable[[], object]] = {
            "chunk": lambda: whole.chunk(parts),
            "concat": lambda: tq.BatchHandle.concat(chunks),
            "union": lambda: whole.union(other),
            "reorder": lambda: whole.reorder(order),
        }
        result: dict[str, Any] = {name: _seconds(step, times) for name, step in steps.items()}
        result["bytes"] = len(handle("field", 1024).to_bytes())
        scattered = handle("field", 4096).reorder(np.random.default_rng(0).permutation(4096))
        result["bytes of random rows"] = len(scattered[:1024].to_bytes())
        return result

    def drive_fill(self, *, rows: int, fields: int, batch: int) -> dict[str, Any]:
        """Put ``rows`` of one-byte cells into the partition ``full``; seconds until the
        coordinator knows of all of them."""
        columns = bytes_of_cells(rows=batch, fields=fields)
        started_s = time.perf_counter()
        for _ in range(0, rows, batch):
            handle = self.client.put(columns, partition="full")
        self.client.wait(handle)
        return {"seconds": time.perf_counter() - started_s}

    def drive_claims(
        self, *, num_tasks: int, fields: int, num_fields: int, n: int, times: int
    ) -> dict[str, Any]:
        """Claim ``n`` samples for each of the tasks in turn, and ack them."""
        seconds, ack_seconds = [], []
        for k in range(times):
            task = k % num_tasks
            wanted = [f"field_{(3 * task + j) % fields:02d}" for j in range(num_fields)]
            started_s = time.perf_counter()
            claim = self.client.claim(task=f"task_{task}", fields=wanted, n=n, partition="full")
            claimed_s = time.perf_counter()
            claim.ack()
            seconds.append(claimed_s - started_s)
            ack_seconds.append(time.perf_counter() - claimed_s)
        return {"seconds": seconds, "ack_seconds": ack_seconds}

    def drive_wait_for_samples(self, *, times: int, pause_s: float) -> dict[str, Any]:
        """Claim one sample, ``times`` times; when each had come. Nothing is polled."""
        del pause_s
        got_s = []
        for _ in range(times):
            claim = self.client.claim(task="task", fields=["field_0"], n=1, partition="wake")
            got_s.append(time.monotonic())
            claim.ack()
        return {"got_s": got_s}

    def drive_put_samples(self, *, times: int, gaps_s: list[float]) -> dict[str, Any]:
        """Put one sample after each gap; when each put began and ended."""
        begun_s, ended_s = [], []
        for k in range(times):
            time.sleep(gaps_s[k % len(gaps_s)])
            begun_s.append(time.monotonic())
            self.client.put({"field_0": torch.zeros(1, 8)}, partition="wake")
            ended_s.append(time.monotonic())
        return {"begun_s": begun_s, "ended_s": ended_s}

    def drive_crowd(self, *, clients: int, times: int) -> dict[str, Any]:
        """``clients`` connections of this process at once, each ``times`` puts and gets."""
        return asyncio.run(_crowd(self.address, clients, times))

    def drive_service_memory(self) -> dict[str, Any]:
        """Of the process that started the service: its pids, and the bytes its arenas occupy."""
        assert self.service is not None
        files = Path("/dev/shm").glob(f"transferqueue-{self.service.service_id}-*")
        return {
            "pids": self.service.pids,
            "arena_bytes": sum(file.stat().st_blocks * 512 for file in files),
        }

    drives: ClassVar[Mapping[str, Callable[..., Any]]] = {
        "handle_algebra": drive_handle_algebra,
        "fill": drive_fill,
        "claims": drive_claims,
        "wait_for_samples": drive_wait_for_samples,
        "put_samples": drive_put_samples,
        "crowd": drive_crowd,
        "service_memory": drive_service_memory,
        **CLAIM_DRIVES,
    }


async def _crowd(address: str, num_clients: int, times: int) -> dict[str, Any]:
    put_seconds: list[float] = []
    get_seconds: list[float] = []
    columns = dense(rows=1, length=1024, fields=3)

    async def one(client: AsyncClient) -> None:
        for _ in range(times):
            begun_s = time.perf_counter()
            handle = await client.put(columns, partition="crowd")
            put_s = time.perf_counter()
            await client.get(handle)
            got_s = time.perf_counter()
            put_seconds.append(put_s - begun_s)
            get_seconds.append(got_s - put_s)
            await client.clear(handle)

    clients = [await tq.connect_async(address, timeout_s=60.0) for _ in range(num_clients)]
    begun_s = time.perf_counter()
    try:
        await asyncio.gather(*(one(client) for client in clients))
        seconds = time.perf_counter() - begun_s
    finally:
        for client in clients:
            await client.close()
    return {"put_seconds": put_seconds, "get_seconds": get_seconds, "seconds": seconds}


def _seconds(step: Callable[[], object], times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        started_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started_s)
    return seconds
