"""Events reach the coordinator in order, each once, over a connection that breaks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from transferqueue.shard.outbox import Outbox


@dataclass
class Coordinator:
    """Takes the next event, passes over repeats, ignores what comes too early."""

    taken: list[int] = field(default_factory=list)

    def hear(self, number: int, what: int) -> int:
        if number == len(self.taken) + 1:
            self.taken.append(what)
        return self.next_event

    @property
    def next_event(self) -> int:
        return len(self.taken) + 1


STEPS = st.lists(
    st.sampled_from(["add", "send", "heartbeat", "deliver", "answer", "break"]), max_size=60
)


class Link:
    """A connection: FIFO both ways; breaking it loses what is on the way."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.coordinator = Coordinator()
        self.going: deque[tuple[int, int] | str] = deque()
        self.coming: deque[tuple[str, int]] = deque()
        self.num_added = 0

    def add(self) -> None:
        self.num_added += 1
        self.outbox.add(self.num_added)

    def send(self) -> None:
        self.going += [(event.number, event.what) for event in self.outbox.take_unsent()]

    def heartbeat(self) -> None:
        self.send()
        self.outbox.heartbeat()
        self.going.append("heartbeat")

    def deliver(self) -> None:
        if not self.going:
            return
        message = self.going.popleft()
        if isinstance(message, str):
            self.coming.append(("heartbeat", self.coordinator.next_event))
        else:
            self.coming.append(("event", self.coordinator.hear(*message)))

    def answer(self) -> None:
        if not self.coming:
            return
        kind, next_event = self.coming.popleft()
        if kind == "heartbeat":
            self.outbox.answer_to_heartbeat(next_event)
        else:
            self.outbox.acknowledge(next_event)

    def break_(self) -> None:
        self.going.clear()
        self.coming.clear()

    def calm(self) -> None:
        """Nothing breaks any more for three heartbeats."""
        for _ in range(3):
            self.heartbeat()
            while self.going:
                self.deliver()
            while self.coming:
                self.answer()


@given(STEPS)
def test_every_event_arrives_once_and_in_order_whatever_is_lost(steps: list[str]) -> None:
    link = Link()
    for step in steps:
        getattr(link, "break_" if step == "break" else step)()
        assert link.coordinator.taken == list(range(1, len(link.coordinator.taken) + 1))
    link.calm()
    assert link.coordinator.taken == list(range(1, link.num_added + 1))
    assert len(link.outbox) == 0


@given(STEPS)
def test_nothing_is_sent_twice_while_the_connection_holds(steps: list[str]) -> None:
    link = Link()
    sent: list[int] = []
    for step in steps:
        if step != "break":
            getattr(link, step)()
        sent += [m[0] for m in link.going if not isinstance(m, str) and m[0] not in sent]
    link.calm()
    assert sent == sorted(set(sent))


def test_a_coordinator_that_starts_anew_gets_what_it_has_not_acknowledged() -> None:
    outbox = Outbox()
    for what in "abcd":
        outbox.add(what)
    outbox.take_unsent()
    outbox.acknowledge(3)
    outbox.heartbeat()
    outbox.answer_to_heartbeat(3)
    assert [event.what for event in outbox.take_unsent()] == ["c", "d"]
