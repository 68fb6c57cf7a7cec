"""Every call ends in one outcome; flows keep to their window, whatever is lost on the way."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cycles import left_to_the_collector
from transferqueue.errors import (
    DeviceStuck,
    Malformed,
    RowsGone,
    RowsLost,
    ServiceUnreachable,
    TransferExpired,
    TransferQueueError,
    TransferUnfinished,
)
from transferqueue.net.calls import ASK_AGAIN_S, FIRST_ASK_S, RESUME, UNKNOWN, WORKING, Call, Flow
from transferqueue.net.pending import HELD_AGAIN_S, PendingCalls, PendingFlows
from transferqueue.wire.format import ERROR_OP, OK_OP, Message, encode_error

if TYPE_CHECKING:
    from collections.abc import Iterator


def answer(call: Call, **body: object) -> Message:
    return Message(op=OK_OP, request_id=call.request_id, body=dict(body))


def state(call: Call, what: str) -> Message:
    return Message(op=RESUME, request_id=call.request_id, body={"state": what})


def refusal(call: Call, error: TransferQueueError) -> Message:
    return Message(op=ERROR_OP, request_id=call.request_id, body=encode_error(error))


def calls(count: int, endpoint: str = "ipc://a") -> list[Call]:
    return [Call(endpoint=endpoint, op="op", body={"i": i}) for i in range(count)]


# -- calls made at once ---------------------------------------------------------------------------


def test_outcomes_come_in_the_order_of_the_calls_failures_among_them() -> None:
    one, two, three = calls(3)
    pending = PendingCalls([one, two, three])
    assert pending.first(0.0) == [one, two, three]
    pending.settle(refusal(two, RowsGone(1, 2, [3])), 0.1)
    pending.settle(answer(three, x=3), 0.2)
    assert pending
    pending.settle(answer(one, x=1), 0.3)
    assert not pending
    first, second, third = pending.outcomes()
    assert isinstance(second, RowsGone)
    assert isinstance(first, Message)
    assert isinstance(third, Message)
    assert (first.body["x"], third.body["x"]) == (1, 3)


def test_the_first_answer_counts_and_others_are_passed_over() -> None:
    (call,) = calls(1)
    pending = PendingCalls([call])
    pending.first(0.0)
    stranger = calls(1)[0]
    assert pending.settle(answer(stranger), 0.0) == []
    pending.settle(answer(call, x=1), 0.0)
    pending.settle(answer(call, x=2), 0.0)
    (outcome,) = pending.outcomes()
    assert isinstance(outcome, Message)
    assert outcome.body == {"x": 1}


def test_a_call_that_its_peer_has_lost_is_sent_again_and_one_at_work_is_not() -> None:
    (call,) = calls(1)
    pending = PendingCalls([call])
    pending.first(0.0)
    assert pending.settle(state(call, WORKING), 0.1) == []
    assert pending.settle(state(call, UNKNOWN), 0.2) == [call]
    assert pending


def test_only_peers_that_are_silent_are_asked_and_not_too_often() -> None:
    one, two = calls(1, "ipc://a")[0], calls(1, "ipc://b")[0]
    pending = PendingCalls([one, two])
    pending.first(0.0)
    assert pending.next_ask_s() == FIRST_ASK_S
    pending.settle(state(two, WORKING), 0.1)
    assert pending.quiet(FIRST_ASK_S) == [one]
    assert pending.quiet(FIRST_ASK_S) == []
    assert pending.next_ask_s() == 0.1 + FIRST_ASK_S
    assert pending.quiet(4 * FIRST_ASK_S) == [one, two]
    now_s = 4 * FIRST_ASK_S
    for _ in range(9):
        now_s = pending.next_ask_s()
        pending.quiet(now_s)
    assert pending.next_ask_s() - now_s <= ASK_AGAIN_S
    assert pending.quiet(now_s + ASK_AGAIN_S) == [one, two]
    assert pending.next_ask_s() == now_s + 2 * ASK_AGAIN_S


def test_when_the_time_is_up_each_call_without_an_answer_is_unreachable() -> None:
    one, two = calls(2)
    pending = PendingCalls([one, two])
    pending.first(0.0)
    pending.settle(answer(one), 0.1)
    pending.give_up(3.0)
    first, second = pending.outcomes()
    assert isinstance(first, Message)
    assert isinstance(second, ServiceUnreachable)
    assert "3.0 s" in str(second)


def test_whoever_stops_waiting_cancels_even_what_was_answered() -> None:
    one, two = calls(2)
    pending = PendingCalls([one, two])
    pending.first(0.0)
    pending.settle(answer(one), 0.1)
    assert pending.under_way() == [two]
    assert pending.broken_off() == [one, two]


# -- flows ----------------------------------------------------------------------------------------


@dataclass
class Taken:
    """What a flow has got."""

    numbers: list[int] = field(default_factory=list)

    def take(self, call: Call, message: Message) -> None:
        assert message.body["i"] == call.body["i"]
        self.numbers.append(call.body["i"])


def flow(count: int, window: int, taken: Taken, endpoint: str = "ipc://a") -> Flow:
    return Flow(
        endpoint=endpoint,
        op="op",
        calls=iter(calls(count, endpoint)),
        num_calls=count,
        window=window,
        take=taken.take,
    )


def reply(call: Call) -> Message:
    return answer(call, i=call.body["i"])


class Peers:
    """Answers calls in any order, loses some, and says when asked which ones it has."""

    def __init__(self, pending: PendingFlows) -> None:
        self.pending = pending
        self._now_s = 0.0
        self._on_the_way = deque(pending.first(0.0))

    def deliver(self) -> None:
        if self._on_the_way:
            call = self._on_the_way.popleft()
            self._on_the_way.extend(self.pending.settle(reply(call), self._now_s))

    def swap(self) -> None:
        self._on_the_way.rotate(1)

    def lose(self) -> None:
        if self._on_the_way:
            self._on_the_way.popleft()

    def ask(self) -> None:
        self._now_s += ASK_AGAIN_S
        for call in self.pending.quiet(self._now_s):
            known = any(call.request_id == other.request_id for other in self._on_the_way)
            told = state(call, WORKING if known else UNKNOWN)
            self._on_the_way.extend(self.pending.settle(told, self._now_s))

    def under_way_with(self, endpoint: str) -> int:
        return sum(call.endpoint == endpoint for call in self.pending.under_way())


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=3),
    st.lists(st.sampled_from(["deliver", "swap", "lose", "ask"]), max_size=120),
)
def test_every_answer_is_taken_once_and_no_window_is_ever_exceeded(
    shapes: list[tuple[int, int]], steps: list[str]
) -> None:
    taken = [Taken() for _ in shapes]
    flows = [
        flow(*shape, got, f"ipc://{i}")
        for i, (shape, got) in enumerate(zip(shapes, taken, strict=True))
    ]
    peers = Peers(PendingFlows(flows))
    for step in steps:
        getattr(peers, step)()
        assert all(peers.under_way_with(f.endpoint) <= f.window for f in flows)
    while peers.pending:
        peers.ask()
        peers.deliver()
    peers.pending.raise_failure()
    assert [sorted(got.numbers) for got in taken] == [list(range(count)) for count, _ in shapes]


def test_a_flow_that_failed_is_gone_with_its_last_reference() -> None:
    """With the memory that it was to fill."""

    def refused() -> bool:
        pending = PendingFlows([flow(3, 2, Taken())])
        one, *_ = pending.first(0.0)
        pending.settle(refusal(one, RowsGone(1, 2, [3])), 0.1)
        return fails(pending)

    def not_understood() -> bool:
        pending = PendingFlows([dataclasses.replace(flow(3, 2, Taken()), take=not_to_be_taken)])
        one, *_ = pending.first(0.0)
        pending.settle(reply(one), 0.1)
        return fails(pending)

    for act in (refused, not_understood):
        with left_to_the_collector() as found:
            assert act()
        assert found == []


def fails(pending: PendingFlows) -> bool:
    """Not by `pytest.raises`, which is in a cycle with what it has caught."""
    try:
        pending.raise_failure()
    except TransferQueueError:
        return True
    return False


def not_to_be_taken(call: Call, message: Message) -> None:
    raise Malformed("not what was asked for")


def test_calls_are_made_only_when_the_window_has_room() -> None:
    made: list[int] = []

    def make() -> object:
        for call in calls(10):
            made.append(call.body["i"])
            yield call

    taken = Taken()
    pending = PendingFlows(
        [
            Flow(
                endpoint="ipc://a",
                op="op",
                calls=make(),  # type: ignore[arg-type]
                num_calls=10,
                window=3,
                take=taken.take,
            )
        ]
    )
    first = pending.first(0.0)
    assert made == [0, 1, 2]
    pending.settle(reply(first[1]), 0.0)
    assert made == [0, 1, 2, 3]


class Device:
    """Holds the calls of a flow back but for so many."""

    def __init__(self, count: int) -> None:
        self.may_make = 0
        self._calls = calls(count)

    def flow(self, window: int, taken: Taken) -> Flow:
        return Flow(
            endpoint="ipc://a",
            op="op",
            calls=self._make(),
            num_calls=len(self._calls),
            window=window,
            take=taken.take,
            device="gpu 0",
        )

    def _make(self) -> Iterator[Call | None]:
        for call in self._calls:
            while not self.may_make:
                yield None
            self.may_make -= 1
            yield call


def test_calls_that_cannot_be_made_yet_are_made_when_they_can_and_no_sooner_asked_for() -> None:
    device, taken = Device(3), Taken()
    pending = PendingFlows([device.flow(2, taken)])
    assert pending.first(0.0) == []
    assert pending, "it ended before its first call"
    device.may_make = 1
    assert pending.held_back(HELD_AGAIN_S / 2) == []
    assert pending.next_ask_s() == HELD_AGAIN_S
    (first,) = pending.held_back(HELD_AGAIN_S)
    assert pending.settle(reply(first), 0.1) == []
    device.may_make = 2
    rest = pending.held_back(0.2)
    assert [call.body["i"] for call in rest] == [1, 2]
    assert [pending.settle(reply(call), 0.3) for call in rest] == [[], []]
    assert not pending
    assert taken.numbers == [0, 1, 2]


def test_a_peer_that_was_asked_nothing_meanwhile_was_not_silent() -> None:
    device = Device(2)
    device._calls = [dataclasses.replace(call, silence_s=1.0) for call in device._calls]
    pending = PendingFlows([device.flow(2, Taken())])
    device.may_make = 1
    (first,) = pending.first(0.0)
    pending.settle(reply(first), 0.1)
    device.may_make = 1
    pending.held_back(9.0)
    assert pending.give_up_silent(9.9) == []
    assert len(pending.give_up_silent(10.1)) == 1


def test_time_that_is_up_while_a_device_holds_everything_back_is_the_devices() -> None:
    pending = PendingFlows([Device(2).flow(2, Taken())])
    pending.first(0.0)
    pending.give_up(5.0)
    with pytest.raises(DeviceStuck, match=r"gpu 0 did not finish its copies in 5\.0 s"):
        pending.raise_failure()


def test_the_first_failure_ends_every_flow_and_nothing_more_is_sent() -> None:
    taken = Taken()
    pending = PendingFlows([flow(9, 2, taken, "ipc://a"), flow(9, 2, taken, "ipc://b")])
    first = pending.first(0.0)
    assert pending.settle(refusal(first[0], RowsGone(1, 1, [1])), 0.0) == []
    assert not pending
    assert len(pending.under_way()) == 3
    with pytest.raises(RowsGone):
        pending.raise_failure()


def test_an_answer_that_is_not_what_was_asked_for_ends_the_flow() -> None:
    def refuse(call: Call, message: Message) -> None:
        raise Malformed("not the bytes")

    broken = Flow(
        endpoint="ipc://a", op="op", calls=iter(calls(3)), num_calls=3, window=2, take=refuse
    )
    pending = PendingFlows([broken])
    first = pending.first(0.0)
    pending.settle(answer(first[0]), 0.0)
    with pytest.raises(Malformed, match="not the bytes"):
        pending.raise_failure()


def test_when_the_time_is_up_the_error_says_how_far_it_was() -> None:
    taken = Taken()
    pending = PendingFlows([flow(3, 3, taken, "ipc://a"), flow(9, 2, taken, "ipc://b")])
    first = pending.first(0.0)
    for call in first[:4]:
        pending.settle(reply(call), 0.0)
    pending.give_up(30.0)
    with pytest.raises(TransferUnfinished, match=r"ipc://b: 1 of 9 chunks .* after 30\.0 s"):
        pending.raise_failure()


def test_a_peer_that_answers_nothing_at_all_is_unreachable() -> None:
    pending = PendingFlows([flow(9, 2, Taken())])
    pending.first(0.0)
    pending.give_up(30.0)
    with pytest.raises(ServiceUnreachable):
        pending.raise_failure()


def test_flows_without_calls_are_done_at_once() -> None:
    pending = PendingFlows([flow(0, 4, Taken())])
    assert pending.first(0.0) == []
    assert not pending
    pending.raise_failure()


def test_a_call_that_is_sent_again_leaves_its_peer_the_time_that_is_left() -> None:
    (call,) = calls(1)
    call = call.with_timeout(5.0)
    pending = PendingCalls([call])
    pending.first(10.0)
    (again,) = pending.settle(state(call, UNKNOWN), 12.0)
    assert (again.request_id, again.body["timeout_s"]) == (call.request_id, 3.0)
    (again,) = pending.settle(state(call, UNKNOWN), 99.0)
    assert again.body["timeout_s"] == 0.0


# -- peers that say nothing -----------------------------------------------------------------------


def impatient(call: Call) -> Call:
    return dataclasses.replace(call, silence_s=1.0)


def test_a_call_fails_when_its_peer_says_nothing_at_all_for_as_long_as_it_allows() -> None:
    one, other = impatient(calls(1)[0]), impatient(calls(1, "ipc://b")[0])
    pending = PendingCalls([one, other])
    pending.first(0.0)
    assert pending.give_up_silent(0.9) == []
    pending.settle(state(other, WORKING), 0.9)
    assert pending.next_ask_s() <= 1.0
    assert pending.give_up_silent(1.0) == [one]
    assert pending
    pending.settle(answer(other), 1.5)
    assert not pending
    silent, answered = pending.outcomes()
    assert isinstance(silent, ServiceUnreachable)
    assert silent.args == ("ipc://a", "op", 1.0)
    assert isinstance(answered, Message)


def test_a_call_that_allows_any_silence_waits_for_its_deadline() -> None:
    (call,) = calls(1)
    pending = PendingCalls([call])
    pending.first(0.0)
    assert pending.give_up_silent(99.0) == []
    assert pending


def test_a_flow_ends_when_its_peer_falls_silent() -> None:
    taken = Taken()
    made = Flow(
        endpoint="ipc://a",
        op="op",
        calls=map(impatient, calls(9)),
        num_calls=9,
        window=2,
        take=taken.take,
    )
    pending = PendingFlows([made])
    first = pending.first(0.0)
    pending.settle(reply(first[0]), 0.5)
    assert pending.give_up_silent(1.4) == []
    assert len(pending.give_up_silent(1.5)) == 2
    assert not pending
    with pytest.raises(ServiceUnreachable):
        pending.raise_failure()


class Places:
    """A coordinator's answers, as the test sets them."""

    def __init__(self) -> None:
        self.found: dict[str, str | TransferQueueError] = {}
        self.heard: list[Message] = []

    def question(self) -> Call:
        return Call(endpoint="ipc://coordinator", op="where")

    def hear(self, answer: Message) -> None:
        self.heard.append(answer)

    def of(self, call: Call) -> str | TransferQueueError:
        return self.found.get(call.endpoint, call.endpoint)

    def slot_of(self, call: Call) -> int:
        return 3


