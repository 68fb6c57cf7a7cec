"""A connection that breaks at any frame of an operation, encrypted: one effect all the same."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import pytest

import transferqueue as tq
from tests.recovery import test_idempotence as operations
from tests.recovery.tcp_cutter import TcpCutter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Steps = tuple[Callable[[], object], Callable[[object], None]]

pytestmark = pytest.mark.slow

SCENARIOS = [
    operations.put_small,
    operations.put_in_chunks,
    operations.get_in_chunks,
    operations.clear,
    operations.create_partition,
    operations.claim,
    operations.ack,
    operations.give_back,
    operations.update_tags,
]


class Stage(operations.Stage):
    """Whose client reaches coordinator and shard through cutters alone."""

    def __init__(self, service: tq.Service) -> None:
        keys = service.client_keys
        self.beside = tq.connect(service.address, keys=keys, timeout_s=10)
        self.cutters = [TcpCutter(service.address), TcpCutter(_shard_endpoint(service))]
        address = self.cutters[0].endpoint
        self.client = tq.connect(address, keys=keys, transport="tcp", timeout_s=20)
        self.streaming = self.client
        session = self.client._ops._session
        session._shards = {
            slot: dataclasses.replace(shard, endpoint=self.cutters[1].endpoint)
            for slot, shard in session._shards.items()
        }

    def close(self) -> None:
        self.client.close()
        self.beside.close()
        for cutter in self.cutters:
            cutter.close()


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(budget_bytes=64 << 20, host="127.0.0.1") as service:
        yield service


@pytest.fixture
def stage(service: tq.Service) -> Iterator[Stage]:
    stage = Stage(service)
    yield stage
    stage.close()


def _shard_endpoint(service: tq.Service) -> str:
    with tq.connect(service.address, keys=service.client_keys, transport="tcp") as client:
        return client._ops._session._shards[0].endpoint


@pytest.mark.parametrize("how", ["between", "within"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_an_operation_has_one_effect_wherever_its_connection_breaks(
    stage: Stage, scenario: Callable[[Stage], Steps], how: str
) -> None:
    act, check = scenario(stage)
    check(act())  # over connections that are made now
    num_cuts = sum(_cut_at_each(stage, cutter, scenario, how) for cutter in stage.cutters)
    assert num_cuts >= 2, "at least a request and its answer"


def _cut_at_each(
    stage: Stage, cutter: TcpCutter, scenario: Callable[[Stage], Steps], how: str
) -> int:
    """The operation again and again, broken a frame later each time, until it has no more."""
    for frame in itertools.count(1):
        act, check = scenario(stage)
        cutter.arm(frame, in_the_middle=how == "within")
        outcome = act()
        num_cuts = cutter.num_cuts
        cutter.arm(None)
        check(outcome)
        if not num_cuts:
            return frame - 1
    raise AssertionError


@pytest.mark.parametrize("how", ["between", "within"])
def test_a_handshake_that_breaks_is_made_again(service: tq.Service, how: str) -> None:
    cutter = TcpCutter(service.address)
    keys = service.client_keys
    for frame in range(1, 7):  # hello, welcome, initiate, ready, the request, its answer
        cutter.arm(frame, in_the_middle=how == "within")
        with tq.connect(cutter.endpoint, keys=keys, transport="tcp", timeout_s=20) as client:
            assert len(client.put({"x": [1, 2]})) == 2
        assert cutter.num_cuts == 1
    cutter.close()
