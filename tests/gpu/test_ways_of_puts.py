"""Tensors that are on a GPU on their way to shards, on hardware: each way, and what torch is still
at work on."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.gpu.needs_cuda import needs_cuda
from tests.gpu.tables import serve_on
from transferqueue.devices.cuda_driver import cuda_driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.sync_client import Client

pytestmark = [pytest.mark.gpu, needs_cuda]

BUDGET_BYTES = 256 << 20


def first() -> str:
    return f"cuda:{cuda_driver().uuids()[0]}"


def on_gpu() -> dict[str, torch.Tensor]:
    lengths = torch.randint(0, 900, (64,))
    rows = [torch.randn(int(n), 3, device="cuda:0") for n in lengths]
    return {
        "dense": torch.randn(64, 4096, device="cuda:0"),
        "half": torch.randn(64, 700, 2, device="cuda:0").bfloat16(),
        "turned": torch.randn(4096, 64, device="cuda:0").T,
        "ragged": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
        "host": torch.randn(64, 4096),
    }


def expect_same(got: dict[str, torch.Tensor], put: dict[str, torch.Tensor]) -> None:
    for name, value in put.items():
        mine = value.values() if value.is_nested else value
        found = got[name].values() if value.is_nested else got[name]
        assert torch.equal(found.cpu(), mine.cpu()), name


@pytest.fixture
def on_device() -> Iterator[Client]:
    with serve_on(first(), BUDGET_BYTES) as service, tq.connect(service.address) as client:
        yield client


def test_to_the_arena_of_their_gpu_without_a_word_of_where_they_are(on_device: Client) -> None:
    put = on_gpu()
    handle = on_device.put(put)
    expect_same(on_device.get_columns(handle), put)
    expect_same(on_device.get_columns(handle, device="cuda:0"), put)


@pytest.mark.parametrize("transport", ["auto", "ipc"])
def test_to_shards_on_the_host_by_page_locked_memory(transport: str) -> None:
    put = on_gpu()
    with (
        tq.serve(shards=2, budget_bytes=BUDGET_BYTES) as service,
        tq.connect(service.address, device="cuda:0", transport=transport) as client,
    ):
        ways = {"auto": "pinned-shm", "ipc": "pinned-stream"}
        assert {link["rung"] for link in client.links()} == {ways[transport]}
        handle = client.put(put)
        expect_same(client.get_columns(handle), put)
        assert client.get_columns(handle, fields=["dense"])["dense"].device.type == "cuda"
        expect_same(client.get_columns(handle, device="cpu"), put)


def test_a_put_waits_for_what_torch_is_at_work_on(on_device: Client) -> None:
    """The kernels that make the tensor are given and not done when it is put."""
    for turn in range(5):
        made = torch.zeros(4096, 4096, device="cuda:0")
        for _ in range(50):
            made = made @ made + turn
        made = torch.full_like(made, float(turn))
        handle = on_device.put({"x": made})
        del made  # its memory is torch's to give on from here
        torch.empty(4096, 4096, device="cuda:0").fill_(-1.0)
        assert bool((on_device.get(handle)["x"] == turn).all())
        on_device.clear(handle)


def test_of_two_gpus_the_tensors_of_one_put(on_device: Client) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    put = {"here": torch.randn(64, 4096, device="cuda:0")}
    put["there"] = torch.randn(64, 4096, device="cuda:1")
    expect_same(on_device.get_columns(on_device.put(put)), put)


WRITER = """
import sys, torch
import transferqueue as tq
with tq.connect(sys.argv[1]) as client:
    data = torch.arange(256 * 4096, device="cuda:0").reshape(256, 4096)
    print(client.put({"x": data}).to_bytes().hex())
"""


def test_from_another_process(on_device: Client) -> None:
    address = on_device._ops.session.coordinator
    done = subprocess.run([sys.executable, "-c", WRITER, address], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    handle = tq.BatchHandle.from_bytes(bytes.fromhex(done.stdout.strip()))
    got = on_device.get(handle, device="cuda:0")["x"]
    assert torch.equal(got.cpu(), torch.arange(256 * 4096).reshape(256, 4096))


def test_fields_on_the_gpu_and_others_in_shared_memory_are_reached_each_by_its_way() -> None:
    put = on_gpu()
    device = {"budget_bytes": BUDGET_BYTES, "backend": "device", "options": {"device": first()}}
    with (
        tq.serve(budget_bytes=BUDGET_BYTES, backends={"gpu": device}) as service,
        tq.connect(service.address, device="cuda:0") as client,
    ):
        client.create_partition("train", backend={"dense": "gpu", "ragged": "gpu", "*": "shm"})
        assert {(link["rung"], link["beside"]) for link in client.links()} == {
            ("pinned-shm", "same-gpu")
        }
        before = client.wire_bytes()["received"]
        handle = client.put(put, partition="train")
        got = client.get_columns(handle)
        expect_same(got, put)
        assert got["dense"].device.type == "cuda"
        assert client.wire_bytes()["received"] - before < put["dense"].nbytes