def test_peers_that_have_long_said_nothing_are_asked_about_one_question_at_a_time() -> None:
    one, other = calls(1)[0], calls(1, "ipc://b")[0]
    pending = PendingCalls([one, other], Places())
    pending.first(0.0)
    assert pending.look(0.9) == []
    pending.settle(state(one, WORKING), 0.9)
    pending.settle(state(other, WORKING), 0.9)
    assert pending.look(1.8) == []
    (question,) = pending.look(2.0)
    assert question.endpoint == "ipc://coordinator"
    assert pending.look(60.0) == []
    pending.settle(answer(one), 60.0)
    pending.settle(answer(other), 60.0)
    assert not pending, "nobody waits for the answer to a question alone"
    assert pending.under_way() == [question], "and it is cancelled"


def test_a_question_that_finds_nothing_new_is_asked_again() -> None:
    (call,) = calls(1)
    places = Places()
    pending = PendingCalls([call], places)
    pending.first(0.0)
    for now_s in (1.0, 2.0, 3.0):
        (question,) = pending.look(now_s)
        assert pending.settle(answer(question), now_s) == []
        assert pending.look(now_s + 0.9) == []
        assert pending.give_up_silent(now_s) == []
    (question,) = pending.look(4.0)
    pending.settle(refusal(question, RowsGone(1, 1, [1])), 4.0)
    assert len(places.heard) == 3
    assert pending.give_up_silent(4.0) == []
    assert pending


