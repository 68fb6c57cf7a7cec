"""Each operation that changes something has one effect, whatever happens to its messages."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import pytest
import torch
import zmq

import transferqueue as tq
from tests.recovery.proxy import Fault, Proxy
from tests.waiting import wait_until
from transferqueue.errors import AlreadyAcked, NotReady, RowsGone
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

MIB = 1 << 20

_numbers = itertools.count()


class Stage:
    """A client whose every message goes through proxies, and one that looks from beside."""

    def __init__(self, service: tq.Service, folder: Path) -> None:
        self._context = zmq.Context()
        names = ["coordinator", "shard-0"]
        self.proxies = {
            name: Proxy(
                self._context,
                f"ipc://{folder}/{name}.sock",
                f"ipc://{service.key_file.with_name(f'{name}.sock')}",
            )
            for name in names
        }
        self.client = tq.connect(self.proxies["coordinator"].endpoint, timeout_s=10)
        self.streaming = tq.connect(
            self.proxies["coordinator"].endpoint, timeout_s=10, transport="ipc"
        )
        self.beside = tq.connect(service.address, timeout_s=10)
        for client in (self.client, self.streaming):
            session = client._ops._session
            session._shards = {
                slot: dataclasses.replace(shard, endpoint=self.proxies[f"shard-{slot}"].endpoint)
                for slot, shard in session._shards.items()
            }

    def partition(self) -> str:
        """One that nobody has used."""
        return f"p{next(_numbers)}"

    def rows(self, partition: str) -> int:
        return len(self.beside.select(partition))

    def shard(self) -> dict[str, int]:
        status: dict[str, int] = self.beside.status()["shards"][0]
        return status

    def close(self) -> None:
        for client in (self.client, self.streaming, self.beside):
            client.close()
        for proxy in self.proxies.values():
            proxy.close()
        self._context.destroy(linger=0)


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=64 * MIB) as service:
        yield service


@pytest.fixture
def stage(service: tq.Service, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(service, tmp_path)
    yield stage
    stage.close()


def put_small(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name = stage.partition()

    def check(handle: object) -> None:
        assert isinstance(handle, tq.BatchHandle)
        stage.beside.wait(handle, fields=["x"])
        assert stage.beside.get(handle)["x"].tolist() == [0, 1, 2]
        assert stage.rows(name) == 3

    return lambda: stage.client.put({"x": torch.arange(3)}, partition=name), check


def put_large(
    stage: Stage, client: tq.Client
) -> tuple[Callable[[], object], Callable[[object], None]]:
    name, numbers = stage.partition(), torch.arange(700_000).reshape(7, -1)
    before = stage.shard()["used_bytes"]

    def check(handle: object) -> None:
        assert isinstance(handle, tq.BatchHandle)
        stage.beside.wait(handle, fields=["x"])
        assert torch.equal(stage.beside.get(handle)["x"], numbers)
        assert stage.rows(name) == 7
        stage.beside.clear(handle)
        wait_until(lambda: stage.shard()["used_bytes"] == before)
        assert stage.shard()["puts_under_way"] == 0

    return lambda: client.put({"x": numbers}, partition=name), check


def put_mapped(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    return put_large(stage, stage.client)


def put_in_chunks(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    return put_large(stage, stage.streaming)


def get_in_chunks(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    numbers = torch.arange(700_000).reshape(7, -1)
    handle = stage.beside.put({"x": numbers}, partition=stage.partition())

    def check(got: object) -> None:
        assert torch.equal(got, numbers)  # type: ignore[arg-type]
        stage.beside.clear(handle)
        wait_until(lambda: stage.shard()["held_bytes"] == 0)
        wait_until(lambda: stage.shard()["leases"] == 0)

    return lambda: stage.streaming.get(handle)["x"], check


def give_a_lease_back(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    handle = stage.beside.put({"x": torch.ones(7, 100_000)}, partition=stage.partition())
    held = [stage.client.get(handle)["x"]]

    def check(_: object) -> None:
        stage.beside.clear(handle)
        wait_until(lambda: stage.shard()["leases"] == 0)
        wait_until(lambda: stage.shard()["held_bytes"] == 0)

    return held.clear, check


def clear(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name = stage.partition()
    handle = stage.beside.put({"x": torch.arange(5)}, partition=name)
    stage.beside.wait(handle, fields=["x"])

    def check(num_rows: object) -> None:
        assert num_rows == 2
        with pytest.raises(RowsGone):
            stage.beside.get(handle[:2])
        assert stage.beside.get(handle[2:])["x"].tolist() == [2, 3, 4]

    return lambda: stage.client.clear(handle[:2]), check


def create_partition(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name = stage.partition()

    def check(_: object) -> None:
        assert stage.beside.status()["partitions"][name]["policy"]["tasks"] == ["t"]

    return lambda: stage.client.create_partition(name, tasks=["t"]), check


def _counts(stage: Stage, name: str) -> dict[str, int]:
    counts: dict[str, int] = stage.beside.status()["partitions"][name]["tasks"]["t"]
    return counts


def claim(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name = stage.partition()
    stage.beside.put({"x": torch.arange(6)}, partition=name)
    stage.beside.select(name, min_rows=6)

    def check(claimed: object) -> None:
        assert isinstance(claimed, tq.Claim)
        assert len(claimed) == 4
        assert _counts(stage, name)["claimed"] == 4, "what another answer lent is out too"
        assert claimed.deliveries.tolist() == [1] * 4
        claimed.ack()

    return lambda: stage.client.claim(task="t", partition=name, fields=["x"], n=4), check


def _claimed(stage: Stage) -> tuple[str, tq.Claim]:
    name = stage.partition()
    stage.beside.put({"x": torch.arange(6)}, partition=name)
    return name, stage.client.claim(task="t", partition=name, fields=["x"], n=4)


def ack(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name, claimed = _claimed(stage)

    def check(_: object) -> None:
        counts = _counts(stage, name)
        assert (counts["acked"], counts["claimed"], counts["free"]) == (4, 0, 2)
        with pytest.raises(AlreadyAcked):
            claimed.ack()

    return claimed.ack, check


def give_back(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name, claimed = _claimed(stage)

    def check(_: object) -> None:
        counts = _counts(stage, name)
        assert (counts["acked"], counts["claimed"], counts["free"]) == (0, 0, 6)
        again = stage.beside.claim(task="t", partition=name, fields=["x"], n=6)
        assert sorted(again.deliveries.tolist()) == [1, 1, 2, 2, 2, 2]

    return claimed.give_back, check


def extend(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name, claimed = _claimed(stage)

    def check(lease_s: object) -> None:
        assert isinstance(lease_s, float)
        assert 90 < lease_s <= 100 + 1e-6  # a difference of two clock readings
        with pytest.raises(NotReady):
            stage.beside.claim(task="t", partition=name, fields=["x"], n=6, timeout_s=0)

    return lambda: claimed.extend(100.0), check


def update_tags(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name = stage.partition()
    handle = stage.beside.put({"x": torch.arange(3)}, partition=name)
    stage.beside.wait(handle, fields=["x"])

    def check(_: object) -> None:
        assert len(stage.beside.select(name, where=tq.tag("v") == 5)) == 3

    return lambda: stage.client.update_tags(handle, {"v": 5}), check


def advance_policy(stage: Stage) -> tuple[Callable[[], object], Callable[[object], None]]:
    name = stage.partition()
    stage.beside.create_partition(name, max_staleness=1)

    def check(_: object) -> None:
        assert stage.beside.status()["partitions"][name]["newest_policy_version"] == 7

    return lambda: stage.client.advance_policy(7, partition=name), check


SCENARIOS = [
    ("shard-0", ops.PUT, put_small),
    ("shard-0", ops.PUT, put_mapped),
    ("shard-0", ops.COMMIT, put_mapped),
    ("shard-0", ops.PUT, put_in_chunks),
    ("shard-0", ops.WRITE, put_in_chunks),
    ("shard-0", ops.COMMIT, put_in_chunks),
    ("shard-0", ops.GET, get_in_chunks),
    ("shard-0", ops.READ, get_in_chunks),
    ("shard-0", ops.READ_DONE, get_in_chunks),
    ("shard-0", ops.RELEASE, give_a_lease_back),
    ("shard-0", ops.CLEAR, clear),
    ("coordinator", ops.CREATE_PARTITION, create_partition),
    ("coordinator", ops.CLAIM, claim),
    ("coordinator", ops.ACK, ack),
    ("coordinator", ops.GIVE_BACK, give_back),
    ("coordinator", ops.EXTEND, extend),
    ("coordinator", ops.UPDATE_TAGS, update_tags),
    ("coordinator", ops.ADVANCE_POLICY, advance_policy),
]


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize(
    ("server", "op", "scenario"),
    SCENARIOS,
    ids=[f"{op}-{scenario.__name__}" for _, op, scenario in SCENARIOS],
)
def test_an_operation_has_one_effect_whatever_happens_to_its_messages(
    stage: Stage, server: str, op: str, scenario: Callable[[Stage], object], fault: Fault
) -> None:
    act, check = scenario(stage)  # type: ignore[misc]
    proxy = stage.proxies[server]
    proxy.set(op, fault)
    outcome = act()
    wait_until(lambda: proxy.num_faults > 0, timeout_s=8)
    check(outcome)
    assert proxy.num_faults == 1
