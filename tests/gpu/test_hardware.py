"""What is to be seen on hardware: round trips between processes, ways, rates, and no leak.

Most run on a fake GPU too, which shows that the test itself works, and nothing about hardware.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.gpu.needs_cuda import needs_cuda
from tests.gpu.tables import bandwidth_rows, free_bytes, ladder_rows, serve_on
from transferqueue.devices.cuda_driver import cuda_driver
from transferqueue.devices.fake_machine import FakeMachine
from transferqueue.devices.ladder import Rung

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ["fake", pytest.param("cuda", marks=[pytest.mark.gpu, needs_cuda])]

SLACK_BYTES = 64 << 20
"""Contexts and caches of torch come and go; an arena that is left is larger."""


@pytest.fixture(params=KINDS)
def devices(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "cuda":
        return [f"cuda:{uuid}" for uuid in cuda_driver().uuids()]
    machine = FakeMachine.create(tmp_path, memory_bytes=192 << 20)
    return [machine.name_of(uuid) for uuid in machine.uuids]


READER = """
import sys, torch
import transferqueue as tq
with tq.connect(sys.argv[1], device=sys.argv[2]) as client:
    (link,) = client.links()
    got = client.get(tq.BatchHandle.from_bytes(bytes.fromhex(sys.argv[3])))
    print(link["rung"], int(got["x"].long().sum()), got["x"].device.type)
"""


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("devices", ["cuda"], indirect=True)
def test_bytes_go_between_two_processes_on_one_gpu(devices: list[str]) -> None:
    data = torch.randint(0, 1000, (256, 4096))
    with serve_on(devices[0], 16 << 20) as service, tq.connect(service.address) as client:
        handle = client.put({"x": data})
        done = subprocess.run(
            [sys.executable, "-c", READER, service.address, devices[0], handle.to_bytes().hex()],
            capture_output=True,
            text=True,
        )
    assert done.stdout.split() == ["same-gpu", str(int(data.sum())), "cuda"], done.stderr


def test_each_pair_of_gpus_has_a_way(devices: list[str]) -> None:
    for shard, reader, way, why in ladder_rows(devices):
        assert (Rung(way) is Rung.SAME_GPU) == (shard == reader), why
        print(shard, reader, way, why)


def test_rates_are_measured_and_bytes_are_right(devices: list[str]) -> None:
    rows = bandwidth_rows(devices[0], (1 if "fake" in devices[0] else 256) << 20)
    assert all(rate > 0 for _, rate in rows)
    print(rows)


def test_a_service_that_ended_leaves_no_device_memory(devices: list[str]) -> None:
    before = free_bytes(devices[0])
    for _ in range(1 if "fake" in devices[0] else 5):
        with serve_on(devices[0], 128 << 20) as service:
            with tq.connect(service.address, device=devices[0]) as client:
                client.get(client.put({"x": torch.zeros(256, 4096)}))
            assert before - free_bytes(devices[0]) >= 128 << 20
    assert before - free_bytes(devices[0]) < SLACK_BYTES
