"""Claims by many clients, by streams and by samplers, measured inside the product's processes."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import transferqueue as tq
from tests.benchmarks.columns import bytes_of_cells
from transferqueue import samplers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.benchmarks.ours import Ours
    from transferqueue import AsyncClient
    from transferqueue.coordinator.samplers import Sampler

GROUP_SIZE = 8
MAX_LENGTH = 8192

SAMPLERS: Mapping[str, Sampler | None] = {
    "fifo": None,
    "groups": samplers.Groups(GROUP_SIZE),
    "length_balanced": samplers.LengthBalanced(8),
    "freshest_first": samplers.FreshestFirst("score"),
    "weighted": samplers.Weighted("score"),
    "weighted_again": samplers.Weighted("score", replacement=True),
}
"""Of a score of which every row has its own: a policy version, with few values, is easier."""


def drive_fill_tagged(ours: Ours, *, rows: int, batch: int) -> dict[str, Any]:
    """Put ``rows`` of one field with a group, a length and a score into ``tagged``."""
    rng = np.random.default_rng(0)
    columns = bytes_of_cells(rows=batch, fields=1)
    started_s = time.perf_counter()
    for first in range(0, rows, batch):
        tags = {
            "group": np.arange(first, first + batch) // GROUP_SIZE,
            "length": rng.integers(1, MAX_LENGTH, batch),
            "score": rng.random(batch),
        }
        handle = ours.client.put(columns, partition="tagged", tags=tags)
    ours.client.wait(handle)
    return {"seconds": time.perf_counter() - started_s}


def drive_sampled_claims(ours: Ours, *, sampler: str, n: int, times: int) -> dict[str, Any]:
    """Claim with a sampler, each for a task of its own, and ack."""
    seconds = []
    for _ in range(times):
        started_s = time.perf_counter()
        claim = ours.client.claim(
            task=sampler, fields=["field_00"], n=n, partition="tagged", sampler=SAMPLERS[sampler]
        )
        seconds.append(time.perf_counter() - started_s)
        claim.ack()
    return {"seconds": seconds}


def drive_claim_crowd(ours: Ours, *, clients: int, times: int, n: int) -> dict[str, Any]:
    """``clients`` connections of this process at once, each ``times`` claims and acks of rows that
    are there."""
    return asyncio.run(_crowd(ours.address, clients, _claims("stock", times, n)))


def drive_parked_crowd(ours: Ours, *, clients: int, partition: str) -> dict[str, Any]:
    """``clients`` connections that each wait for a row; when each got it."""
    return asyncio.run(_crowd(ours.address, clients, _claims(partition, 1, 1)))


def drive_wake_crowd(ours: Ours, *, clients: int, partition: str) -> dict[str, Any]:
    """Put a row for each when all of them wait."""
    while _num_waiting(ours.client, partition) < clients:
        time.sleep(0.01)
    begun_s = time.monotonic()
    ours.client.put({"field_00": torch.zeros(clients, 1)}, partition=partition)
    return {"begun_s": begun_s}


def _num_waiting(client: tq.Client, partition: str) -> int:
    found = client.status()["partitions"].get(partition)
    return 0 if found is None else int(found["waiting"]["claims"])


def drive_stock(ours: Ours, *, rows: int) -> dict[str, Any]:
    """Put rows of one byte into ``stock``."""
    ours.client.wait(ours.client.put(bytes_of_cells(rows=rows, fields=1), partition="stock"))
    return {}


def drive_stream(
    ours: Ours, *, rows: int, n: int, prefetch: int, length: int, gets: bool
) -> dict[str, Any]:
    """Stream all of ``rows`` samples of ``length`` float32, with and without their data."""
    name = f"stream {time.monotonic()}"
    ours.client.wait(ours.client.put({"x": torch.zeros(rows, length)}, partition=name))
    seconds = asyncio.run(_stream(ours.address, name, rows, n, prefetch, gets=gets))
    ours.client.drop_partition(name)
    return {"seconds": seconds}


async def _stream(
    address: str, name: str, rows: int, n: int, prefetch: int, *, gets: bool
) -> float:
    async with await tq.connect_async(address, timeout_s=60.0) as client:
        seen, started_s = 0, time.perf_counter()
        async for claim in client.stream(
            task="t", fields=["x"], n=n, partition=name, prefetch=prefetch
        ):
            seen += len((await claim.get())["x"]) if gets else len(claim.handle)
            if seen >= rows:
                break
        return time.perf_counter() - started_s


def _claims(partition: str, times: int, n: int) -> Callable[[AsyncClient], Any]:
    async def one(client: AsyncClient) -> list[tuple[float, float]]:
        taken = []
        for _ in range(times):
            begun_s = time.monotonic()
            claim = await client.claim(task="t", fields=["field_00"], n=n, partition=partition)
            taken.append((begun_s, time.monotonic()))
            await claim.ack()
        return taken

    return one


async def _crowd(
    address: str, num_clients: int, work: Callable[[AsyncClient], Any]
) -> dict[str, Any]:
    clients = [await tq.connect_async(address, timeout_s=60.0) for _ in range(num_clients)]
    begun_s = time.perf_counter()
    try:
        taken = await asyncio.gather(*(work(client) for client in clients))
        seconds = time.perf_counter() - begun_s
    finally:
        for client in clients:
            await client.close()
    every = [times for one in taken for times in one]
    return {
        "seconds": seconds,
        "claim_seconds": [got_s - asked_s for asked_s, got_s in every],
        "got_s": [got_s for _, got_s in every],
    }


CLAIM_DRIVES: Mapping[str, Callable[..., Any]] = {
    "fill_tagged": drive_fill_tagged,
    "sampled_claims": drive_sampled_claims,
    "claim_crowd": drive_claim_crowd,
    "parked_crowd": drive_parked_crowd,
    "wake_crowd": drive_wake_crowd,
    "stock": drive_stock,
    "stream": drive_stream,
}
