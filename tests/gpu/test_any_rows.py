"""Rows more than once, in any order, not there, or on a disk; several GPUs; several clients of one
process, on hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.gpu.needs_cuda import needs_cuda
from tests.gpu.tables import serve_on
from transferqueue.devices.cuda_driver import cuda_driver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.service.embedded import Service

pytestmark = [pytest.mark.gpu, needs_cuda]

BUDGET_BYTES = 256 << 20
NUM_ROWS = 6000

ROWS = {
    "each three times": np.repeat(np.arange(1000, 4000), 3),
    "shuffled": np.random.default_rng(7).permutation(NUM_ROWS),
    "every seventh, backwards": np.arange(0, NUM_ROWS, 7)[::-1],
}


def on(uuid: str) -> dict[str, Any]:
    options = {"device": f"cuda:{uuid}"}
    return {"budget_bytes": BUDGET_BYTES, "backend": "device", "options": options}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("disk")
    disk = {"budget_bytes": BUDGET_BYTES, "arena_dir": str(folder)}
    with tq.serve(
        budget_bytes=BUDGET_BYTES, backends={"gpu": on(cuda_driver().uuids()[0]), "disk": disk}
    ) as service:
        with tq.connect(service.address) as client:
            for name in ("gpu", "shm", "disk"):
                client.create_partition(name, backend={"*": name})
        yield service


def columns() -> dict[str, torch.Tensor]:
    lengths = torch.randint(0, 50, (NUM_ROWS,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    steps = torch.randint(0, 9999, (int(lengths.sum()), 3), dtype=torch.int32)
    return {
        "dense": torch.randn(NUM_ROWS, 256),
        "odd": torch.randint(0, 255, (NUM_ROWS, 77), dtype=torch.uint8),
        "ragged": torch.nested.nested_tensor_from_jagged(steps, offsets),
    }


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("where", ["gpu", "shm", "disk"])
def test_they_are_on_the_gpu_as_on_the_host(service: Service, where: str, rows: np.ndarray) -> None:
    with tq.connect(service.address, device="cuda:0") as client:
        handle = client.put(columns(), partition=where)
        client.put({"extra": torch.randn(NUM_ROWS // 2, 65)}, handle=handle[: NUM_ROWS // 2])
        some = handle[rows]
        there = client.get_columns(some, optional=["extra"])
        here = client.get_columns(some, optional=["extra"], device="cpu")
        for name in ("dense", "odd", "extra"):
            assert there[name].device.type == "cuda"
            assert torch.equal(there[name].cpu(), here[name]), name
        assert torch.equal(there["ragged"].values().cpu(), here["ragged"].values())
        assert torch.equal(there["ragged"].offsets().cpu(), here["ragged"].offsets())
        client.clear(handle)


def test_they_are_right_for_whichever_stream_goes_on_with_them(service: Service) -> None:
    put = torch.randn(NUM_ROWS, 2048)
    with tq.connect(service.address, device="cuda:0") as client:
        handle = client.put({"x": put}, partition="gpu")
        some, other = handle[ROWS["each three times"]], torch.cuda.Stream()
        wanted = put[ROWS["each three times"]].double().sum()
        for _ in range(20):
            got = client.get(some)["x"]
            with torch.cuda.stream(other):
                total = got.double().sum()
            other.synchronize()
            assert torch.isclose(total.cpu(), wanted)
        client.clear(handle)


def test_clients_of_one_process_have_the_memory_of_a_shard_open_together() -> None:
    name = f"cuda:{cuda_driver().uuids()[0]}"
    put = torch.randn(256, 4096)
    with serve_on(name, BUDGET_BYTES) as service:
        one = tq.connect(service.address, device=name)
        with tq.connect(service.address, device="cuda:0") as other, one:
            handle = one.put({"x": put})
            for client in (other, one):
                assert {link["rung"] for link in client.links()} == {"same-gpu"}
                assert torch.equal(client.get(handle)["x"].cpu(), put)
            one.close()
            assert torch.equal(other.get(handle)["x"].cpu(), put)


def test_a_shard_has_memory_on_two_gpus() -> None:
    uuids = cuda_driver().uuids()
    if len(uuids) < 2:
        pytest.skip("there is one GPU")
    put = {name: torch.randn(256, 4096) for name in ("a", "b", "c")}
    with (
        tq.serve(
            budget_bytes=BUDGET_BYTES, backends={"one": on(uuids[0]), "two": on(uuids[1])}
        ) as service,
        tq.connect(service.address, device="cuda:0") as client,
    ):
        client.create_partition("train", backend={"a": "one", "b": "two", "*": "shm"})
        handle = client.put({n: v.to("cuda:0") for n, v in put.items()}, partition="train")
        got = client.get(handle)
        assert all(torch.equal(got[name].cpu(), value) for name, value in put.items())
        (link,) = client.links()
        assert link["beside"].startswith("same-gpu, ")
