"""What holds when processes die, memory is full, and rows are cleared under a reader."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e import generations
from tests.e2e.client_programs import Program, program
from tests.waiting import wait_until
from transferqueue.errors import RowsGone, ServiceUnreachable, StorageFull
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=1, budget_bytes=64 * MIB, host="127.0.0.1") as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=10) as client:
        yield client


def shard(client: tq.Client) -> dict[str, Any]:
    status: dict[str, Any] = client.status()["shards"][0]
    return status


def hexed(handle: tq.BatchHandle) -> str:
    return handle.to_bytes().hex()


# -- processes that die ---------------------------------------------------------------------------


def test_a_writer_that_is_killed_leaves_nothing_and_its_space_comes_back(
    service: tq.Service, client: tq.Client
) -> None:
    with program("write_half", service, 16) as writer:
        assert writer.said() == {"writing": True}
        assert shard(client)["puts_under_way"] == 1
        assert shard(client)["used_bytes"] >= 16 * MIB
        writer.kill()
        wait_until(lambda: shard(client)["used_bytes"] == 0)
    assert shard(client)["puts_under_way"] == 0
    assert shard(client)["rows"] == 0
    assert "half" not in client.status()["partitions"]
    client.put({"x": torch.zeros(60, 1 << 18)})


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_writer_that_is_killed_while_it_waits_for_space_keeps_nobody_off(
    service: tq.Service, client: tq.Client, transport: str
) -> None:
    client.put({"x": torch.ones(40, 1 << 18)})
    with program("write_half", service, 40, transport) as writer:
        wait_until(lambda: shard(client)["puts_waiting"] == 1, timeout_s=20)
        behind = threading.Thread(target=client.put, args=({"y": torch.zeros(10, 1 << 18)},))
        behind.start()
        wait_until(lambda: shard(client)["puts_waiting"] == 2)
        writer.kill()
        wait_until(lambda: not shard(client)["puts_waiting"], timeout_s=15)  # it had 30 s
        behind.join()
    assert shard(client)["used_bytes"] == 50 * MIB


def test_a_writer_that_is_killed_while_it_waits_for_its_quota_keeps_nobody_off(
    service: tq.Service, client: tq.Client
) -> None:
    client.create_partition("half", max_rows=8)
    held = client.put({"x": torch.ones(8, 1)}, partition="half")
    with program("write_half", service, 4) as writer:
        wait_until(lambda: shard(client)["puts_over_quota"] == 1, timeout_s=20)
        writer.kill()
        client.clear(held[:2])
        client.put({"x": torch.ones(1, 1)}, partition="half", timeout_s=12)  # that one had 30 s
    assert not shard(client)["puts_over_quota"]


def test_a_reader_that_is_killed_holds_no_memory(service: tq.Service, client: tq.Client) -> None:
    handle = client.put({"x": torch.ones(16, 1 << 18)})
    with program("hold", service, hexed(handle)) as reader:
        reader.said()
        client.clear(handle)
        assert shard(client)["held_bytes"] == 16 * MIB
        with pytest.raises(StorageFull):
            client.put({"y": torch.zeros(60, 1 << 18)}, timeout_s=0.2)
        waiting = threading.Thread(target=client.put, args=({"y": torch.zeros(60, 1 << 18)},))
        waiting.start()
        wait_until(lambda: shard(client)["puts_waiting"] == 1)
        reader.kill()
        waiting.join(5)
        assert not waiting.is_alive()
    assert shard(client)["leases"] == 0
    assert shard(client)["used_bytes"] == 60 * MIB


def test_a_reader_that_hangs_keeps_what_it_looks_at(service: tq.Service, client: tq.Client) -> None:
    handle = client.put({"x": torch.ones(16, 1 << 18)})
    with program("hold", service, hexed(handle)) as reader:
        reader.said()
        reader.send_signal(signal.SIGSTOP)
        client.clear(handle)
        time.sleep(1.0)
        assert shard(client)["held_bytes"] == 16 * MIB
        reader.send_signal(signal.SIGCONT)
        reader.go_on()
        wait_until(lambda: shard(client)["used_bytes"] == 0)


def test_a_shard_that_is_killed_is_unreachable_in_time_and_nothing_hangs() -> None:
    with (
        tq.serve(shards=2, budget_bytes=64 * MIB, restart=False) as service,
        tq.connect(service.address, timeout_s=1.0) as client,
    ):
        handles = [client.put({"x": torch.ones(4, 1 << 18)}) for _ in range(2)]
        held = client.get(handles[0])["x"]
        on = {int(handle.uids[0] >> 48): handle for handle in handles}
        assert set(on) == {0, 1}
        os.kill(service.pids["shard-0"], signal.SIGKILL)
        for call in (
            lambda: client.get(on[0]),
            lambda: client.get(tq.BatchHandle.concat(handles)),
            lambda: client.put({"y": torch.ones(4)}, handle=on[0]),
            lambda: client.clear(on[0]),
            client.status,
        ):
            start_s = time.monotonic()
            with pytest.raises(ServiceUnreachable):
                call()
            assert time.monotonic() - start_s < 5
        assert client.get(on[1])["x"].sum() == 4 << 18
        assert held.sum() == 4 << 18, "what was got stays"
        del held
    assert not list(Path("/dev/shm").glob(f"transferqueue-{service.service_id}-*"))


def test_a_put_over_two_shards_of_which_one_is_dead_leaves_nothing_on_the_other() -> None:
    with (
        tq.serve(shards=2, budget_bytes=16 * MIB, restart=False) as service,
        tq.connect(service.address, timeout_s=1.0, transport="ipc") as client,
    ):
        os.kill(service.pids["shard-1"], signal.SIGKILL)
        with pytest.raises(ServiceUnreachable):
            client.put({"x": torch.ones(8, 1 << 18)})
        wait_until(lambda: used_bytes_of(service, 0) == 0)


def used_bytes_of(service: tq.Service, slot: int) -> int:
    """Of one shard alone: the status of a service asks all of them."""
    endpoint = f"ipc://{service.key_file.with_name(f'shard-{slot}.sock')}"
    pool = SyncChannelPool()
    try:
        call = Call(endpoint=endpoint, op="status")
        (answer,) = raise_first(run_blocking(pool.exchange([call], timeout_s=5)))
        return int(answer.body["used_bytes"])
    finally:
        pool.close()


# -- edits and clears -----------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["shm", "ipc"])
def test_edits_of_one_process_are_seen_by_no_other(service: tq.Service, transport: str) -> None:
    num_words = 16 << 18
    with tq.connect(service.address) as client:
        handle = client.put({"x": torch.ones(16, 1 << 18)})
        with program("edit", service, hexed(handle), transport) as editor:
            assert editor.said() == {"before": num_words}
            mine = client.get(handle)["x"]
            editor.go_on()
            assert editor.said()["after"] != num_words
            assert mine.sum() == num_words
            mine.zero_()
            editor.go_on()
            said = editor.said()
            assert said["again"] == num_words
            assert said["still"] not in (num_words, 0)
            assert client.get(handle)["x"].sum() == num_words


@pytest.mark.parametrize("transport", ["shm", "ipc"])
def test_a_get_beside_a_clear_has_whole_old_rows_or_none(
    service: tq.Service, transport: str
) -> None:
    outcomes = {"whole": 0, "gone": 0}
    with (
        tq.connect(service.address) as client,
        tq.connect(service.address, transport=transport) as reader,
    ):
        for turn in range(30):
            seeds = turn * 100 + np.arange(24)
            handle = client.put(generations.rows(seeds), partition="p")
            clearing = threading.Timer(0.002 * (turn % 5), client.clear, args=(handle,))
            clearing.start()
            try:
                got = reader.get_columns(handle)
                clearing.join()
                client.put(generations.rows(seeds + 50), partition="next")
                assert generations.num_mixed(got) == 0
                assert got["words"][:, 0].tolist() == seeds.tolist()
                outcomes["whole"] += 1
                del got
            except RowsGone:
                outcomes["gone"] += 1
            clearing.join()
            client.clear(partition="next")
        wait_until(lambda: shard(client)["used_bytes"] == 0)
    assert outcomes["whole"] > 0


@pytest.mark.slow
def test_space_under_a_lease_is_never_given_out_again() -> None:
    with tq.serve(shards=2, budget_bytes=24 * MIB, host="127.0.0.1") as service:
        transports = ["shm", "shm", "ipc", "tcp"]
        programs = [
            Program("churn", service, f"{seed + 1},6", transport)
            for seed, transport in enumerate(transports)
        ]
        try:
            counts = [running.said() for running in programs]
        finally:
            for running in programs:
                running.close()
        assert [count["mixed"] for count in counts] == [0] * len(counts), counts
        for what in ("put", "got", "cleared"):
            assert sum(count[what] for count in counts) > 20, counts
        with tq.connect(service.address) as client:
            client.clear(partition=generations.PARTITION)
            wait_until(
                lambda: not any(s["used_bytes"] for s in client.status()["shards"]), timeout_s=10
            )


# -- no space -------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(directory)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.parametrize("transport", ["shm", "ipc"])
def test_a_full_arena_directory_makes_puts_wait_and_breaks_nothing(
    small_disk: Path, transport: str
) -> None:
    with (
        tq.serve(budget_bytes=20 * MIB, arena_dir=str(small_disk)) as service,
        tq.connect(service.address, transport=transport) as client,
    ):
        somebody_elses = small_disk / "somebody else's"
        somebody_elses.write_bytes(bytes(18 * MIB))
        with pytest.raises(StorageFull, match="10,485,760 bytes needed"):
            client.put({"x": torch.ones(10, 1 << 18)}, timeout_s=0.3)
        assert shard(client)["puts_under_way"] == 0
        assert shard(client)["used_bytes"] == 0
        threading.Timer(0.5, somebody_elses.unlink).start()
        handle = client.put({"x": torch.ones(10, 1 << 18)})
        assert client.get(handle)["x"].sum() == 10 << 18


def test_a_directory_that_cannot_hold_the_budget_is_refused_at_the_start(
    small_disk: Path,
) -> None:
    with pytest.raises(tq.errors.ArenaTooSmall, match="33,554,432"):
        tq.serve(budget_bytes=32 * MIB, arena_dir=str(small_disk))
    assert list(small_disk.iterdir()) == []
