"""What a user writes, to be read by type checkers. Nobody runs it."""

from __future__ import annotations

from typing import Any, assert_type

import torch

import transferqueue as tq
from workers import Dispatch, LocalWorkerGroup, Worker, register


class Critic(Worker):
    @register(Dispatch.HANDLE, reads=["input_ids"], writes=["values"])
    def compute_values(self, data: tq.DataProto) -> dict[str, torch.Tensor]:
        return {"values": torch.zeros(len(data))}


def blocking(address: str) -> None:
    with (
        tq.serve(shards=2, budget_bytes=1 << 28) as service,
        tq.connect(service.address) as client,
    ):
        assert_type(service, tq.Service)
        assert_type(client, tq.Client)
        handle = client.put({"input_ids": torch.zeros(4, 8)}, partition="train", tags={"v": 1})
        assert_type(handle, tq.BatchHandle)
        assert_type(handle[1:3], tq.BatchHandle)
        assert_type(len(handle.chunk(2)), int)
        assert_type(client.status(), dict[str, Any])
        view = client.view(handle)
        assert_type(view, tq.LazyDataProto)
        client.create_partition("train", tasks=["actor"], max_staleness=2)
        with client.claim(
            task="actor", fields=["input_ids"], n=2, partition="train", where=tq.tag("v") >= 1
        ) as claim:
            assert_type(claim.handle, tq.BatchHandle)
        with LocalWorkerGroup(Critic, 2, service=service) as group:
            group.compute_values(handle)
        try:
            client.get(handle, fields=["none"])
        except tq.errors.FieldsMissing as error:
            assert_type(error.page, str)


async def awaited(address: str) -> None:
    client = await tq.connect_async(address)
    assert_type(client, tq.AsyncClient)
    handle = await client.put({"x": [1, 2]}, partition="train")
    assert_type(handle, tq.BatchHandle)
    async for claim in client.stream(task="actor", fields=["x"], n=2):
        assert_type(claim, tq.AsyncClaim)
    await client.close()
