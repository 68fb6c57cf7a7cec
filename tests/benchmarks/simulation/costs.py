"""What a message costs the thread that a coordinator serves everybody with, by a real service."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import transferqueue as tq

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.simulation.yardstick import Yardstick

CLAIM, ACK, COMMITTED, CLEARED, PROBE = "claim", "ack", "committed", "cleared", "probe"

TIMES = 400
NUM_PARKED, PARKED_S = 300, 4.0


@dataclass(slots=True)
class Spent:
    """CPU seconds of one thread, so far."""

    seconds: float = 0.0


def measure(n: int, yardstick: Yardstick) -> dict[str, float]:
    """Seconds a message of ``n`` samples, by kind: everything from the socket to the socket."""
    with (
        tq.serve(budget_bytes=256 << 20) as service,
        tq.connect(service.address, timeout_s=60) as client,
    ):
        client.create_partition("p", tasks=["t", "u"])
        handles = [client.put({"x": torch.zeros(n)}, partition="p") for _ in range(TIMES)]
        for handle in handles:
            client.wait(handle)
        pid = service.pids["coordinator"]
        costs: dict[str, float] = {}
        with _thread_time(pid, yardstick) as spent:
            claims = [client.claim(task="t", fields=["x"], n=n, partition="p") for _ in handles]
        costs[CLAIM] = spent.seconds / TIMES
        with _thread_time(pid, yardstick) as spent:
            for claim in claims:
                claim.ack()
        costs[ACK] = spent.seconds / TIMES
        with _thread_time(pid, yardstick) as spent:
            wider = [client.put({"y": torch.zeros(n)}, handle=handle) for handle in handles]
            client.wait(wider[-1])
        costs[COMMITTED] = spent.seconds / TIMES
        with _thread_time(pid, yardstick) as spent:
            for handle in handles:
                client.clear(handle)
            while client.status()["partitions"]["p"]["rows"]:
                time.sleep(0.01)
        costs[CLEARED] = spent.seconds / TIMES
        costs[PROBE] = asyncio.run(_parked(service.address, pid, yardstick)) / (
            NUM_PARKED * PARKED_S
        )
    return costs


async def _parked(address: str, pid: int, yardstick: Yardstick) -> float:
    """CPU seconds in which nothing happens but that claims wait, each for another client."""
    clients = [await tq.connect_async(address, timeout_s=60.0) for _ in range(NUM_PARKED)]
    try:
        claims = [asyncio.create_task(_wait(client)) for client in clients]
        await asyncio.sleep(2.0)
        with _thread_time(pid, yardstick) as spent:
            await asyncio.sleep(PARKED_S)
        for claim in claims:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)
    finally:
        for client in clients:
            await client.close()
    return spent.seconds


async def _wait(client: tq.AsyncClient) -> None:
    await client.claim(task="u", fields=["z"], n=1, partition="p", timeout_s=60.0)


@contextmanager
def _thread_time(pid: int, yardstick: Yardstick) -> Iterator[Spent]:
    """CPU time of a process's main thread over the block. Its I/O thread has a core of its own."""
    slow = yardstick.slowness()
    path, spent = Path(f"/proc/{pid}/task/{pid}/schedstat"), Spent()
    before_ns = int(path.read_text().split()[0])
    yield spent
    seconds = (int(path.read_text().split()[0]) - before_ns) / 1e9
    spent.seconds = seconds / ((slow + yardstick.slowness()) / 2)
