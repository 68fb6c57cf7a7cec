"""Services on fake GPUs, and tensors that are in their memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import transferqueue as tq
from transferqueue.client.device_side import DeviceSide
from transferqueue.client.lease_returns import release
from transferqueue.client.part_gets import PartGet
from transferqueue.devices.fake_gpu import FakeGpu
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking

if TYPE_CHECKING:
    import pytest

    from transferqueue.client.sync_client import Client
    from transferqueue.devices.fake_machine import FakeMachine
    from transferqueue.service.embedded import Service

QUARANTINE_S = 1.0
BUDGET_BYTES = 8 << 20


def serve(machine: FakeMachine, **options: Any) -> Service:
    """Two shards, their arenas on the first GPU."""
    return tq.serve(
        shards=2,
        budget_bytes=BUDGET_BYTES,
        backend="device",
        backend_options={
            "device": machine.name_of(machine.uuids[0]),
            "quarantine_s": QUARANTINE_S,
            **options,
        },
    )


def gpu_of(client: Client) -> FakeGpu:
    """That its gets land on."""
    side = client._ops.data.devices.side()
    assert side is not None
    assert isinstance(side.device, FakeGpu)
    return side.device


def put_on(gpu: FakeGpu, tensor: torch.Tensor) -> torch.Tensor:
    """The same values in the memory of a GPU."""
    if tensor.is_nested:
        return torch.nested.nested_tensor_from_jagged(
            put_on(gpu, tensor.values()), tensor.offsets()
        )
    plain = tensor.contiguous()
    memory, _ = gpu.new_tensor(plain.nbytes)
    memory.copy_(plain.reshape(-1).view(torch.uint8))
    found = memory.view(plain.dtype).view(plain.shape)
    assert gpu.holds(found)
    return found


def end_loan(part: PartGet) -> None:
    """Have a shard believe that what it has lent for a part of a get is read no more."""
    assert part._loan_id is not None
    channels = SyncChannelPool(None)
    run_blocking(channels.exchange([release(part._endpoint, [part._loan_id])], timeout_s=5.0))
    channels.close()


def clear_while_copied(
    client: Client, handle: tq.BatchHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From now on what the client gets is given on before it is copied."""
    taken: list[PartGet] = []
    take, copy_all = PartGet.take, DeviceSide.copy_all

    def remember(part: PartGet, answer: Any) -> None:
        take(part, answer)
        taken.append(part)

    def clear_first(*arguments: Any) -> None:
        (part,) = taken
        end_loan(part)
        client.clear(handle)
        copy_all(*arguments)

    monkeypatch.setattr(PartGet, "take", remember)
    monkeypatch.setattr(DeviceSide, "copy_all", clear_first)


def columns(num_rows: int = 64) -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 900, (num_rows,), generator=random)
    return {
        "dense": torch.randn(num_rows, 1000, generator=random),
        "scalar": torch.arange(num_rows),
        "half": torch.randn(num_rows, 700, 2, generator=random).bfloat16(),
        "ragged": torch.nested.as_nested_tensor(
            [torch.randn(int(n), 3, generator=random) for n in lengths], layout=torch.jagged
        ),
        "text": np.array([f"row {row}" for row in range(num_rows)], object),
    }


def on_gpu(gpu: FakeGpu, batch: dict[str, Any]) -> dict[str, Any]:
    """Its tensors there, the rest as it is."""
    return {
        name: put_on(gpu, value) if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }


def tensor_bytes(batch: dict[str, Any]) -> int:
    tensors = [value for value in batch.values() if isinstance(value, torch.Tensor)]
    return sum(t.values().nbytes if t.is_nested else t.nbytes for t in tensors)


def expect_same(got: Any, put: dict[str, Any], rows: Any = None) -> None:
    for name, value in put.items():
        found = got[name]
        if name == "ragged":
            parts = value.unbind()
            wanted = parts if rows is None else [parts[i] for i in rows]
            assert all(map(torch.equal, found.unbind(), wanted))
        else:
            wanted = value if rows is None else value[rows]
            same = torch.equal if isinstance(value, torch.Tensor) else np.array_equal
            assert same(found, wanted), name


def backend_sum(client: Client, fact: str) -> int:
    """Over the shards: ``lent_bytes``, ``quarantined_bytes``."""
    return sum(shard["backend"][fact] for shard in client.status()["shards"])


def used_bytes(client: Client) -> int:
    return sum(shard["used_bytes"] for shard in client.status()["shards"])
