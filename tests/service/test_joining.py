"""Shards that join a service that runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue import errors
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.keys import ServiceKeys
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.service import joining
from transferqueue.service.joining import JoinedShards, join, load_service_keys
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 16 << 20


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=BUDGET) as service:
        yield service


def put_on(client: tq.Client, slot: int, **columns: torch.Tensor) -> tq.BatchHandle:
    """Small puts take the shards that a client knows in turn."""
    for _ in range(10):
        handle = client.put(columns, partition="train")
        if int(handle.uids[0]) >> 48 == slot:
            return handle
    raise AssertionError(f"no put went to shard {slot}")


def slots(client: tq.Client) -> list[int]:
    return [shard["slot"] for shard in client.status()["shards"]]


def test_a_shard_that_joins_holds_samples_that_clients_of_before_find(service: tq.Service) -> None:
    with tq.connect(service.address) as early, join(service.address, budget_bytes=BUDGET) as joined:
        assert joined.slots == [1]
        with tq.connect(service.address) as late:
            handle = put_on(late, 1, x=torch.ones(4, 1 << 14))
            late.wait(handle)
        assert early.get(handle)["x"].sum() == 4 << 14
        more = early.put({"y": torch.ones(4)}, handle=handle)
        assert early.links()[1]["way"] == "shm"
        assert slots(early) == [0, 1]
        with early.claim(task="t", fields=["x", "y"], n=4, partition="train") as claim:
            assert claim.handle.uids.tolist() == more.uids.tolist()
        assert early.clear(handle) == 4


def test_what_it_held_is_lost_when_it_leaves_and_nothing_else(service: tq.Service) -> None:
    with tq.connect(service.address) as client:
        with join(service.address, shards=2, budget_bytes=BUDGET) as joined:
            assert joined.slots == [1, 2]
            assert slots(client) == [0, 1, 2]
            kept, gone = (put_on(client, slot, x=torch.ones(2)) for slot in (0, 2))
            client.wait(kept)
            client.wait(gone)
        assert slots(client) == [0]
        assert client.get(kept)["x"].sum() == 2
        with pytest.raises(errors.RowsLost):
            client.get(gone)
        with pytest.raises(errors.RowsLost):
            client.wait(gone, fields=["x"])
        with join(service.address, budget_bytes=BUDGET) as again:
            assert again.slots == [3], "uids are of a slot and never come back"


def test_it_is_started_again_with_what_it_held(service: tq.Service) -> None:
    with (
        tq.connect(service.address) as client,
        join(service.address, budget_bytes=BUDGET) as joined,
    ):
        assert slots(client) == [0, 1]
        handle = put_on(client, 1, x=torch.arange(4.0))
        before = joined.pids["shard-1"]
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: joined.pids["shard-1"] != before, 20)
        assert client.get(handle, timeout_s=30)["x"].tolist() == [0, 1, 2, 3]


def test_a_slot_is_given_once_also_by_another_coordinator(service: tq.Service) -> None:
    with tq.connect(service.address, timeout_s=60) as client:
        with join(service.address, budget_bytes=BUDGET) as first:
            os.kill(service.pids["coordinator"], signal.SIGKILL)
            assert client.status()["service_id"] == service.service_id
            with join(service.address, budget_bytes=BUDGET) as second:
                assert (first.slots, second.slots) == ([1], [2])
                wait_until(lambda: slots(client) == [0, 1, 2], 20)
        with join(service.address, budget_bytes=BUDGET) as third:
            assert third.slots == [3]


def test_a_slot_that_another_owner_has_is_refused(service: tq.Service) -> None:
    body = {"slot": 0, "incarnation": "x", "lineage": "y", "endpoints": [], "facts": {},
            "limited": []}  # fmt: skip
    call = Call(endpoint=service.address, op=ops.REGISTER, body=body)
    with tq.connect(service.address) as client:  # answered when the real one has come
        channels = SyncChannelPool()
        outcomes = run_blocking(channels.exchange([call], timeout_s=5))
        channels.close()
        with pytest.raises(errors.InvalidInput, match="slot 0 is another shard's"):
            raise_first(outcomes)
        client.put({"x": [1]})


def test_over_tcp_it_needs_the_services_own_key(tmp_path: Path) -> None:
    with tq.serve(budget_bytes=BUDGET, host="127.0.0.1") as service:
        assert service.service_key_file.stat().st_mode & 0o777 == 0o600
        keys = load_service_keys(service.service_key_file)
        with pytest.raises(errors.ConfigError, match="needs host="):
            join(service.address, keys=keys)
        with pytest.raises(errors.ConfigError, match=r"service\.key"):
            join(service.address, host="127.0.0.1")
        with pytest.raises(errors.ConfigError, match="no usable service key"):
            load_service_keys(service.key_file)
        with (
            join(service.address, keys=keys, host="127.0.0.1", budget_bytes=BUDGET),
            tq.connect(service.address, transport="tcp", keys=service.client_keys) as client,
        ):
            handle = put_on(client, 1, x=torch.ones(4, 1 << 17))
            assert client.get(handle)["x"].sum() == 4 << 17
        with (
            tq.connect(service.address, keys=service.client_keys, transport="tcp") as client,
            pytest.raises(errors.NotAllowed),
        ):
            run_blocking(client._ops.upkeep.join())


def test_it_encrypts_or_not_as_the_service_does_and_has_its_transport(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "JoinedShards", lambda address, keys, config: config)
    for encrypted in (True, False):
        keys = ServiceKeys.generate(encrypted=encrypted)
        config = join("tcp://127.0.0.1:1", keys=keys, host="127.0.0.1")
        assert config.encrypt == encrypted
        assert config.storage_settings()["transports"] == {"sockets": {}}


def test_a_drained_shard_takes_no_new_samples_and_keeps_what_it_has(service: tq.Service) -> None:
    with (
        tq.connect(service.address) as client,
        join(service.address, budget_bytes=BUDGET) as joined,
    ):
        assert slots(client) == [0, 1]
        handle = put_on(client, 1, x=torch.ones(3))
        assert joined.drain() == 3
        elsewhere = [client.put({"x": torch.ones(1)}) for _ in range(6)]
        assert {int(other.uids[0]) >> 48 for other in elsewhere} == {0}
        client.put({"y": torch.ones(3)}, handle=handle)
        clearing = threading.Timer(0.3, client.clear, [handle])
        clearing.start()
        assert joined.drain(timeout_s=20) == 0
        clearing.join()


def test_a_shard_that_drains_does_so_in_its_next_life_too(service: tq.Service) -> None:
    with (
        tq.connect(service.address) as client,
        join(service.address, budget_bytes=BUDGET) as joined,
    ):
        assert slots(client) == [0, 1]
        assert joined.drain() == 0
        kill_and_wait(joined, "shard-1")
        assert draining(client) == [False, True]
        new = [client.put({"x": torch.ones(1)}) for _ in range(6)]
        assert {int(handle.uids[0]) >> 48 for handle in new} == {0}


def test_a_shard_can_be_told_to_drain_while_it_starts_again(service: tq.Service) -> None:
    with (
        tq.connect(service.address) as client,
        join(service.address, budget_bytes=BUDGET) as joined,
    ):
        assert slots(client) == [0, 1]
        kill_and_wait(joined, "shard-1")
        joined.drain()
        wait_until(lambda: draining(client) == [False, True], 20)


def kill_and_wait(owner: tq.Service | JoinedShards, name: str) -> None:
    pid = owner.pids[name]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: owner.pids[name] != pid, 20)


def draining(client: tq.Client) -> list[bool]:
    return [bool(shard["draining"]) for shard in client.status()["shards"]]


def test_the_command_line_joins(service: tq.Service) -> None:
    command = [sys.executable, "-m", "transferqueue.service.cli", "serve"]
    joining = subprocess.Popen(
        [*command, "--join", service.address, "--budget-mib", "16"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert joining.stdout is not None
    assert joining.stdout.readline().split() == ["joined", service.address]
    assert joining.stdout.readline().split() == ["shards", "1"]
    with tq.connect(service.address) as client:
        assert slots(client) == [0, 1]
        put_on(client, 1, x=torch.ones(3))
        joining.terminate()
        assert joining.wait(timeout=30) == 0
        assert slots(client) == [0]
    assert joining.stderr is not None
    assert "lost      3 samples" in joining.stderr.read()
    joining.stdout.close()
    joining.stderr.close()


def test_it_ends_also_when_the_service_has_ended_before() -> None:
    with tq.serve(budget_bytes=BUDGET) as service:
        joined = join(service.address, budget_bytes=BUDGET)
    # How long it is waited for a coordinator, which might only be about to be started again.
    joined.config = replace(joined.config, start_timeout_s=1.0)
    with pytest.raises(errors.ServiceUnreachable):
        joined.drain()
    joined.close()
    joined.close()
    assert not list(Path("/dev/shm").glob(f"*{joined.service_id}*"))


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_shard_joins_a_service_that_was_restored(tmp_path: Path, num_shards: int) -> None:
    """Uids say nothing of the shard there; the new one gives those that the others never will."""
    path = tmp_path / "saved"
    with tq.serve(shards=3, budget_bytes=BUDGET) as saved, tq.connect(saved.address) as client:
        handles = [client.put({"x": torch.full((4,), float(k))}) for k in range(6)]
        client.wait(tq.BatchHandle.concat(handles))
        client.checkpoint(path)
    with (
        tq.serve(shards=num_shards, budget_bytes=BUDGET, restore=path) as service,
        tq.connect(service.address) as before,
        join(service.address, budget_bytes=BUDGET) as joined,
        tq.connect(service.address) as client,
    ):
        assert joined.slots == [num_shards]
        new = [client.put({"x": torch.full((4,), 100.0 + k)}) for k in range(6)]
        for one in (client, before):
            for k, handle in enumerate(handles):
                assert one.get(handle)["x"].tolist() == [k] * 4
            for k, handle in enumerate(new):
                assert one.get(handle)["x"].tolist() == [100 + k] * 4
        rows = {shard["slot"]: shard["rows"] for shard in client.status()["shards"]}
        assert rows[num_shards] > 0
        assert sum(rows.values()) == 48
        everything = tq.BatchHandle.concat([*handles, *new])
        assert len(set(everything.uids.tolist())) == 48
        with client.claim(task="t", fields=["x"], n=48) as claim:
            assert sorted(claim.handle.uids.tolist()) == sorted(everything.uids.tolist())


def test_a_restored_service_and_the_one_it_was_saved_from_share_no_file(tmp_path: Path) -> None:
    """Both have the same id, and here a shard of the same number."""
    path = tmp_path / "saved"
    with tq.serve(shards=2, budget_bytes=BUDGET) as saved, tq.connect(saved.address) as client:
        held = [put_on(client, slot, x=torch.full((4,), slot)) for slot in (0, 1)]
        client.checkpoint(path)
        with (
            tq.serve(restore=path, budget_bytes=BUDGET) as again,
            tq.connect(again.address) as other,
            join(again.address, budget_bytes=BUDGET) as joined,
        ):
            assert other.service_id == client.service_id
            assert joined.slots == [1]
            new = [other.put({"x": torch.full((4,), 7)}) for _ in range(4)]
            kill_and_wait(saved, "shard-1")
            kill_and_wait(joined, "shard-1")
            for slot, handle in enumerate(held):
                assert client.get(handle, timeout_s=30)["x"].tolist() == [slot] * 4
                assert other.get(handle, timeout_s=30)["x"].tolist() == [slot] * 4
            assert all(other.get(h, timeout_s=30)["x"].tolist() == [7] * 4 for h in new)
        for slot, handle in enumerate(held):
            assert client.get(handle)["x"].tolist() == [slot] * 4
