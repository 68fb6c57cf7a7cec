"""Requests wait in order, and each is served once, when it may be."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transferqueue.coordinator.gate import Gate
from transferqueue.net.server import Reply, Request
from transferqueue.net.turnstile import Turnstile
from transferqueue.shard.hold import LIMIT_S, Hold

if TYPE_CHECKING:
    from collections.abc import Iterator


class Answers:
    """Takes down what was answered, as a server would send it."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.failed: list[int] = []

    @contextmanager
    def answering(self, request: Request) -> Iterator[None]:
        try:
            yield
        except ValueError:
            self.failed.append(request.request_id)

    def reply(self, request: Request, reply: Reply) -> None:
        assert reply.body == {"id": request.request_id}
        self.given.append(request.request_id)


def request(number: int) -> Request:
    return Request(peer=b"peer", request_id=number, op="op", body={}, frames=(), received_s=0.0)


def answer(asked: Request) -> Reply:
    if asked.request_id == 13:
        raise ValueError
    return Reply(body={"id": asked.request_id})


def test_those_that_wait_are_served_in_order_when_they_may_pass() -> None:
    let: set[int] = set()
    turnstile = Turnstile(lambda asked: asked.request_id in let)
    handle = turnstile.guard({"op": answer})["op"]
    assert [handle(request(number)) for number in (1, 2, 3)] == [None] * 3
    let |= {3, 1}
    answers: Any = Answers()
    turnstile.let_pass(answers)
    assert answers.given == [1, 3]
    assert len(turnstile) == 1
    passed = handle(request(3))
    assert passed is not None
    turnstile.cancel(request(2).key)
    let.add(2)
    turnstile.let_pass(answers)
    assert answers.given == [1, 3]


def test_one_that_fails_is_answered_by_itself_alone() -> None:
    gate = Gate(is_open=False, limit_s=1.0)
    handle = gate.guard({"op": answer})["op"]
    for number in (12, 13, 14):
        handle(request(number))
    answers: Any = Answers()
    gate.open(answers)
    assert (answers.given, answers.failed, len(gate)) == ([12, 14], [13], 0)
    assert handle(request(15)) is not None


def test_serving_one_may_shut_the_way_for_the_next() -> None:
    hold = Hold(lambda _: False)
    hold.begin(now_s=0.0)

    def once(asked: Request) -> Reply:
        hold.begin(now_s=5.0)
        return answer(asked)

    handle = hold.guard({"op": once})["op"]
    handle(request(1))
    handle(request(2))
    answers: Any = Answers()
    hold.end(answers)
    assert (answers.given, len(hold)) == ([1], 1)
    assert hold.until_s == 5.0 + LIMIT_S


def test_a_hold_lets_those_through_that_are_exempt() -> None:
    hold = Hold(lambda asked: asked.request_id == 7)
    handle = hold.guard({"op": answer})["op"]
    assert handle(request(1)) is not None
    hold.begin(now_s=0.0)
    assert handle(request(7)) is not None
    assert handle(request(8)) is None
