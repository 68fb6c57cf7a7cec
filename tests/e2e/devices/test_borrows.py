"""Borrowed device memory: real processes, fake GPUs."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import (
    backend_sum,
    columns,
    end_loan,
    expect_same,
    gpu_of,
    on_gpu,
    serve,
    used_bytes,
)
from tests.waiting import wait_until
from transferqueue.client import device_fills, tensordicts
from transferqueue.devices.host import DoneEvent
from transferqueue.errors import DeviceError, OwnerLost, StaleGeneration

if TYPE_CHECKING:
    from transferqueue.client.sync_client import Client
    from transferqueue.devices.fake_machine import FakeMachine
    from transferqueue.service.embedded import Service


def overdue(client: Client) -> int:
    return sum(shard["loans_overdue"] for shard in client.status()["shards"])


def test_what_is_borrowed_is_the_memory_of_the_shard(client: Client) -> None:
    put, gpu = columns(), gpu_of(client)
    handle = client.put(put)
    borrow = client.borrow(handle, fields=["dense", "ragged", "text"])
    with borrow as td:
        expect_same(td, {name: put[name] for name in ("dense", "ragged")})
        assert td["text"] == put["text"].tolist()
        assert borrow.fields == ["dense", "ragged"]
        assert gpu.counters.bytes_across == 0
        assert backend_sum(client, "lent_bytes") > 0
    assert list(td.keys()) == []
    assert backend_sum(client, "lent_bytes") == 0


def test_rows_of_a_put_are_borrowed_in_part_and_rows_apart_are_copied(client: Client) -> None:
    put, gpu = columns(), gpu_of(client)
    handle = client.put(put)
    borrow = client.borrow(handle[10:40], fields=["dense"])
    with borrow as td:
        assert torch.equal(td["dense"], put["dense"][10:40])
        assert (borrow.fields, gpu.counters.bytes_across) == (["dense"], 0)
    borrow = client.borrow(handle[[30, 7]], fields=["dense"])
    with borrow as td:
        assert torch.equal(td["dense"], put["dense"][[30, 7]])
        assert borrow.fields == []


def test_to_another_device_or_the_host_it_is_copied(
    service: Service, client: Client, machine: FakeMachine
) -> None:
    put = {"x": torch.randn(64, 1000)}
    handle = client.put(put)
    with client.borrow(handle, device="cpu") as td:
        expect_same(td, put)
    with tq.connect(service.address, device=machine.name_of(machine.uuids[1])) as other:
        borrow = other.borrow(handle)
        with borrow as td:
            expect_same(td, put)
            assert gpu_of(other).holds(td["x"])
            assert borrow.fields == []


async def test_the_asynchronous_client_does_the_same(
    service: Service, client: Client, machine: FakeMachine
) -> None:
    put = {"x": torch.randn(64, 1000)}
    handle = client.put(put)
    async with await tq.connect_async(service.address) as other:
        borrow = other.borrow(handle, device=machine.name_of(machine.uuids[0]))
        async with borrow as td:
            expect_same(td, put)
            assert borrow.fields == ["x"]
        assert list(td.keys()) == []
    assert backend_sum(client, "lent_bytes") == 0


def test_what_is_cleared_in_the_block_stays_as_it_is_until_its_end(client: Client) -> None:
    handle = client.put({"x": torch.ones(64, 1000)})
    with client.borrow(handle) as td:
        client.clear(handle)
        for _ in range(8):
            client.put({"x": torch.zeros(64, 1000)})
        assert torch.equal(td["x"], torch.ones(64, 1000))
        assert used_bytes(client) == 9 * 256_000
    assert used_bytes(client) == 8 * 256_000


def test_a_borrow_that_outlives_its_lease_is_reported_and_kept(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    before = overdue(client)
    handle = client.put({"x": torch.ones(64, 1000)})
    with caplog.at_level(logging.WARNING), client.borrow(handle, lease_s=0.01) as td:
        wait_until(lambda: overdue(client) == before + 1)
        client.clear(handle)
        assert torch.equal(td["x"], torch.ones(64, 1000))
    assert "longer than asked for" in caplog.text
    assert used_bytes(client) == 0


def test_a_tensor_that_outlives_the_block_is_warned_of_and_its_memory_stays_lent(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    handle = client.put({"x": torch.ones(64, 1000)})
    with caplog.at_level(logging.WARNING), client.borrow(handle) as td:
        kept = td["x"][3:5]
    assert "['x'] outlive the block" in caplog.text
    client.clear(handle)
    client.put({"y": torch.zeros(64, 1000)})
    assert torch.equal(kept, torch.ones(2, 1000))
    assert backend_sum(client, "lent_bytes") == 256_000
    del kept
    gc.collect()
    wait_until(lambda: backend_sum(client, "lent_bytes") == 0)


def test_a_borrow_that_fails_gives_back_what_was_lent_for_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.put({"x": torch.ones(64, 1000)})

    def fail(columns: Any, num_rows: int) -> Any:
        raise ValueError("no such class")

    with monkeypatch.context() as patch:
        patch.setattr(tensordicts, "to_tensordict", fail)
        with pytest.raises(ValueError, match="no such class") as failed, client.borrow(handle):
            pass
    wait_until(lambda: backend_sum(client, "lent_bytes") == 0)
    assert failed.value is not None, "it was given back while the error is held"


@pytest.mark.parametrize("error", [KeyboardInterrupt, DeviceError])
def test_a_borrow_whose_end_is_interrupted_gives_back_what_was_lent_when_it_is_read(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    class Read(DoneEvent):
        has_come = False

        def is_done(self) -> bool:
            return self.has_come

        def wait(self, timeout_s: float = 0.0) -> None:
            raise error("the driver says no")

    read = Read()
    handle = client.put({"x": torch.ones(64, 1000)})
    with monkeypatch.context() as patch:
        patch.setattr(gpu_of(client), "after_torch", lambda: read)
        with pytest.raises(error), client.borrow(handle):
            pass
    client.get(client.put({"y": torch.ones(64)}))
    assert backend_sum(client, "lent_bytes") == 256_000
    read.has_come = True
    client.get(client.put({"y": torch.ones(64)}))
    wait_until(lambda: backend_sum(client, "lent_bytes") == 0)


def test_memory_that_was_given_on_in_the_block_is_not_believed(client: Client) -> None:
    handle = client.put({"x": torch.ones(64, 1000)})
    borrow = client.borrow(handle)
    with pytest.raises(StaleGeneration, match="nothing is there now"), borrow:
        assert borrow._borrowed is not None
        (part,) = borrow._borrowed._parts
        end_loan(part)
        client.clear(handle)


def test_an_owner_that_ends_in_the_block_is_lost(machine: FakeMachine) -> None:
    name = machine.name_of(machine.uuids[0])
    with serve(machine) as service, tq.connect(service.address, device=name) as client:
        handles = [client.put({"x": torch.ones(64, 1000)}) for _ in range(2)]
        pids = [shard["pid"] for shard in client.status()["shards"]]
        with pytest.raises(OwnerLost), client.borrow(handles[0]):
            with pytest.raises(KeyError) as raised, client.borrow(handles[1]) as td:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
                td["other"]
            assert "may have been anything" in raised.value.__notes__[0]


@pytest.mark.parametrize("kept", ["host_copies", "replicas"])
def test_what_is_kept_elsewhere_serves_when_the_owner_has_ended(
    kept: str, machine: FakeMachine
) -> None:
    name = machine.name_of(machine.uuids[0])
    options = {"device": name, "host_copies": kept == "host_copies"}
    with (
        tq.serve(
            shards=2,
            budget_bytes=8 << 20,
            backend="device",
            backend_options=options,
            replicas=2 if kept == "replicas" else 1,
        ) as service,
        tq.connect(service.address, device=name) as client,
    ):
        put = columns(32)
        handles = [client.put(put) for _ in range(2)]
        client.clear(handles[0][8:])
        victim = client.status()["shards"][int(handles[1].uids[0] >> 48)]["pid"]
        with pytest.raises(OwnerLost), client.borrow(handles[1], fields=["dense"]):
            os.kill(victim, signal.SIGKILL)
            time.sleep(0.05)
        expect_same(client.get_columns(handles[1]), put)
        expect_same(client.get_columns(handles[0][:8]), put, range(8))
        assert gpu_of(client).holds(client.get_columns(handles[1], fields=["dense"])["dense"])
        client.clear(handles[1])
        expect_same(client.get_columns(client.put(put)), put)


def test_a_put_under_way_begins_again_at_a_successor_with_host_copies(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was copied to the memory of a process that ended, and not committed, is nowhere."""
    name = machine.name_of(machine.uuids[0])
    with (
        tq.serve(
            budget_bytes=8 << 20,
            backend="device",
            backend_options={"device": name, "host_copies": True},
        ) as service,
        tq.connect(service.address, device=name) as client,
    ):
        pids, fill = [client.status()["shards"][0]["pid"]], device_fills.fill

        def kill_after(*arguments: Any) -> None:
            fill(*arguments)
            while pids:
                os.kill(pids.pop(), signal.SIGKILL)

        monkeypatch.setattr(device_fills, "fill", kill_after)
        put = columns(16)
        handle = client.put(on_gpu(gpu_of(client), put))
        assert pids == []
        expect_same(client.get_columns(handle), put)
        client.clear(handle)
        assert used_bytes(client) == 0
