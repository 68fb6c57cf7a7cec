"""Second copies of fields that lie on a backend of their own: they lie there at the guard, too."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.recovery.test_replicas import MIB, lose, wait_for_both
from tests.recovery.test_takeover import rows_on
from tests.waiting import wait_until
from transferqueue.errors import StorageFull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

ROWS, ROW_BYTES = 4, MIB // 4


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tq.Service]:
    folder = tmp_path / "files"
    folder.mkdir()
    backends = {
        "disk": {"budget_bytes": 32 * MIB, "arena_dir": str(folder)},
        "heap": {"budget_bytes": 32 * MIB},
    }
    with tq.serve(shards=2, budget_bytes=16 * MIB, replicas=2, backends=backends) as service:
        yield service
    assert list(folder.iterdir()) == []


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=30) as client:
        wait_for_both(client)
        for name in ("disk", "heap"):
            client.create_partition(name, backend={"pixels": name})
        yield client


def used(client: tq.Client) -> dict[str, list[int]]:
    reports = [shard["backends"] for shard in client.status()["shards"]]
    return {name: [report[name]["used_bytes"] for report in reports] for name in reports[0]}


def put(client: tq.Client, partition: str, number: int) -> tq.BatchHandle:
    pixels = torch.full((ROWS, ROW_BYTES), number, dtype=torch.uint8)
    return client.put({"pixels": pixels, "n": torch.full((ROWS,), number)}, partition=partition)


def check(client: tq.Client, handles: list[tq.BatchHandle]) -> None:
    for number, handle in enumerate(handles):
        got = client.get_columns(handle)
        assert (got["n"] == number).all()
        assert got["pixels"].shape == (ROWS, ROW_BYTES)
        assert (got["pixels"] == number).all()


def test_both_copies_lie_on_the_backend_that_the_policy_names_and_come_back_there(
    service: tq.Service, client: tq.Client
) -> None:
    handles = [put(client, "disk", number) for number in range(4)]
    assert {int(handle.uids[0]) >> 48 for handle in handles} == {0, 1}
    assert used(client)["disk"] == [4 * MIB, 4 * MIB], "2 of its own and 2 of the other's"
    assert all(nbytes < MIB for nbytes in used(client)["shm"])
    lose(service, client, 0)
    check(client, handles)
    wait_for_both(client)
    assert used(client)["disk"] == [4 * MIB, 4 * MIB], "fetched, and copied, to where it was"
    assert all(nbytes < MIB for nbytes in used(client)["shm"])
    check(client, handles)
    client.clear(partition="disk")
    wait_until(lambda: not any(map(sum, used(client).values())))


def test_what_a_backend_loses_with_its_process_is_at_the_guard(
    service: tq.Service, client: tq.Client
) -> None:
    handles = [put(client, "heap", number) for number in range(4)]
    assert used(client)["heap"] == [4 * MIB, 4 * MIB]
    for name in ("shard-0", "shard-1"):
        wait_for_both(client)
        pid = service.pids[name]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda name=name, pid=pid: service.pids[name] != pid, timeout_s=20)
        check(client, handles)
    wait_for_both(client)
    assert used(client)["heap"] == [4 * MIB, 4 * MIB]
    client.clear(partition="heap")
    wait_until(lambda: not any(map(sum, used(client).values())))


def test_half_of_each_backend_is_for_rows_of_the_shard_itself(client: tq.Client) -> None:
    handles = [put(client, "disk", number) for number in range(32)]
    assert used(client)["disk"] == [32 * MIB, 32 * MIB]
    with pytest.raises(StorageFull, match="disk"):
        client.put({"pixels": torch.zeros(1, dtype=torch.uint8)}, partition="disk", timeout_s=0.3)
    plain = client.put({"x": torch.arange(4)}, partition="disk")
    assert client.get(plain)["x"].tolist() == [0, 1, 2, 3], "others have room"
    check(client, handles[:2])
    client.clear(partition="disk")
    assert rows_on(client, (0, 1))
    client.clear(partition="p")
