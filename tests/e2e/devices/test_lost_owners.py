"""Memory of a shard that has ended, or of its successor, while something here still uses it: on a
driver a copy from memory that is unmapped or unlocked is an error that ends the use of the device.
Real processes, fake GPUs."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.e2e.fake_gpus import BUDGET_BYTES, gpu_of, serve
from tests.stepping import Work
from tests.waiting import wait_until
from transferqueue.client.device_side import DeviceSide
from transferqueue.errors import Closed, OwnerLost, RowsLost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.client.device_access import DeviceAccess
    from transferqueue.client.sync_client import Client
    from transferqueue.devices.base import DeviceBlock
    from transferqueue.devices.fake_machine import FakeMachine
    from transferqueue.service.embedded import Service


@pytest.fixture
def service(machine: FakeMachine) -> Iterator[Service]:
    """One a test: its shards are killed."""
    with serve(machine) as service:
        yield service


@pytest.fixture
def client(service: Service, machine: FakeMachine) -> Iterator[Client]:
    with tq.connect(service.address, device=machine.name_of(machine.uuids[0])) as client:
        yield client


def side_of(client: Client) -> DeviceSide:
    side = client._ops.data.devices.side()
    assert side is not None
    return side


def open_blocks(client: Client) -> list[tuple[DeviceAccess, DeviceBlock]]:
    """What it has open of the shards, once something was got from them."""
    side = side_of(client)
    session = client._ops.data._session
    accesses = [access for slot in session.slots for access in session.shard(slot).devices.values()]
    return [(a, side._blocks[a.token]) for a in accesses if a.token in side._blocks]


def is_open(block: DeviceBlock) -> bool:
    try:
        return block.address > 0
    except Closed:
        return False


def kill(client: Client) -> None:
    for shard in client.status()["shards"]:
        os.kill(shard["pid"], signal.SIGKILL)


def test_memory_of_an_owner_that_ended_stays_open_while_somebody_copies_from_it(
    client: Client,
) -> None:
    handle = client.put({"x": torch.ones(64, 4000)})
    client.get(handle)
    ((access, block),) = open_blocks(client)
    gpu, copying = gpu_of(client), threading.Event()
    copy_all = DeviceSide.copy_all

    def noted(*arguments: Any) -> None:
        copy_all(*arguments)
        copying.set()

    with pytest.MonkeyPatch.context() as patch, gpu.held():
        patch.setattr(DeviceSide, "copy_all", noted)
        work = Work(lambda: client.get(handle, timeout_s=20.0))
        assert copying.wait(10.0)
        kill(client)
        assert access.handle is not None
        wait_until(lambda: not access.handle.owner.is_alive())  # type: ignore[union-attr]
        with pytest.raises(OwnerLost):  # as another thread finds when it has copied
            side_of(client).check(access)
        assert is_open(block)
    with pytest.raises((OwnerLost, RowsLost)):  # and no error of the device
        work.result()
    side_of(client).due()
    assert not is_open(block)
    put = {"x": torch.zeros(64, 4000)}
    assert torch.equal(client.get(client.put(put))["x"], put["x"])


def test_memory_that_is_looked_at_stays_open_when_its_owner_has_ended(client: Client) -> None:
    handle = client.put({"x": torch.ones(64, 4000)})
    with pytest.raises(OwnerLost), client.borrow(handle) as td:
        ((access, block),) = open_blocks(client)
        kill(client)
        assert access.handle is not None
        wait_until(lambda: not access.handle.owner.is_alive())  # type: ignore[union-attr]
        with pytest.raises(OwnerLost):
            side_of(client).check(access)
        side_of(client).due()
        assert is_open(block)
        assert td["x"].shape == (64, 4000)
        del td
    client.close()
    assert not is_open(block), "nothing looks at it any more"


def test_memory_of_an_owner_that_ended_is_let_go_of_by_the_next_that_is_asked_for(
    client: Client,
) -> None:
    """A driver may keep it while somebody has it open, and its successor needs the room."""
    put = {"x": torch.zeros(64, 4000)}
    client.get(client.put(put))
    ((_, block),) = open_blocks(client)
    kill(client)
    client.put({"small": torch.ones(3)})
    client.get(client.put(put), device=gpu_of(client).name)
    assert not is_open(block)


def test_two_clients_of_one_process_read_the_same_shards(
    service: Service, client: Client, machine: FakeMachine
) -> None:
    put = {"x": torch.randn(64, 4000)}
    handle = client.put(put)
    with tq.connect(service.address, device=machine.name_of(machine.uuids[1])) as other:
        assert torch.equal(other.get(handle)["x"], put["x"])
        assert torch.equal(client.get(handle)["x"], put["x"])
        assert {link["rung"] for link in other.links()} == {"peer"}
        assert gpu_of(client).counters.bytes_across > 0
        client.close()
        before = gpu_of(other).counters.bytes_across
        assert torch.equal(other.get(handle)["x"], put["x"])
        assert gpu_of(other).counters.bytes_across == before + put["x"].nbytes


def test_shared_memory_stays_locked_for_who_copies_there_when_the_shard_has_another(
    machine: FakeMachine,
) -> None:
    name = machine.name_of(machine.uuids[0])
    with (
        tq.serve(budget_bytes=BUDGET_BYTES) as service,
        tq.serve(budget_bytes=BUDGET_BYTES) as later,
        tq.connect(service.address, device=name) as client,
        tq.connect(later.address) as other,
    ):
        put = torch.randn(64, 4000)
        handle = client.put({"x": put})
        gpu, side = gpu_of(client), side_of(client)
        ring = len(gpu.counters.registered)
        assert torch.equal(client.get(handle)["x"], put)
        arena = side._arenas[0]
        locked = len(gpu.counters.registered)
        assert locked > ring
        other.put({"x": put})
        side.locked(other._ops.data._session.shard(0), [(0, 4096)])  # of the same slot
        assert side._arenas[0] is not arena
        assert len(gpu.counters.registered) == 2 * locked - ring
        (piece, *_) = arena.pieces(0, 4096)
        assert piece.nbytes == 4096
        del arena
        assert len(gpu.counters.registered) == locked
