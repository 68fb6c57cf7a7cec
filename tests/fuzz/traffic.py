"""What a client says to a service, taken down while it works."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

import transferqueue as tq
from transferqueue.errors import TransferQueueError
from transferqueue.net import sockets
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.wire.format import Message

SHARD_OPS = frozenset(
    {
        *(ops.PUT, ops.WRITE, ops.COMMIT, ops.ABORT, ops.GET, ops.READ, ops.READ_DONE),
        *(ops.CLEAR, ops.RELEASE),
    }
)
NOT_FOR_STRANGERS = frozenset({ops.LOSE_SHARD})
"""What an operator may do, and whoever may call it ends the service's usefulness by right."""


def record(address: str) -> list[Message]:
    """Every request of some clients of a service that use most of what there is."""
    heard: list[Message] = []
    encode = sockets.encode_message

    def listen(message: Message) -> list[sockets.Buffer]:
        heard.append(replace(message, frames=[bytes(frame) for frame in message.frames]))
        return encode(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sockets, "encode_message", listen)
        for transport in ("auto", "ipc"):
            with tq.connect(address, transport=transport, timeout_s=2.0) as client:
                _work(client, f"recorded-{transport}")
    return [message for message in heard if message.op not in NOT_FOR_STRANGERS]


def _work(client: tq.Client, partition: str) -> None:
    client.create_partition(partition, tasks=["a", "b"], retention="explicit")
    handle = client.put(
        {
            "x": torch.arange(8.0),
            "ids": torch.zeros(8, 5, dtype=torch.int64),
            "text": list("abcdefgh"),
        },
        partition=partition,
        tags={"group": [0, 0, 1, 1, 2, 2, 3, 3], "policy_version": 1},
    )
    large = client.put({"wide": torch.zeros(4, 1 << 17)}, partition=partition)
    handle = client.put({"y": torch.rand(8, 3)}, handle=handle)
    client.put({"y": torch.rand(8, 3)}, handle=handle, overwrite=True)
    client.get(handle[2:6], fields=["x", "text"])
    client.get_columns(large)
    client.wait(handle, fields=["x"], timeout_s=5)
    client.select(partition=partition, where=tq.tag("group") >= 1)
    client.update_tags(handle, {"group": 7})
    client.advance_policy(partition=partition, version=2)
    for sampler in (tq.samplers.Fifo(), tq.samplers.Groups(size=2)):
        _quietly(lambda sampler=sampler: _claim(client, partition, sampler))
    _quietly(lambda: client.redrive(task="a", partition=partition))
    _quietly(lambda: client.dead_letters(task="a", partition=partition))
    client.held()
    client.status()
    client.waits(partition=partition)
    client.describe(partition)
    client.describe(uids=handle.uids[:2].tolist())
    client.publish("weights", {"w": torch.zeros(3)}, version=1)
    client.fetch("weights")
    _quietly(lambda: client.discard(handle[:1]))
    client.clear(large)
    client.clear(partition=partition)


def _claim(client: tq.Client, partition: str, sampler: tq.samplers.Sampler) -> None:
    claim = client.claim(
        task="a",
        partition=partition,
        fields=["x"],
        n=2,
        sampler=sampler,
        where=tq.tag("group") >= 0,
        timeout_s=0.2,
        lease_s=5,
    )
    claim.extend(lease_s=6)
    claim.get(["x"])
    claim.give_back()


def _quietly(step: Callable[[], object]) -> None:
    with contextlib.suppress(TransferQueueError):
        step()
