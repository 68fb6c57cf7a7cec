"""How the end of a lease gets to its shard: with the next request, or by a thread."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from tests.waiting import wait_until
from transferqueue.client import lease_returns
from transferqueue.client.caller import Caller
from transferqueue.client.late_calls import LateCalls
from transferqueue.client.part_puts import PlacedPut
from transferqueue.client.postponed import Postponed
from transferqueue.errors import Malformed, ServiceUnreachable
from transferqueue.net.calls import Call, raise_first
from transferqueue.net.sync_channel import SyncChannelPool, run_blocking
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.net.calls import Outcome

MIB = 1 << 20
ROWS = torch.ones(4, 64 << 10)  # a MiB: mapped
LATE_S = 60.0


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=64 * MIB) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        yield client
        client.clear(partition="p")


@pytest.fixture
def slow_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread leaves what is noted quietly to requests, for as long as the test takes."""
    monkeypatch.setattr(lease_returns, "TELL_AFTER_S", LATE_S)
    monkeypatch.setattr(lease_returns, "LOOK_AGAIN_S", LATE_S)


def shard(client: tq.Client) -> dict[str, Any]:
    status: dict[str, Any] = client.status()["shards"][0]
    return status


def num_releases(client: tq.Client) -> int:
    return int(shard(client)["requests"].get(ops.RELEASE, 0))


def get_until_the_thread_watches(client: tq.Client, handle: tq.BatchHandle) -> None:
    """The first lease that ends wakes the thread, which then leaves the next ones to requests."""
    client.get(handle)
    returns = client._ops._memory.returns
    wait_until(lambda: returns._ended.is_watched)
    client.get(handle)


@pytest.mark.usefixtures("slow_thread")
def test_a_lease_ends_with_the_next_request_to_its_shard(client: tq.Client) -> None:
    handle = client.put({"x": ROWS}, partition="p")
    get_until_the_thread_watches(client, handle)
    before = num_releases(client)
    for _ in range(3):
        held = client.get(handle)
        assert shard(client)["leases"] == 1, "that of the get before went along"
        del held
    client.put({"y": torch.ones(4)}, handle=handle)
    assert shard(client)["leases"] == 0
    assert num_releases(client) == before


def test_a_put_that_waits_has_what_a_cycle_keeps_collected(client: tq.Client) -> None:
    gc.collect()
    handle = client.put({"x": torch.ones(40, 256 << 10)}, partition="p")
    cycle: list[Any] = [client.get(handle)]
    cycle.append(cycle)
    client.clear(handle)
    gc.disable()
    try:
        del cycle
        client.put({"x": torch.ones(40, 256 << 10)}, partition="p", timeout_s=LATE_S)
    finally:
        gc.enable()


