"""A service on threads of this process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ["shm", "heap"]


def held_by_process() -> tuple[set[str], int, set[str]]:
    threads = {thread.name for thread in threading.enumerate()}
    segments = {path.name for path in Path("/dev/shm").glob("transferqueue-*")}
    return threads, len(os.listdir("/proc/self/fd")), segments


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_used_as_any_other_and_leaves_nothing(backend: str) -> None:
    threads, files, _ = held_by_process()
    with (
        tq.serve(shards=2, budget_bytes=32 << 20, in_process=True, backend=backend) as service,
        tq.connect() as client,
    ):
        assert client.service_id == service.service_id
        assert service.pids == dict.fromkeys(("coordinator", "shard-0", "shard-1"), os.getpid())
        handle = client.put(
            {"x": torch.arange(1 << 18).view(8, -1), "text": list("abcdefgh")}, tags={"v": 1}
        )
        handle = client.put({"y": torch.ones(8)}, handle=handle)
        got = client.get(handle)
        assert got["x"].flatten().tolist() == list(range(1 << 18))
        with client.claim(task="t", fields=["x", "y"], n=8, where=tq.tag("v") == 1) as claim:
            assert len(claim.handle) == 8
        del got
    assert not any(service.service_id in name for name in held_by_process()[2])
    # The thread that gives back what was got ends when the shard knows of the last of it.
    wait_until(lambda: held_by_process()[0] <= threads and held_by_process()[1] <= files)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edit_of_what_was_got_is_seen_by_nobody_else(backend: str) -> None:
    with (
        tq.serve(budget_bytes=32 << 20, in_process=True, backend=backend),
        tq.connect() as client,
    ):
        handle = client.put({"x": torch.ones(4, 1 << 17)})  # larger than what is sent by copy
        first = client.get(handle)["x"]
        first.zero_()
        assert client.get(handle)["x"].sum() == 4 << 17
        client.clear(handle)
        kept = client.get(client.put({"x": torch.full((4, 1 << 17), 2.0)}))["x"]
        assert first.sum() == 0, "memory that was got is not given out again"
        assert kept.sum() == 8 << 17


async def test_both_faces_at_once_over_threads() -> None:
    with tq.serve(budget_bytes=32 << 20, in_process=True) as service:
        async with await tq.connect_async(service.address) as aclient:
            with tq.connect(service.address) as client:
                handle = client.put({"x": torch.ones(4)})
                assert (await aclient.get(handle))["x"].tolist() == [1.0] * 4
                assert aclient.links()[0]["way"] == "shm"
    with (
        tq.serve(budget_bytes=32 << 20, in_process=True, backend="heap") as service,
        tq.connect(service.address) as client,
    ):
        assert client.links()[0]["way"] == "inproc"


def test_puts_wait_for_space_as_they_do_elsewhere() -> None:
    with tq.serve(budget_bytes=2 << 20, in_process=True), tq.connect() as client:
        held = client.put({"x": torch.zeros(3, 1 << 17)})
        with pytest.raises(errors.StorageFull):
            client.put({"x": torch.zeros(3, 1 << 17)}, timeout_s=0.2)
        freeing = threading.Timer(0.2, client.clear, [held])
        freeing.start()
        client.put({"x": torch.zeros(3, 1 << 17)}, timeout_s=10)
        freeing.join()


def test_tensors_outlive_the_service_and_late_calls_are_told_that_it_is_closed() -> None:
    service = tq.serve(budget_bytes=32 << 20, in_process=True)
    client, early = tq.connect(service.address), tq.connect(service.address)
    handle = early.put({"x": torch.ones(4, 1 << 17)})
    got = early.get(handle)["x"]
    service.close()
    service.close()
    assert got.sum() == 4 << 17
    with pytest.raises((errors.Closed, errors.ServiceUnreachable)):
        early.get(handle, timeout_s=0.5)
    with pytest.raises(errors.Closed, match="the service at inproc://"):
        tq.connect(service.address)
    del got
    client.close()
    early.close()


def test_other_processes_are_told_that_it_is_not_for_them() -> None:
    with tq.serve(budget_bytes=8 << 20, in_process=True) as service:
        code = f"import transferqueue as tq; tq.connect({service.address!r}, timeout_s=10)"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
        )
        assert "ConfigError" in done.stderr
        assert "within the process that started it" in done.stderr
        child = os.fork()
        if child == 0:
            try:
                tq.connect(service.address, timeout_s=10)
            except errors.ConfigError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        with tq.connect() as client:
            client.put({"x": [1]})


def test_what_it_has_not_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="leave one of them out"):
        tq.serve(in_process=True, host="127.0.0.1")
    with pytest.raises(errors.ArenaTooSmall):
        tq.serve(in_process=True, budget_bytes=1 << 50)
    with tq.serve(in_process=True, budget_bytes=8 << 20) as service:
        with pytest.raises(errors.ConfigError, match="no key file"):
            _ = service.key_file
        with pytest.raises(errors.ConfigError, match="transport='tcp'"):
            tq.connect(transport="tcp")


def test_how_long_it_takes_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    """Printed, not asserted: it is to be below 100 ms, and how busy a machine is varies."""
    took_ms = []
    for _ in range(5):
        begun_s = time.perf_counter()
        with tq.serve(budget_bytes=32 << 20, in_process=True), tq.connect() as client:
            client.put({"x": [1]})
            took_ms.append((time.perf_counter() - begun_s) * 1e3)
    with capsys.disabled():
        print(f"\nin process, start to the first put done: median {sorted(took_ms)[2]:.0f} ms")


def test_a_service_that_nobody_closed_ends_with_the_interpreter() -> None:
    code = (
        "import transferqueue as tq, torch\n"
        "service = tq.serve(budget_bytes=8 << 20, in_process=True)\n"
        "client = tq.connect()\n"
        "x = client.get(client.put({'x': torch.ones(4, 1 << 16)}))['x']\n"
        "print(service.service_id)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not list(Path("/dev/shm").glob(f"*{done.stdout.strip()}*"))