def test_a_call_to_a_peer_that_is_gone_fails_and_the_others_wait_on() -> None:
    one, other = calls(1)[0], calls(1, "ipc://b")[0]
    places = Places()
    pending = PendingCalls([one, other], places)
    pending.first(0.0)
    places.found["ipc://a"] = RowsLost(0, 0, [3])
    (question,) = pending.look(1.0)
    assert pending.settle(answer(question), 1.2) == []
    assert pending.give_up_silent(1.2) == [one]
    assert pending.waits_for(other.request_id)
    pending.settle(answer(other), 1.3)
    assert not pending
    lost, answered = pending.outcomes()
    assert isinstance(lost, RowsLost)
    assert isinstance(answered, Message)


def test_a_call_goes_on_as_the_same_where_the_place_of_its_peer_was_taken() -> None:
    call = calls(1)[0].with_timeout(30.0)
    places = Places()
    pending = PendingCalls([call], places)
    pending.first(0.0)
    places.found["ipc://a"] = "ipc://b"
    (question,) = pending.look(1.0)
    (moved,) = pending.settle(answer(question), 5.0)
    assert (moved.request_id, moved.endpoint) == (call.request_id, "ipc://b")
    assert (moved.moved_from, moved.body["timeout_s"]) == (("ipc://a",), 25.0)
    assert pending.quiet(5.0 + FIRST_ASK_S)[-1].endpoint == "ipc://b"
    (again,) = pending.settle(state(moved, UNKNOWN), 6.0)
    assert (again.endpoint, again.moved_from) == ("ipc://b", ("ipc://a",))
    pending.settle(answer(moved, x=1), 6.1)
    assert isinstance(pending.outcomes()[0], Message)


def test_a_flow_to_a_peer_whose_place_was_taken_is_to_be_made_anew() -> None:
    places = Places()
    pending = PendingFlows([flow(9, 2, Taken())], places)
    pending.first(0.0)
    places.found["ipc://a"] = "ipc://b"
    (question,) = pending.look(1.0)
    assert pending.settle(answer(question), 1.0) == []
    assert len(pending.give_up_silent(1.0)) == 2
    assert not pending
    with pytest.raises(TransferExpired, match="on shard 3"):
        pending.raise_failure()
