"""Memory comes back when the last reference goes, not when Python next looks for cycles.

A tensor of a get holds its memory in the shard. Were it in a cycle, or held by one, it would do so
until a collection of the garbage, which Python makes by the number of objects, whatever their size.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from transferqueue import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transferqueue.service.embedded import Service

OURS = ("transferqueue", "controller", "workers")
ROWS = 8


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tq.serve(budget_bytes=64 << 20) as running:
        yield running


@pytest.fixture(scope="module", params=["auto", "ipc"])
def client(service: Service, request: pytest.FixtureRequest) -> Iterator[tq.Client]:
    with tq.connect(service.address, transport=request.param, timeout_s=20) as connected:
        put_and_get(connected)  # its thread that gives memory back starts with the first lease
        yield connected


def columns() -> dict[str, Any]:
    ragged = [torch.arange(1.0 + i) for i in range(ROWS)]
    return {
        "dense": torch.rand(ROWS, 1 << 16),
        "ragged": torch.nested.nested_tensor(ragged, layout=torch.jagged),
        "text": [f"row {i}" for i in range(ROWS)],
        "arrays": [np.arange(i + 1) for i in range(ROWS)],
        "trees": [{"image": np.zeros((2, i + 1)), "n": [i]} for i in range(ROWS)],
        "plain": [{"a": i, "b": None} for i in range(ROWS)],
    }


def put_and_get(client: tq.Client) -> None:
    handle = client.put(columns(), partition="cycles", tags={"policy_version": 1})
    client.get_columns(handle)
    client.get_columns(handle[[3, 1]])
    client.put({"more": torch.zeros(ROWS, 4)}, handle=handle)
    client.clear(handle)


def view(client: tq.Client) -> None:
    handle = client.put(columns(), partition="cycles")
    batch = client.view(handle)
    assert batch.batch["dense"].shape[0] == ROWS
    twice = batch.repeat(2)
    tq.DataProto.concat(list(twice.chunk(2)))
    batch.select(["dense"]).pop(["dense"])
    assert len(batch.non_tensor_batch["text"]) == ROWS
    client.clear(handle)


def claims(client: tq.Client) -> None:
    client.create_partition("claimed", tasks=["actor"])
    client.put(columns(), partition="claimed")
    claim = client.claim(task="actor", fields=["text"], n=ROWS, partition="claimed")
    client.get_columns(claim.handle, fields=["text"])
    claim.ack()
    client.clear(claim.handle)


def weights(client: tq.Client) -> None:
    client.publish("policy", {"layer": torch.zeros(256, 256)}, version=1)
    client.fetch("policy")


def reports(client: tq.Client) -> None:
    client.status()
    client.held()
    client.links()
    client.waits()


def errors_of_a_user(client: tq.Client) -> None:
    handle = client.put({"x": torch.zeros(2, 1 << 16)}, partition="cycles")
    with pytest.raises(errors.TransferQueueError):
        client.get_columns(handle, fields=["missing"], timeout_s=0)
    with pytest.raises(errors.TransferQueueError):
        client.put({"x": torch.zeros(3, 4)}, handle=handle)
    with pytest.raises(errors.StorageFull):
        client.put({"x": torch.zeros(1, 32 << 20)}, partition="cycles", timeout_s=0.1)
    client.clear(handle)
    with pytest.raises(errors.TransferQueueError):
        client.get_columns(handle)


SCENES = [put_and_get, view, claims, weights, reports, errors_of_a_user]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_nothing_of_ours_is_in_a_cycle(
    client: tq.Client, scene: Callable[[tq.Client], None]
) -> None:
    scene(client)  # what is imported and made once has been by now
    assert cyclic(lambda: scene(client)) == []


def cyclic(act: Callable[[], None]) -> list[str]:
    """What of ours only a search for cycles finds after ``act``."""
    gc.collect()
    gc.disable()
    try:
        act()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return sorted({what for value in gc.garbage if (what := name_of_ours(value))})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def name_of_ours(value: object) -> str:
    if isinstance(value, BaseException):
        return f"exception {type(value).__name__}"
    owner = getattr(value, "__self__", value)  # of a method
    module = str(getattr(type(owner), "__module__", ""))
    return f"{type(owner).__qualname__}" if module.split(".")[0] in OURS else ""
