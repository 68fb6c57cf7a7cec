"""A service whose shards keep some fields as objects of Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


@pytest.fixture
def address() -> Iterator[str]:
    import ray

    context = ray.init(
        num_cpus=1,
        include_dashboard=False,
        logging_level="error",
        object_store_memory=128 * MIB,
    )
    yield str(context.address_info["address"])
    ray.shutdown()


@pytest.mark.may_leak  # Ray's own threads
def test_a_field_lies_in_ray_and_small_columns_in_shared_memory(address: str) -> None:
    of_ray = {"budget_bytes": 64 * MIB, "options": {"address": address}}
    with (
        tq.serve(budget_bytes=16 * MIB, backends={"ray": of_ray}, start_timeout_s=120) as service,
        tq.connect(service.address, timeout_s=30) as client,
    ):
        client.create_partition("images", backend={"pixels": "ray", "*": "shm"})
        pixels = torch.randint(0, 255, (8, MIB), dtype=torch.uint8)
        columns = {"pixels": pixels, "ids": torch.arange(8), "text": [str(i) for i in range(8)]}
        handle = client.put(columns, partition="images")
        got = client.get_columns(handle[[5, 2]])
        assert torch.equal(got["pixels"], pixels[[5, 2]])
        assert got["text"].tolist() == ["5", "2"]
        assert torch.equal(client.get(handle)["pixels"], pixels)
        backends = client.status()["shards"][0]["backends"]
        assert (backends["ray"]["used_bytes"], backends["ray"]["objects"]) == (8 * MIB, 1)
        client.clear(handle[1:])
        assert torch.equal(client.get(handle[:1])["pixels"], pixels[:1])
        client.clear(handle)
        wait_until(
            lambda: client.status()["shards"][0]["backends"]["ray"]["used_bytes"] == 0,
            timeout_s=20,
        )
