"""What a call of a group fetched is given back when the call ends, on ranks that live on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDict

import transferqueue as tq
from tests.cycles import expect_nothing_kept
from tests.waiting import wait_until
from workers import Dispatch, LocalWorkerGroup, Worker, register
from workers.batches import payload_bytes
from workers.errors import WorkerFailed
from workers.futures import CallFuture
from workers.role_groups import RoleGroups
from workers.roles.fields import stage
from workers.stage_runner import StageLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transferqueue.service.embedded import Service


class Critic(Worker):
    @register(Dispatch.HANDLE, reads=["x"], writes=["y"])
    def double(self, data: Any) -> dict[str, Any]:
        return {"y": data.batch["x"] * 2}

    @register(Dispatch.HANDLE, reads=["x"], writes=["z"])
    async def triple(self, data: Any) -> dict[str, Any]:
        return {"z": data.batch["x"] * 3}

    @register(Dispatch.HANDLE, reads=["x"])
    def mean(self, data: Any) -> dict[str, float]:
        return {"mean": float(data.batch["x"].mean())}

    @register(Dispatch.HANDLE, reads=["x"])
    def fail(self, data: Any) -> None:
        raise ValueError(f"of {len(data.batch['x'])} rows")

    @register(Dispatch.HANDLE, reads=["x"], blocking=False)
    def fail_later(self, data: Any) -> None:
        raise ValueError(f"of {len(data.batch['x'])} rows")


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with tq.serve(budget_bytes=64 << 20) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[tq.Client]:
    with tq.connect(service.address, timeout_s=20) as connected:
        connected.get(connected.put({"x": torch.rand(8, 1 << 16)}))
        yield connected


@pytest.fixture(params=[False, True], ids=["handles", "fat"])
def group(service: Service, request: pytest.FixtureRequest) -> Iterator[LocalWorkerGroup]:
    with LocalWorkerGroup(Critic, 2, service=service, fat=request.param) as started:
        yield started


@pytest.mark.parametrize("method", ["double", "triple", "mean", "fail", "fail_later"])
def test_a_call_keeps_nothing_that_it_fetched(
    client: tq.Client, group: LocalWorkerGroup, method: str
) -> None:
    def scene() -> None:
        handle = client.put({"x": torch.rand(8, 1 << 16)})
        assert has_failed(lambda: getattr(group, method)(client.view(handle))) == ("fail" in method)
        client.clear(handle)

    scene()
    expect_nothing_kept(client, scene)


def has_failed(call: Callable[[], Any]) -> bool:
    """Not by `pytest.raises`, which is in a cycle with what it has caught."""
    try:
        answer = call()
        if isinstance(answer, CallFuture):
            answer.get()
    except WorkerFailed:
        return True
    return False


def test_bytes_are_counted_as_tensordict_counts_them() -> None:
    ragged = torch.nested.nested_tensor([torch.rand(2), torch.rand(5)], layout=torch.jagged)
    batch = TensorDict({"x": torch.rand(2, 3), "ragged": ragged}, [2])
    batch["inner"] = TensorDict({"mask": torch.ones(2, 7, dtype=torch.bool)}, [2])
    assert payload_bytes(batch) == batch.bytes() == 24 + 28 + 24 + 14


class Broken:
    @stage(reads=("x",), writes=("y",))
    def double(self, data: Mapping[str, Any]) -> dict[str, Any]:
        raise ValueError(f"of {len(data['x'])} rows")


def test_a_stage_that_failed_keeps_nothing_while_nobody_asks_why(
    service: Service, client: tq.Client
) -> None:
    loop = StageLoop(task="broken", partition="stages", batch_rows=8, poll_s=0.05)
    client.create_partition("stages", tasks=["broken"])
    with RoleGroups(
        {"one": lambda: {"broken": Broken()}},
        lambda _, worker: LocalWorkerGroup(worker, 1, service=service),
    ) as roles:

        def scene() -> None:
            client.put({"x": torch.rand(8, 1 << 16)}, partition="stages")
            roles.serve("broken", "double", loop)
            wait_until(has_ended)
            client.clear(partition="stages")

        scene()
        expect_nothing_kept(client, scene)
        with pytest.raises(WorkerFailed, match="of 8 rows") as caught:
            roles.check()
        assert "in double" in str(caught.value)  # the frames of the method


def has_ended() -> bool:
    return not any(thread.name == "broken.double" for thread in threading.enumerate())
