"""More than memory holds: the coldest goes to a disk, is read from there, and outlives kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20
BUDGET = 16 * MIB


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tq.Service]]:
    folder = tmp_path / "spilled"
    folder.mkdir()
    services: list[tq.Service] = []

    def start(**settings: Any) -> tq.Service:
        plain = {"budget_bytes": BUDGET, "spill_dir": str(folder), "spill_bytes": 64 * MIB}
        services.append(tq.serve(**{**plain, **settings}))
        return services[-1]

    yield start
    for service in services:
        service.close()
    assert list(folder.iterdir()) == []


def rows(seed: int, mib: int = 1) -> dict[str, Any]:
    """4 rows: dense, ragged and text, of about ``mib`` MiB."""
    dice = np.random.default_rng(seed)
    ragged = [torch.from_numpy(dice.integers(0, 99, n)) for n in (5, 0, 9000, 700)]
    return {
        "x": torch.from_numpy(dice.integers(0, 1 << 20, (4, mib * MIB // 32))),
        "r": torch.nested.nested_tensor(ragged, layout=torch.jagged),
        "s": [f"{seed}-{i}" for i in range(4)],
    }


def check(client: tq.Client, handle: tq.BatchHandle, seed: int, mib: int = 1) -> None:
    got, want = client.get_columns(handle), rows(seed, mib)
    assert torch.equal(got["x"], want["x"]), seed
    pairs = zip(got["r"].unbind(), want["r"].unbind(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), seed
    assert got["s"].tolist() == want["s"], seed


def spilled(client: tq.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.status()["shards"][0]["spill"]
    return found


@pytest.mark.parametrize("transport", ["auto", "ipc"])
def test_four_times_the_budget_is_put_and_read_back(
    serve: Callable[..., tq.Service], transport: str
) -> None:
    with tq.connect(serve().address, timeout_s=20, transport=transport) as client:
        handles = [client.put(rows(seed)) for seed in range(60)]
        report = spilled(client)
        assert report["used_bytes"] > 40 * MIB
        assert report["stored_bytes"] >= report["used_bytes"]
        assert report["slabs"] >= 40
        assert client.status()["shards"][0]["used_bytes"] <= BUDGET
        for seed, handle in enumerate(handles):
            check(client, handle, seed)
        parts = tq.BatchHandle.concat([handle[1:3] for handle in handles[::-7]])
        got = client.get(parts, fields=["x"])["x"]
        want = torch.cat([rows(seed)["x"][1:3] for seed in range(59, -1, -7)])
        assert torch.equal(got, want), "rows of memory and of the disk in one get"


def test_what_was_used_last_stays_in_memory(serve: Callable[..., tq.Service]) -> None:
    with tq.connect(serve(spill_high=0.8, spill_low=0.5).address, timeout_s=20) as client:
        handles = [client.put({"x": torch.full((4, MIB // 32), n)}) for n in range(12)]
        client.get(handles[0])
        more = [client.put({"x": torch.full((4, MIB // 32), n)}) for n in range(12, 15)]
        wait_until(lambda: client.status()["shards"][0]["used_bytes"] <= 0.8 * BUDGET)
        report = client.status()["shards"][0]
        assert report["spill"]["slabs"] >= 4
        before = report["requests"].get("release", 0)
        got = [client.get(handle) for handle in (handles[0], more[-1])]
        assert client.status()["shards"][0]["leases"] == 2, "both are mapped"
        assert client.get(handles[1])["x"].sum() == 1 * MIB // 8
        assert client.status()["shards"][0]["leases"] == 2, "this one is not"
        del got, before


def test_what_is_looked_at_stays_where_it_is(serve: Callable[..., tq.Service]) -> None:
    with tq.connect(serve().address, timeout_s=20) as client:
        held = [client.put(rows(seed)) for seed in range(12)]
        looked_at = [client.get(handle) for handle in held]
        with pytest.raises(errors.StorageFull, match=f"of {BUDGET:,} free after"):
            client.put(rows(99, mib=8), timeout_s=0.5)
        for seed, batch in enumerate(looked_at):
            assert torch.equal(batch["x"], rows(seed)["x"])
        del looked_at, batch
        handle = client.put(rows(99, mib=8))
        check(client, handle, 99, mib=8)
        for seed, handle in enumerate(held):
            check(client, handle, seed)


def test_cleared_rows_give_back_the_disk(serve: Callable[..., tq.Service]) -> None:
    with tq.connect(serve().address, timeout_s=20) as client:
        handles = [client.put(rows(seed)) for seed in range(40)]
        full = spilled(client)
        for handle in handles[:20]:
            client.clear(handle)
        half = spilled(client)
        assert half["used_bytes"] < full["used_bytes"] - 17 * MIB
        wait_until(lambda: spilled(client)["stored_bytes"] < full["stored_bytes"] - 17 * MIB)
        for handle in handles[20:]:
            client.clear(handle[:2])
        for seed, handle in enumerate(handles[20:], start=20):
            assert torch.equal(client.get(handle[2:])["x"], rows(seed)["x"][2:])
        client.clear(partition="default")
        empty = spilled(client)
        assert (empty["used_bytes"], empty["slabs"]) == (0, 0)
        wait_until(lambda: spilled(client)["stored_bytes"] <= 64 << 10)
        assert client.status()["shards"][0]["used_bytes"] == 0


def test_a_slab_of_which_rows_are_gone_moves_without_them(
    serve: Callable[..., tq.Service],
) -> None:
    with tq.connect(serve().address, timeout_s=20) as client:
        handles = [client.put(rows(seed)) for seed in range(12)]
        for handle in handles:
            client.clear(handle[1:3])
        later = [client.put(rows(seed)) for seed in range(12, 40)]
        assert spilled(client)["slabs"] >= 20
        for seed, handle in enumerate(handles):
            got = client.get(handle[[0, 3]])
            assert torch.equal(got["x"], rows(seed)["x"][[0, 3]])
            assert torch.equal(got["r"].unbind()[1], rows(seed)["r"].unbind()[3])
        for seed, handle in enumerate(later, start=12):
            check(client, handle, seed)
        for handle in (*handles, *later):
            client.clear(handle)
        assert spilled(client)["used_bytes"] == 0
        assert client.status()["shards"][0]["used_bytes"] == 0


def test_a_full_disk_is_ordinary_back_pressure(serve: Callable[..., tq.Service]) -> None:
    with tq.connect(serve(spill_bytes=8 * MIB).address, timeout_s=20) as client:
        handles = []
        with pytest.raises(errors.StorageFull, match=r"bytes needed, [\d,]+ of 16,777,216 free"):
            for seed in range(60):
                handles.append(client.put(rows(seed), timeout_s=1))
        assert 20 <= len(handles) <= 25
        threading.Timer(0.5, client.clear, [handles[0]]).start()
        handles.append(client.put(rows(len(handles))))
        for seed, handle in enumerate(handles):
            if seed:
                check(client, handle, seed)


def kill(service: tq.Service) -> None:
    before = service.pids["shard-0"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service.pids["shard-0"] != before, timeout_s=20)


def test_kills_lose_nothing_that_was_spilled(serve: Callable[..., tq.Service]) -> None:
    service = serve()
    with tq.connect(service.address, timeout_s=30) as client:
        handles = [client.put(rows(seed)) for seed in range(40)]
        for handle in handles[::3]:
            client.clear(handle[:1])
        for _ in range(3):
            kill(service)
            assert spilled(client)["used_bytes"] > 20 * MIB
            for seed, handle in enumerate(handles):
                if seed % 3:
                    check(client, handle, seed)
                else:
                    assert torch.equal(client.get(handle[1:])["x"], rows(seed)["x"][1:])
        for handle in handles:
            client.clear(handle)
        kill(service)
        assert spilled(client)["used_bytes"] == 0
        assert client.status()["shards"][0]["used_bytes"] == 0


@pytest.mark.slow
def test_kills_while_slabs_move_lose_nothing(serve: Callable[..., tq.Service]) -> None:
    """Puts, clears and gets go on while the shard is killed at any moment."""
    service = serve()
    stop, failures = threading.Event(), []
    live: dict[int, tq.BatchHandle] = {}

    def work() -> None:
        dice = np.random.default_rng(7)
        try:
            with tq.connect(service.address, timeout_s=30) as client:
                for seed in range(10_000):
                    if stop.is_set():
                        return
                    live[seed] = client.put(rows(seed))
                    if len(live) > 50:
                        gone = int(dice.choice(list(live)))
                        client.clear(live.pop(gone))
                    some = int(dice.choice(list(live)))
                    check(client, live[some], some)
        except BaseException as error:
            failures.append(error)
            raise

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: len(live) > 50 or failures, timeout_s=60)
    dice = np.random.default_rng(3)
    with tq.connect(service.address, timeout_s=30) as watching:
        for _ in range(12):
            time.sleep(float(dice.uniform(0, 0.3)))
            before = max(live)
            kill(service)
            watching.status()
            wait_until(lambda before=before: max(live) > before + 5 or failures, timeout_s=60)
    stop.set()
    worker.join(60)
    assert not failures
    assert len(live) >= 50
    with tq.connect(service.address, timeout_s=30) as client:
        report = spilled(client)
        assert report["moved"] or report["slabs"] > 10
        for seed, handle in live.items():
            check(client, handle, seed)
        client.clear(partition="default")
        assert spilled(client)["used_bytes"] == 0
        assert client.status()["shards"][0]["used_bytes"] == 0


@pytest.mark.parametrize("budget_bytes", [BUDGET, 4 * BUDGET], ids=["as before", "in memory"])
def test_a_checkpoint_has_what_was_spilled(
    serve: Callable[..., tq.Service], tmp_path: Path, budget_bytes: int
) -> None:
    saved = str(tmp_path / "saved")
    with tq.connect(serve().address, timeout_s=60) as client:
        handles = [client.put(rows(seed)) for seed in range(30)]
        assert spilled(client)["slabs"] >= 10
        client.checkpoint(saved)
    restored = serve(restore=saved, budget_bytes=budget_bytes)
    with tq.connect(restored.address, timeout_s=60) as client:
        for seed, handle in enumerate(handles):
            check(client, handle, seed)


def test_a_checkpoint_of_damaged_bytes_fails_and_the_one_before_stays(
    serve: Callable[..., tq.Service], tmp_path: Path
) -> None:
    saved = str(tmp_path / "saved")
    with tq.connect(serve().address, timeout_s=60) as client:
        for seed in range(30):
            client.put(rows(seed))
        client.checkpoint(saved)
        before = folder_files(saved)
        for path in (tmp_path / "spilled").iterdir():
            if path.stat().st_size > MIB:
                with path.open("r+b") as file:
                    file.seek(5 * MIB + 4096)
                    file.write(b"\xff" * 64)
        with pytest.raises(errors.TransferQueueError, match="not the bytes that were written"):
            client.checkpoint(saved)
        assert folder_files(saved) == before


def folder_files(path: str) -> list[str]:
    return sorted(os.path.join(at, name) for at, _, names in os.walk(path) for name in names)


def test_rows_that_are_put_one_by_one_go_to_the_disk_too(serve: Callable[..., tq.Service]) -> None:
    service = serve(budget_bytes=2 * MIB, spill_bytes=32 * MIB)
    with tq.connect(service.address, timeout_s=60) as client:
        handles = [client.put({"x": torch.full((1, 1024), at)}) for at in range(600)]
        assert spilled(client)["used_bytes"] > 2 * MIB
        whole = client.get_columns(tq.BatchHandle.concat(handles))["x"]
        assert whole[:, 0].tolist() == whole[:, -1].tolist() == list(range(600))


def test_the_command_line_serves_with_a_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "transferqueue.service.cli", "serve", "--budget-mib", "16"]
    server = subprocess.Popen(
        [*command, "--spill-dir", str(tmp_path), "--spill-mib", "64"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        with tq.connect(server.stdout.readline().split()[1], timeout_s=20) as client:
            handles = [client.put(rows(seed)) for seed in range(30)]
            assert spilled(client)["used_bytes"] > 10 * MIB
            check(client, handles[0], 0)
    finally:
        server.terminate()
        assert server.wait(timeout=20) == 0
        server.stdout.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spill_bytes": None}, "spill_dir and spill_bytes go together"),
        ({"spill_dir": None}, "spill_dir and spill_bytes go together"),
        ({"spill_bytes": 1000}, "spill_bytes must be an int from 1 MiB on, got 1000"),
        ({"spill_low": 0.95}, "spill_low <= spill_high <= 1 must hold, got 0.95 and 0.9"),
        ({"spill_dir": "/no/such/folder"}, "cannot be used"),
        ({"spill_bytes": 1 << 60}, "bytes free, the budget needs"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(
    serve: Callable[..., tq.Service], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        serve(**settings)
