"""What a user writes, to be read by type checkers. Nobody runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

import torch

import transferqueue as tq
from controller import Dataflow, DriverConfig, Mode, PpoDriver, PpoSettings, StepReport, Transport
from workers import (
    CallFuture,
    Dispatch,
    Execute,
    HandleFuture,
    LocalWorkerGroup,
    Mesh,
    Worker,
    WorkerGroup,
    register,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from controller.role_calls import Roles


class Critic(Worker):
    @register(Dispatch.HANDLE, reads=["input_ids"], optional=["mask"], writes=["values"])
    def compute_values(self, data: tq.DataProto) -> dict[str, torch.Tensor]:
        return {"values": torch.zeros(len(data))}

    @register(Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO, blocking=False)
    def save(self, path: str) -> str:
        return path


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


def claims(client: tq.Client) -> None:
    sampler = tq.samplers.Groups(size=8)
    with client.claim(
        task="actor",
        fields=["x"],
        n=64,
        sampler=sampler,
        where=(tq.tag("policy_version") >= 3) & (tq.tag("kind") == "math"),
        timeout_s=30,
        lease_s=60,
    ) as claim:
        assert_type(claim, tq.Claim)
        assert_type(claim.claim_id, int)
        assert_type(len(claim), int)
        assert_type(claim.tags["policy_version"], Any)
        assert_type(claim.deliveries.ndim, int)
        assert_type(claim.extend(60.0), float)
        claim.get(["x"])
        claim.ack(drop=claim.handle[:2])
    chosen = client.select(partition="train", where=tq.tag("policy_version") < 3, fields=["x"])
    assert_type(chosen, tq.BatchHandle)
    assert_type(client.wait(chosen, fields=["x"], timeout_s=1.0), tq.BatchHandle)
    assert_type(client.discard(chosen), int)
    for one in client.stream(task="actor", fields=["x"], n=8):
        assert_type(one, tq.Claim)
        one.give_back()


async def claims_awaited(client: tq.AsyncClient) -> None:
    async with client.claim(task="actor", fields=["x"], n=4) as claim:
        assert_type(claim, tq.AsyncClaim)
        await claim.get(["x"])
        assert_type(await claim.extend(60.0), float)
    claim = await client.claim(task="actor", fields=["x"], n=4)
    await claim.ack()


def weights(client: tq.Client, state: dict[str, torch.Tensor]) -> None:
    client.publish("policy", state, version=7)
    fetched = client.fetch("policy", newer_than=6)
    assert_type(fetched, tq.Weights)
    assert_type(fetched.version, int)
    assert_type(fetched.state_dict["w"], torch.Tensor)


def views(client: tq.Client, handle: tq.BatchHandle) -> None:
    view = client.view(handle, reads=["input_ids"])
    assert_type(view.chunk(4), list[tq.LazyDataProto])
    assert_type(view.split(4), list[tq.LazyDataProto])
    assert_type(view.select(["input_ids"]), tq.LazyDataProto)
    assert_type(view.repeat(4, interleave=True), tq.LazyDataProto)
    assert_type(view.union(view), tq.LazyDataProto)
    assert_type(view.select_idxs(torch.tensor([0, 2])), tq.LazyDataProto)
    assert_type(view.handle, tq.BatchHandle)
    assert_type(view.push(["advantages"]), tq.BatchHandle)
    eager = tq.DataProto.from_dict(tensors={"x": torch.zeros(4)})
    assert_type(eager, tq.DataProto)
    assert_type(tq.DataProto.concat([eager, eager]), tq.DataProto)
    padded, size = tq.pad_dataproto_to_divisor(eager, 3)
    assert_type(size, int)
    del padded
    assert_type(handle.select(["x"]).rename({"x": "y"}).drop(["y"]), tq.BatchHandle)
    assert_type(tq.BatchHandle.concat([handle, handle]), tq.BatchHandle)
    assert_type(tq.BatchHandle.from_bytes(handle.to_bytes()), tq.BatchHandle)
    assert_type(handle.fields["x"], tq.FieldSpec)


def groups(service: tq.Service, handle: tq.BatchHandle) -> None:
    with LocalWorkerGroup(
        Critic, mesh=Mesh.of(dp=2, tp=2), service=service, processes=True
    ) as group:
        assert_type(group, LocalWorkerGroup)
        dispatched(group, handle)


def dispatched(group: WorkerGroup, handle: tq.BatchHandle) -> None:
    answer: HandleFuture | CallFuture = group.compute_values(handle, blocking=False)
    answer.get(timeout_s=10.0)
    assert_type(answer.done(), bool)
    if isinstance(answer, HandleFuture):
        assert_type(answer.handle, tq.BatchHandle)


def prompts(number: int) -> Mapping[str, Any]:
    return {"prompts": torch.zeros(8, dtype=torch.int64) + number}


def driver(client: tq.Client, roles: Roles, flow: Dataflow) -> Iterator[float]:
    config = DriverConfig(
        num_steps=10,
        prompts_per_step=8,
        mode=Mode.ONE_STEP_OFF,
        transport=Transport.HANDLES,
    )
    assert_type(PpoSettings().dataflow(), Dataflow)
    with PpoDriver(client, roles, prompts, flow, config) as running:
        assert_type(running.step, int)
        for report in running.run():
            assert_type(report, StepReport)
            yield running.evaluate()


def started(folder: str) -> None:
    """A service with everything that has a type of its own."""
    tq.serve(
        host="127.0.0.1",
        backends={"disk": {"budget_bytes": 1 << 30, "arena_dir": folder}},
        transports={"sockets": {}},
        read_keys={"dashboard": ["train"], "all": None},
        samplers=[tq.samplers.Fifo, "mypackage.samplers:Mine"],
        tracing="mypackage.tracing:provider",
    ).close()
    with tq.connect(transport="sockets", progress=True, tracing=True) as client:
        assert_type(client.links(), list[dict[str, Any]])
        client.checkpoint(folder)
