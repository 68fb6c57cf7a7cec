"""Clients and their tensors when a process forks or ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue.errors import ForkedClient
from transferqueue.view.lazy_connection import close_process_clients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=32 * MIB) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        yield client


def shard(client: tq.Client) -> dict[str, Any]:
    status: dict[str, Any] = client.status()["shards"][0]
    return status


class Child:
    """A forked copy of this process that runs a function and ends with its result."""

    def __init__(self, run: Callable[[], int]) -> None:
        self._reading, writing = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(writing)
            return
        signal.alarm(20)  # whatever becomes of the test, this process ends
        try:
            os.write(writing, bytes([run()]))
        finally:
            os._exit(0)

    def result(self) -> int:
        """255: it failed."""
        said = os.read(self._reading, 1)
        os.close(self._reading)
        os.waitpid(self._pid, 0)
        return said[0] if said else 255


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_client_in_a_forked_process_says_so_and_the_parents_goes_on(
    client: tq.Client,
) -> None:
    handle = client.put({"x": torch.ones(4, 1 << 18)})

    def use_it() -> int:
        refused = 0
        for call in (lambda: client.get(handle), client.status, lambda: client.clear(handle)):
            try:
                call()
            except ForkedClient:
                refused += 1
        client.close()
        return refused

    assert Child(use_it).result() == 3
    assert client.get(handle)["x"].sum() == 4 << 18


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_connects_for_itself(service: tq.Service, client: tq.Client) -> None:
    handle = client.put({"x": torch.ones(4, 1 << 18)})
    mine = client.get(handle)["x"]

    def connect() -> int:
        with tq.connect(service.address) as own:
            got = own.get(handle)["x"].numpy()
            return int(got.sum() == 4 << 18)

    assert Child(connect).result() == 1
    assert mine.sum() == 4 << 18


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_view_in_a_forked_process_connects_for_itself(client: tq.Client) -> None:
    view = client.view(client.put({"x": torch.ones(4, 1 << 18), "y": torch.zeros(4)}))
    view.prefetch(["y"])

    def touch_it() -> int:
        both = view.batch["x"].numpy() + view.batch["y"].numpy()[:, None]
        view.batch["z"] = torch.from_numpy(both)  # torch's own threads do not survive a fork
        return int(client.service_id == view.push().service_id)

    assert Child(touch_it).result() == 1
    assert view.batch["x"].sum() == 4 << 18


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_view_is_read_by_forked_data_loaders(client: tq.Client) -> None:
    view = client.view(client.put({"x": torch.arange(8), "text": list("abcdefgh")}))
    workers = {"num_workers": 2, "multiprocessing_context": "fork"}
    parts = list(view.make_iterator(4, epochs=2, seed=1, dataloader_kwargs=workers))
    assert sorted(row for part in parts[:2] for row in part.batch["x"].tolist()) == [*range(8)]
    assert all(len(part) == 4 for part in parts)
    close_process_clients()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_child_inherited_is_kept_until_the_child_has_ended(client: tq.Client) -> None:
    handle = client.put({"x": torch.ones(16, 1 << 18)})
    mine = [client.get(handle)["x"]]
    go_reading, go_writing = os.pipe()

    def look_late() -> int:
        os.close(go_writing)
        os.read(go_reading, 1)
        return int(mine[0].numpy().sum() == 16 << 18)  # torch's own threads do not survive a fork

    child = Child(look_late)
    os.close(go_reading)
    mine.clear()
    client.clear(handle)
    time.sleep(1.0)
    assert shard(client)["held_bytes"] == 16 * MIB
    client.put({"y": torch.zeros(14, 1 << 18)})
    os.close(go_writing)
    assert child.result() == 1
    wait_until(lambda: shard(client)["held_bytes"] == 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_was_got_after_a_fork_is_not_kept_for_the_child(client: tq.Client) -> None:
    handle = client.put({"x": torch.ones(4, 1 << 18)})
    before = client.get(handle)["x"]
    go_reading, go_writing = os.pipe()
    child = Child(lambda: len(os.read(go_reading, 1)))
    after = client.get(handle)["x"]
    assert shard(client)["leases"] == 2
    del after
    wait_until(lambda: shard(client)["leases"] == 1)
    os.write(go_writing, b"x")
    assert child.result() == 1
    del before
    wait_until(lambda: shard(client)["leases"] == 0)
    os.close(go_writing)
    os.close(go_reading)


ENDINGS = {
    "with the client open": "pass",
    "with the client closed": "client.close()",
    "by an exception": "raise SystemExit(0)",
    "while a cycle holds the tensors": "cycle = [got]; cycle.append(cycle); del got",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interpreter_ends_at_once_while_tensors_are_held(
    service: tq.Service, client: tq.Client, ending: str
) -> None:
    handle = client.put({"x": torch.ones(4, 1 << 18)})
    program = (
        "import sys, transferqueue as tq\n"
        "client = tq.connect(sys.argv[1])\n"
        "got = client.get(tq.BatchHandle.from_bytes(bytes.fromhex(sys.argv[2])))\n"
        "assert got['x'].sum() == 4 << 18\n"
        "print('got', flush=True)\n"
        f"{ENDINGS[ending]}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, service.address, handle.to_bytes().hex()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"got\n"
    start_s = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - start_s < 5
    assert process.returncode == 0
    assert b"Error" not in errors
    assert b"Exception" not in errors
    wait_until(lambda: shard(client)["leases"] == 0)
