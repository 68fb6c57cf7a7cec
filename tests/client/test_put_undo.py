"""A put to two shards of which one commit fails: the other is taken back, or said to be in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import transferqueue as tq
from transferqueue.client.caller import Caller
from transferqueue.errors import PutCut, ServiceUnreachable
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.net.calls import Call, Outcome

MIB = 1 << 20
COLUMNS = {"x": torch.ones(64, MIB // 64)}


def unreachable(monkeypatch: pytest.MonkeyPatch, op: str, nth: int) -> None:
    """The nth call of each exchange of this kind is lost on the way."""
    exchange = Caller.outcomes

    async def outcomes(self: Caller, calls: Sequence[Call], **settings: Any) -> list[Outcome]:
        if not calls or calls[0].op != op:
            return await exchange(self, calls, **settings)
        lost = calls[nth]
        others = [call for call in calls if call is not lost]
        answers = iter(await exchange(self, others, **settings))
        error = ServiceUnreachable(lost.endpoint, op, 0.1)
        return [error if call is lost else next(answers) for call in calls]

    monkeypatch.setattr(Caller, "outcomes", outcomes)


@pytest.fixture(scope="module")
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=8 * MIB, in_process=True) as service:
        yield service


def rows(client: tq.Client) -> list[int]:
    return [shard["rows"] for shard in client.status()["shards"]]


def test_what_was_committed_before_the_other_failed_is_taken_back(
    service: tq.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tq.connect(service.address) as client:
        unreachable(monkeypatch, ops.COMMIT, 1)
        with pytest.raises(ServiceUnreachable):
            client.put(COLUMNS, partition="p")
        assert rows(client) == [0, 0]


def test_when_it_cannot_be_taken_back_the_error_says_how_much_is_still_there(
    service: tq.Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tq.connect(service.address, timeout_s=5) as client:
        unreachable(monkeypatch, ops.COMMIT, 1)
        unreachable(monkeypatch, ops.CLEAR, 0)
        with pytest.raises(PutCut, match="32 of 64 new samples may still be in partition 'p'"):
            client.put(COLUMNS, partition="p")
        assert sorted(rows(client)) == [0, 32]
        assert len(client.select("p", min_rows=32)) == 32, "where it says to look"
        monkeypatch.undo()
        client.clear(partition="p")
