"""Shared memory of shards that a GPU copies from and to by itself: real processes, a fake GPU."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
from click.testing import CliRunner

import transferqueue as tq
from tests.e2e.fake_gpus import (
    BUDGET_BYTES,
    columns,
    expect_same,
    gpu_of,
    on_gpu,
    put_on,
    tensor_bytes,
    used_bytes,
)
from tests.waiting import wait_until
from transferqueue.backends import segments
from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.client.locked_arena import LockedArena
from transferqueue.devices.fake_gpu import FakeGpu
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.devices.staging import Staging
from transferqueue.errors import DeviceStuck, RungRefused
from transferqueue.service.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.client.sync_client import Client
    from transferqueue.service.embedded import Service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tq.serve(shards=2, budget_bytes=2 * BUDGET_BYTES) as service:
        yield service


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each copy by way of a ring."""
    copies: list[int] = []
    copy_ranges_in, copy_ranges_out = Staging.copy_ranges_in, Staging.copy_ranges_out

    def counted_in(staging: Staging, block: Any, ranges: Any, source: memoryview) -> None:
        copies.append(source.nbytes)
        copy_ranges_in(staging, block, ranges, source)

    def counted_out(staging: Staging, block: Any, ranges: Any, out: memoryview) -> None:
        copies.append(out.nbytes)
        copy_ranges_out(staging, block, ranges, out)

    monkeypatch.setattr(Staging, "copy_ranges_in", counted_in)
    monkeypatch.setattr(Staging, "copy_ranges_out", counted_out)
    return copies


def test_tensors_go_there_and_back_without_a_ring(client: Client, staged: list[int]) -> None:
    put, gpu = columns(), gpu_of(client)
    handle = client.put(on_gpu(gpu, put))
    assert gpu.counters.bytes_pinned == tensor_bytes(put)
    got = client.get_columns(handle)
    expect_same(got, put)
    assert gpu.holds(got["dense"])
    assert gpu.counters.bytes_pinned == 2 * tensor_bytes(put)
    assert gpu.counters.bytes_pageable == 0
    assert staged == [put["scalar"].nbytes]  # which comes with the answer
    expect_same(client.get_columns(handle, device="cpu"), put)
    assert {(link["rung"], link["why_not_better"].count(";")) for link in client.links()} == {
        ("pinned-shm", 1)
    }


def test_rows_in_any_order_and_of_several_shards(client: Client, staged: list[int]) -> None:
    puts = [columns(16) for _ in range(4)]
    gpu = gpu_of(client)
    handle = tq.BatchHandle.concat([client.put(on_gpu(gpu, put)) for put in puts])
    rows = torch.randperm(64).tolist()
    got = client.get_columns(handle[rows], fields=["dense", "half"])
    for name in ("dense", "half"):
        assert torch.equal(got[name], torch.cat([put[name] for put in puts])[rows])
    assert staged == []


def test_what_cannot_be_locked_goes_by_a_ring_and_that_is_said_once(
    client: Client, machine: FakeMachine, staged: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    put = columns()
    with machine.fault(Fault.REFUSE_PINNING), caplog.at_level(logging.WARNING):
        for _ in range(2):
            handle = client.put(on_gpu(gpu_of(client), put))
            expect_same(client.get_columns(handle), put)
    assert caplog.text.count("ulimit -l unlimited") == 1  # the ring was locked before
    assert sum(staged) == 4 * tensor_bytes(put)
    (why,) = {link["why_not_better"] for link in client.links()}
    assert {link["rung"] for link in client.links()} == {"shm"}
    assert "pinned-shm: " in why
    assert "the driver says no" in why


def test_where_it_is_required_it_is_had_or_refused(service: Service, machine: FakeMachine) -> None:
    name, put = machine.name_of(machine.uuids[0]), columns()
    with machine.fault(Fault.REFUSE_PINNING), pytest.raises(RungRefused, match="pinned-shm"):
        tq.connect(service.address, device=name, required="pinned-shm")
    with tq.connect(service.address, device=name, required="pinned-shm") as client:
        handle = client.put(put)
        there = on_gpu(gpu_of(client), put)
        with machine.fault(Fault.REFUSE_PINNING):
            with pytest.raises(RungRefused, match="the driver says no"):
                client.get(handle)
            with pytest.raises(RungRefused, match="the driver says no"):
                client.put(there)
        client.clear(handle)
        wait_until(lambda: used_bytes(client) == 0)


def test_the_doctor_says_which_way_tensors_come_to_a_device_and_why(
    service: Service, machine: FakeMachine
) -> None:
    asked = ["doctor", "--json", "--address", service.address]
    asked += ["--device", machine.name_of(machine.uuids[0])]

    def ways() -> list[str]:
        checks = json.loads(CliRunner().invoke(main, asked).stdout)["checks"]
        return [check["found"] for check in checks if check["name"].startswith("way to shard")]

    assert all(f"{machine.uuids[0]} by pinned-shm, not better: same-gpu" in way for way in ways())
    with machine.fault(Fault.REFUSE_PINNING):
        assert all("by shm" in way and "ulimit -l unlimited" in way for way in ways())


def test_space_that_a_stuck_device_may_write_to_is_nobodys_until_it_goes_on(
    client: Client, machine: FakeMachine
) -> None:
    gpu = gpu_of(client)
    there = {"x": put_on(gpu, torch.ones(64, 1000))}
    with machine.fault(Fault.STUCK), pytest.raises(DeviceStuck):
        client.put(there)
    assert used_bytes(client) == there["x"].nbytes
    handles = [client.put({"x": put_on(gpu, torch.zeros(64, 1000))}) for _ in range(3)]
    wait_until(lambda: used_bytes(client) == 3 * there["x"].nbytes)
    for handle in handles:
        assert torch.equal(client.get(handle)["x"], torch.zeros(64, 1000))


def test_steps_are_locked_once_and_no_copy_crosses_an_edge(
    tmp_path: Path, machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 64 << 10
    monkeypatch.setattr("transferqueue.client.locked_arena.STEP_BYTES", step)
    address = ArenaAddress(
        directory=str(tmp_path), service_id="s", slot=0, token="0" * 16,
        segment_bytes=3 * step // 2, capacity_bytes=4 * step, boot_id="",
    )  # fmt: skip
    files = segments.SegmentFiles(address)
    assert files.back(address.capacity_bytes)
    with FakeGpu(machine, machine.uuids[0]) as gpu, LockedArena(address, gpu) as arena:
        arena.lock([(10, 20), (step - 5, 10)])
        assert arena.nbytes == step + step // 2
        arena.lock([(0, step)])
        assert len(gpu.counters.registered) == 2
        sizes = [piece.nbytes for piece in arena.pieces(step - 5, step)]
        assert sizes == [5, step // 2, step // 2 - 5]
    assert gpu.counters.registered == {}
