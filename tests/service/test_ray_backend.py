"""A service whose shards keep some fields as objects of Ray."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from tests.mooncake_master import free_port
from tests.ray_head import ray_head
from tests.waiting import wait_until
from transferqueue.errors import RowsLost, ServiceFailed

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


def is_away(client: tq.Client) -> bool:
    return "away" in client.status()["shards"][0]["backends"]["ray"]


@pytest.mark.slow
def test_a_shard_serves_all_else_while_ray_is_dead_and_takes_it_back_when_it_lives() -> None:
    port = free_port()
    with ray_head(port) as head, ExitStack() as open_things:
        of_ray = {"budget_bytes": 32 * MIB, "options": {"address": head.address, "timeout_s": 2.0}}
        service = open_things.enter_context(
            tq.serve(budget_bytes=16 * MIB, backends={"ray": of_ray}, start_timeout_s=120)
        )
        client = open_things.enter_context(tq.connect(service.address, timeout_s=20))
        client.create_partition("images", backend={"pixels": "ray", "*": "shm"})
        pixels = {"pixels": torch.arange(4 * MIB, dtype=torch.int32).view(4, -1)}
        gone = client.put(pixels, partition="images")
        kept = client.put({"ids": torch.arange(4)}, partition="images")
        shard = service.pids["shard-0"]
        head.kill_raylet()  # which takes the shard with it; the address answers on
        wait_until(lambda: service.pids["shard-0"] != shard, timeout_s=20)
        assert client.get(kept)["ids"].tolist() == [0, 1, 2, 3]
        with pytest.raises(RowsLost, match="4 of 4"):
            client.get(gone)
        with pytest.raises(ServiceFailed, match=r"'ray': was not there .*ray start --head"):
            client.put(pixels, partition="images")
        head.kill()
        more = client.put({"ids": torch.arange(2)}, partition="images")
        assert client.get(more)["ids"].tolist() == [0, 1]
        with ray_head(port):
            wait_until(lambda: not is_away(client), timeout_s=120)
            there = client.put(pixels, partition="images")
            assert torch.equal(client.get(there)["pixels"], pixels["pixels"])
            with pytest.raises(RowsLost, match="4 of 4"):
                client.get(gone)
            assert (service.num_restarts, service.failures) == (1, {})
            open_things.close()
