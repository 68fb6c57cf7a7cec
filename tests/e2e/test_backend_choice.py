"""Partitions and fields that lie on a backend of their own, beside others of the same shard."""

from __future__ import annotations

import os
import signal
import threading
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
PIXELS_ON_DISK = {"pixels": "disk", "*": "shm"}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tq.Service]]:
    folder = tmp_path / "files"
    folder.mkdir()
    services: list[tq.Service] = []

    def start(**settings: Any) -> tq.Service:
        disk = {"budget_bytes": 24 * MIB, "arena_dir": str(folder)}
        plain = {"budget_bytes": 16 * MIB, "arena_dir": str(folder), "backends": {"disk": disk}}
        services.append(tq.serve(**{**plain, **settings}))
        return services[-1]

    yield start
    for service in services:
        service.close()
    assert list(folder.iterdir()) == []


def rows(seed: int, mib: float = 1) -> dict[str, Any]:
    """4 rows of which ``pixels`` takes ``mib`` MiB, and the rest little more than 128 KiB."""
    dice = np.random.default_rng(seed)
    return {
        "ids": torch.from_numpy(dice.integers(0, 99, (4, 4096))),
        "pixels": torch.from_numpy(dice.integers(0, 255, (4, int(mib * MIB) // 4), dtype=np.uint8)),
        "text": [f"{seed}-{i}" for i in range(4)],
    }


def check(client: tq.Client, handle: tq.BatchHandle, seed: int, mib: float = 1) -> None:
    got, want = client.get_columns(handle), rows(seed, mib)
    for name in {"ids", "pixels"} & set(got):
        assert torch.equal(got[name], want[name]), (seed, name)
    assert got["text"].tolist() == want["text"], seed


def used(client: tq.Client) -> dict[str, int]:
    report = client.status()["shards"][0]["backends"]
    return {name: backend["used_bytes"] for name, backend in report.items()}


@pytest.mark.parametrize("transport", ["auto", "ipc"])
def test_fields_of_one_put_lie_on_two_backends_and_both_are_counted(
    serve: Callable[..., tq.Service], transport: str
) -> None:
    service = serve()
    with tq.connect(service.address, timeout_s=20, transport=transport) as client:
        before = client.put(rows(0), partition="images")
        assert used(client)["disk"] == 0, "what comes before the declaration goes to the default"
        client.create_partition("images", backend=PIXELS_ON_DISK)
        in_shm = used(client)["shm"]
        handles = [client.put(rows(seed), partition="images") for seed in range(1, 5)]
        handles.append(client.put(rows(5, mib=0.001), partition="images"))
        plain = client.put(rows(6), partition="plain")
        assert used(client)["disk"] == 4 * MIB + 4096
        assert used(client)["shm"] - in_shm < 2.2 * MIB
        for seed, handle in enumerate(handles[:4], start=1):
            check(client, handle, seed)
        check(client, handles[4], 5, mib=0.001)
        check(client, before, 0)
        check(client, plain, 6)
        cells = client.describe("images")["rows"]
        where = [(row["fields"]["pixels"]["backend"], row["fields"]["ids"]["backend"])
                 for row in cells]  # fmt: skip
        assert where == [("shm", "shm")] * 4 + [("disk", "shm")] * 16
        held = client.held()["images"]["backends"]
        assert held["pixels"] == {"shm": MIB, "disk": 4 * MIB + 4096}
        assert set(held["ids"]) == {"shm"}
        more = client.put({"pixels2": torch.ones(4, 9)}, handle=handles[0])
        client.clear(handles[0][1:])
        assert used(client)["disk"] == 3 * MIB + MIB // 4 + 4096
        assert torch.equal(client.get(more[:1])["pixels"], rows(1)["pixels"][:1])
        client.clear(partition="images")
        client.clear(partition="plain")
        wait_until(lambda: set(used(client).values()) == {0})


def test_small_columns_are_mapped_although_their_neighbour_is_not(
    serve: Callable[..., tq.Service],
) -> None:
    with tq.connect(serve().address, timeout_s=20) as client:
        client.create_partition("images", backend={"pixels": "disk"})
        large = {**rows(1), "ids": torch.arange(MIB // 4).reshape(4, -1)}
        handle = client.put(large, partition="images")
        requests = client.status()["shards"][0]["requests"]
        assert requests["write"] == 1, "one chunk, for the pixels; the rest was written in place"
        got = client.get(handle)
        assert client.status()["shards"][0]["leases"] == 1, "mapped"
        assert torch.equal(got["pixels"], large["pixels"])
        got["ids"][:] = 0
        assert torch.equal(client.get(handle)["ids"], large["ids"])


def test_a_name_that_is_not_there_is_refused_with_those_that_are(
    serve: Callable[..., tq.Service],
) -> None:
    with tq.connect(serve().address, timeout_s=20) as client:
        for wrong in ("dsik", {"pixels": "dsik", "*": "shm"}):
            with pytest.raises(errors.UnknownBackend, match="'dsik'; the shards have disk, shm"):
                client.create_partition("p", backend=wrong)
        with pytest.raises(errors.UnknownBackend, match="'spill'"):
            client.create_partition("p", backend="spill")
        with pytest.raises(errors.InvalidInput, match="backend must be a name, or map fields"):
            client.create_partition("p", backend={"pixels": 7})
        client.create_partition("p", backend="disk")
        with pytest.raises(errors.InvalidInput, match="declared otherwise: backend"):
            client.create_partition("p", backend="shm")
        client.put(rows(1), partition="p")
        assert used(client)["shm"] == 0
        wait_until(lambda: client.status()["partitions"]["p"]["rows"] == 4)
        client.drop_partition("p")
        client.create_partition("p", backend="shm")
        wait_until(lambda: used(client)["disk"] == 0)
        client.put(rows(2), partition="p")
        assert used(client)["disk"] == 0
        assert client.status()["partitions"]["p"]["policy"]["backend"] == {"*": "shm"}


def test_a_full_backend_keeps_off_only_what_goes_there(serve: Callable[..., tq.Service]) -> None:
    service = serve()
    with tq.connect(service.address, timeout_s=20) as client:
        client.create_partition("images", backend={"pixels": "disk"})
        with pytest.raises(errors.StorageFull, match="of 25,165,824 free in its backend 'disk'"):
            client.put(rows(1, mib=25), partition="images")
        handles = [client.put(rows(seed, mib=8), partition="images") for seed in range(3)]
        late: list[Any] = []

        def put_late() -> None:
            with tq.connect(service.address, timeout_s=20) as other:
                late.append(other.put(rows(4, mib=8), partition="images"))

        waiter = threading.Thread(target=put_late, daemon=True)
        waiter.start()
        wait_until(lambda: client.status()["shards"][0]["puts_waiting"] == 1)
        (wait,) = client.waits()["waits"]
        assert "8,388,608 bytes wanted, 0 of 25,165,824 free in backend 'disk'" in wait["why"]
        client.put({"ids": torch.ones(4, 9)}, partition="images", timeout_s=5)
        client.put(rows(7), partition="elsewhere", timeout_s=5)
        with pytest.raises(errors.StorageFull, match=r"in its backend 'disk' after 0\.2 s"):
            client.put(rows(5), partition="images", timeout_s=0.2)
        client.clear(handles[0])
        waiter.join(20)
        check(client, late[0], 4, mib=8)


def kill(service: tq.Service) -> None:
    before = service.pids["shard-0"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service.pids["shard-0"] != before, timeout_s=20)


def test_kills_lose_nothing_of_either_and_the_choice_stays(
    serve: Callable[..., tq.Service],
) -> None:
    service = serve()
    with tq.connect(service.address, timeout_s=30) as client:
        client.create_partition("images", backend={"pixels": "disk"})
        handles = [client.put(rows(seed), partition="images") for seed in range(4)]
        client.clear(handles[3][2:])
        before = used(client)
        kill(service)
        assert used(client) == before
        for seed, handle in enumerate(handles[:3]):
            check(client, handle, seed)
        handles.append(client.put(rows(9), partition="images"))
        assert used(client)["disk"] == before["disk"] + MIB
        coordinator = service.pids["coordinator"]
        os.kill(coordinator, signal.SIGKILL)
        wait_until(lambda: service.pids["coordinator"] != coordinator, timeout_s=20)
        handles.append(client.put(rows(10), partition="images"))
        assert used(client)["disk"] == before["disk"] + 2 * MIB
        check(client, handles[-1], 10)


def test_kills_in_the_middle_of_mixed_puts_store_each_once(
    serve: Callable[..., tq.Service],
) -> None:
    service = serve()
    stored: dict[int, tq.BatchHandle] = {}
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            with tq.connect(service.address, timeout_s=30) as client:
                for seed in range(10_000):
                    if stop.is_set():
                        return
                    stored[seed] = client.put(rows(seed, mib=2), partition="images")
                    if len(stored) > 3:
                        client.clear(stored.pop(min(stored)))
        except BaseException as error:
            failures.append(error)
            raise

    with tq.connect(service.address, timeout_s=30) as client:
        client.create_partition("images", backend={"pixels": "disk"})
        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(3):
            reached = max(stored, default=0)
            wait_until(lambda n=reached: max(stored, default=0) > n + 2 or failures, timeout_s=60)
            kill(service)
        stop.set()
        worker.join(60)
        assert not failures
        for seed, handle in stored.items():
            check(client, handle, seed, mib=2)
        assert client.status()["shards"][0]["rows"] == 4 * len(stored)
        wait_until(lambda: client.status()["shards"][0]["puts_under_way"] == 0)
        assert used(client)["disk"] == 2 * MIB * len(stored)


def test_rows_of_a_backend_that_ends_with_its_process_are_lost_alone(
    serve: Callable[..., tq.Service],
) -> None:
    service = serve(backends={"heap": {"budget_bytes": 8 * MIB}})
    with tq.connect(service.address, timeout_s=30) as client:
        client.create_partition("scratch", backend={"pixels": "heap"})
        kept = client.put(rows(1), partition="kept")
        gone = client.put(rows(2), partition="scratch")
        without = {name: column for name, column in rows(3).items() if name != "pixels"}
        beside = client.put(without, partition="scratch")
        check(client, gone, 2)
        kill(service)
        check(client, kept, 1)
        with pytest.raises(errors.RowsLost, match="4 of 4"):
            client.get(gone)
        assert client.get_columns(beside)["text"].tolist() == without["text"]
        assert used(client)["heap"] == 0
        check(client, client.put(rows(4), partition="scratch"), 4)
        wait_until(lambda: client.status()["partitions"]["scratch"]["rows"] == 8)


def test_a_checkpoint_comes_back_to_the_same_backends(
    serve: Callable[..., tq.Service], tmp_path: Path
) -> None:
    saved = str(tmp_path / "saved")
    with tq.connect(serve().address, timeout_s=30) as client:
        client.create_partition("images", backend={"pixels": "disk"})
        handles = [client.put(rows(seed, mib=4), partition="images") for seed in range(5)]
        client.checkpoint(saved)
        before = used(client)
    with tq.connect(serve(restore=saved, shards=2).address, timeout_s=30) as client:
        shards = [shard["backends"] for shard in client.status()["shards"]]
        sums = {name: sum(shard[name]["used_bytes"] for shard in shards) for name in before}
        assert sums["disk"] == before["disk"]
        assert sums["shm"] == pytest.approx(before["shm"], abs=64 * 10), "padding of halves"
        for seed, handle in enumerate(handles):
            check(client, handle, seed, mib=4)
        check(client, client.put(rows(9), partition="images"), 9)
        pixels = client.held()["images"]["backends"]["pixels"]
        assert pixels == {"disk": 21 * MIB}


def test_what_spills_is_what_lies_in_the_default_one(
    serve: Callable[..., tq.Service], tmp_path: Path
) -> None:
    spill = tmp_path / "files"
    service = serve(spill_dir=str(spill), spill_bytes=32 * MIB)
    with tq.connect(service.address, timeout_s=30) as client:
        client.create_partition("images", backend={"pixels": "disk"})
        on_disk = [client.put(rows(seed), partition="images") for seed in range(3)]
        plain = [client.put(rows(seed, mib=2), partition="plain") for seed in range(12)]
        assert used(client)["spill"] > 8 * MIB
        assert used(client)["disk"] == 3 * MIB
        for _ in range(2):
            for seed, handle in enumerate(on_disk):
                check(client, handle, seed)
            for seed, handle in enumerate(plain):
                check(client, handle, seed, mib=2)
            kill(service)
        assert set(client.held()["plain"]["backends"]["pixels"]) == {"shm", "spill"}


def test_a_disk_may_be_the_default_and_memory_the_choice(
    serve: Callable[..., tq.Service],
) -> None:
    service = serve(backend="disk", backends={"shm": {"budget_bytes": 8 * MIB}})
    with tq.connect(service.address, timeout_s=30) as client:
        client.create_partition("images", backend={"ids": "shm"})
        handle = client.put(rows(1), partition="images")
        plain = client.put(rows(2), partition="plain")
        assert 0 < used(client)["shm"] <= 256 << 10
        kill(service)
        check(client, handle, 1)
        check(client, plain, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"disk": {}}, r"backends\['disk'\] needs budget_bytes"),
        ({"disk": {"budget_bytes": 10}}, "budget_bytes must be an int from 1 MiB on, got 10"),
        ({"disk": {"budget_bytes": MIB, "folder": "/"}}, r"needs budget_bytes and may have"),
        ({"shm": {"budget_bytes": MIB}}, "'shm' is the default one's name"),
        ({"spill": {"budget_bytes": MIB}}, "and is not 'spill'"),
        ({"a b": {"budget_bytes": MIB}}, "letters, digits"),
        ({"nvme": {"budget_bytes": MIB}}, "no backend 'nvme'; installed: .*disk"),
        ({"disk": {"budget_bytes": MIB}}, "needs arena_dir="),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(
    serve: Callable[..., tq.Service], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        serve(backends=settings)