@pytest.mark.usefixtures("slow_thread")
def test_a_put_brings_the_space_along_that_it_waits_for(client: tq.Client) -> None:
    handle = client.put({"x": ROWS}, partition="p")
    get_until_the_thread_watches(client, handle)
    most = client.put({"x": torch.ones(4, 3 * MIB)}, partition="p")  # 48 of 64 MiB
    few = client.put({"x": torch.ones(4, 3 * MIB // 4)}, partition="p")  # 12
    held = client.get(few)
    client.clear(few)
    del held
    # 15 MiB are free with the 12 whose lease has ended.
    client.put({"x": torch.ones(4, 3 * MIB // 4)}, partition="p", timeout_s=10)
    assert len(most) == 4


@pytest.mark.usefixtures("slow_thread")
def test_what_went_along_with_a_request_that_failed_is_told_again(client: tq.Client) -> None:
    handle = client.put({"x": ROWS}, partition="p")
    get_until_the_thread_watches(client, handle)
    held = client.get(handle)
    del held
    returns = client._ops._memory.returns
    with pytest.raises(tq.errors.FieldsMissing):
        client.get_columns(handle, fields=["nothing"])
    assert [len(ids) for ids in returns._untold.values()] == [1], "an error does not count as heard"
    client.put({"z": torch.ones(4)}, handle=handle)
    assert not returns._untold
    assert shard(client)["leases"] == 0


def test_without_a_request_the_thread_tells(client: tq.Client) -> None:
    handle = client.put({"x": ROWS}, partition="p")
    for _ in range(3):
        held = client.get(handle)
        del held
        wait_until(lambda: shard(client)["leases"] == 0, 1.0)


def test_a_client_that_is_closed_tells_before_it_is_gone(service: tq.Service) -> None:
    with tq.connect(service.address) as beside, tq.connect(service.address) as client:
        handle = client.put({"x": ROWS}, partition="p")
        for _ in range(2):
            held = client.get(handle)
            del held
        client.close()
        wait_until(lambda: shard(beside)["leases"] == 0, 1.0)
        beside.clear(handle)


@pytest.mark.parametrize("lease_ids", [[1], b"1234567", "12345678", None])
def test_ends_that_are_none_are_refused(
    service: tq.Service, client: tq.Client, lease_ids: Any
) -> None:
    handle = client.put({"x": torch.ones(1)}, partition="p")
    with pytest.raises(Malformed, match="8 bytes"):
        ask_with(client, handle, {"reader": lease_returns.this_process(), "lease_ids": lease_ids})
    assert client.get(handle)["x"].tolist() == [1]


def ask_with(client: tq.Client, handle: tq.BatchHandle, ended: dict[str, Any]) -> None:
    arrays = ArrayWriter()
    body = {
        "partition": "p",
        "uids": arrays.add(handle.uids),
        "fields": ["x"],
        "optional": [],
        "reader": None,
        "timeout_s": 1.0,
        ops.ENDED: ended,
    }
    endpoint = client._ops.session.shard(0).endpoint
    channels = SyncChannelPool()
    try:
        call = Call(endpoint=endpoint, op=ops.GET, body=body, frames=arrays.frames)
        raise_first(run_blocking(channels.exchange([call], timeout_s=5.0)))
    finally:
        channels.close()


# -- what else gives space back -------------------------------------------------------------------


class Device:
    """Has calls that may be sent when ``is_over``."""

    def __init__(self, *calls: Call) -> None:
        self.is_over = False
        self._postponed = Postponed()
        for call in calls:
            self._postponed.add(call, lambda: self.is_over)

    def has_postponed(self) -> bool:
        return bool(len(self._postponed))

    def due(self) -> list[Call]:
        return self._postponed.take_due()


def test_what_was_postponed_or_not_answered_is_told_when_it_may_be_and_once() -> None:
    one, other = Call(endpoint="ipc://a", op=ops.ABORT), Call(endpoint="ipc://b", op=ops.ABORT)
    device, late = Device(one), LateCalls()
    assert not late
    late.look_at(device)
    late.look_at(device)
    late.add([other])
    assert late
    assert late.take() == [other]
    late.add([other])  # no answer
    device.is_over = True
    assert late.take() == [other, one]
    assert not late
    late.look_at(Device(one))
    late.stop_looking()
    assert not late


def test_a_put_whose_abort_was_lost_gives_its_space_back_without_another_call(
    client: tq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, lost = Caller.outcomes, []

    async def outcomes(self: Caller, calls: Sequence[Call], **settings: Any) -> list[Outcome]:
        if not calls or calls[0].op != ops.ABORT:
            return await exchange(self, calls, **settings)
        lost.extend(calls)
        return [ServiceUnreachable(call.endpoint, call.op, 0.1) for call in calls]

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Caller, "outcomes", outcomes)
    monkeypatch.setattr(PlacedPut, "_copy", fail)
    before = shard(client)["used_bytes"]
    with pytest.raises(MemoryError):
        client.put({"x": ROWS}, partition="p")
    assert len(lost) == 1
    wait_until(lambda: shard(client)["used_bytes"] == before)
    assert not client._ops._memory.returns._late_calls
