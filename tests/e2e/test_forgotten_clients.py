"""A client that nobody closes keeps neither its process nor its service."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import transferqueue as tq
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["processes", "in process"], scope="module")
def service(request: pytest.FixtureRequest) -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=32 << 20, in_process=request.param == "in process") as service:
        yield service


def forget(service: tq.Service) -> None:
    client = tq.connect(service.address)
    client.status()
    cycle: list[object] = [client]
    cycle.append(cycle)


def forget_async(service: tq.Service) -> None:
    async def ask() -> None:
        client = await tq.connect_async(service.address)
        await client.status()
        cycle: list[object] = [client]
        cycle.append(cycle)

    asyncio.run(ask())


@pytest.mark.parametrize("forgets", [forget, forget_async])
def test_collecting_a_forgotten_client_closes_it_in_whatever_thread(
    service: tq.Service, forgets: Callable[[tq.Service], None]
) -> None:
    with tq.connect(service.address) as client:  # what a service opens for its first client
        client.status()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            forgets(service)
        collector = threading.Thread(target=gc.collect, daemon=True)
        collector.start()
        collector.join(20)
        assert not collector.is_alive()
    assert [str(one.message) for one in told].count("a client was never closed") == 3
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # libzmq's reaper takes its time
    with tq.connect(service.address) as client:  # the service goes on
        client.status()


def test_a_client_that_was_closed_is_collected_without_a_word(service: tq.Service) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tq.connect(service.address).close()
        gc.collect()


PROGRAM = """
import asyncio, atexit, gc, threading
import transferqueue as tq
from workers import Dispatch, LocalWorkerGroup, Worker, register

class Idle(Worker):
    @register(Dispatch.HANDLE, reads=["x"])
    def look(self, data):
        return {"rows": len(data)}

def ask(timeout_s):
    client = tq.connect(address)
    try:
        client.claim(task="critic", fields=["none"], n=4, partition="p", timeout_s=timeout_s)
    except tq.errors.NotReady as error:
        failed = error  # its traceback has this frame, and so the client: a cycle

async def ask_async():
    client = await tq.connect_async(address)
    cycle = [client, await client.status()]
    cycle.append(cycle)

gc.disable()  # until the end, wherever that comes to be
with tq.serve(budget_bytes=32 << 20) as service, tq.connect(service.address) as mine:
    address = service.address
    handle = mine.put({"x": [1, 2]}, partition="p")
    for timeout_s in (0.05, 60):  # the second still waits when the interpreter ends
        thread = threading.Thread(target=ask, args=[timeout_s], daemon=True)
        thread.start()
        thread.join(1.0)
    ask(0.05)
    asyncio.run(ask_async())
    group = LocalWorkerGroup(Idle, 2, service=service)  # not closed either
    group.look(handle)
atexit.register(gc.collect)  # before pyzmq hears of the end, as handlers of other packages may
print("out", flush=True)
"""


def test_a_process_ends_whatever_clients_it_forgot() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=40,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.stdout == "out\n", done.stderr
    assert done.returncode == 0, done.stderr
    assert not done.stderr
