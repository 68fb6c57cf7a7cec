"""Which calls still wait for an answer, and which are to be sent now. No socket, no clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import TYPE_CHECKING

from transferqueue.errors import (
    DeviceStuck,
    ServiceUnreachable,
    TransferExpired,
    TransferQueueError,
    TransferUnfinished,
)
from transferqueue.net.calls import (
    ASK_AGAIN_S,
    FIRST_ASK_S,
    LOOK_AFTER_S,
    RESUME,
    UNKNOWN,
    Call,
    Flow,
    Outcome,
)
from transferqueue.wire.format import ERROR_OP, decode_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.net.calls import Whereabouts
    from transferqueue.wire.format import Message

HELD_AGAIN_S = 0.001
"""Between looks at a device that holds a call back. In this time it copies tens of megabytes, more
than it is ever ahead of a wire."""


def outcome_of(message: Message) -> Outcome:
    """The answer, or the error that it carries."""
    return decode_error(message.body) if message.op == ERROR_OP else message


class Pending(ABC):
    """Calls under way, seen by a channel.

    The channel sends what `first`, `look`, `settle` and `held_back` return, asks again for what
    `quiet` names, cancels what `give_up_silent` names, and stops when this is false. True while any
    answer is still to come.
    """

    def __init__(self, whereabouts: Whereabouts | None) -> None:
        self._whereabouts = whereabouts
        self._question: int | None = None
        """The request id of what is asked about silent peers, while it has no answer."""
        self._look_s = 0.0
        """Not asked again before."""
        self._lost: dict[int, TransferQueueError] = {}
        """Why calls have failed that are still to be cancelled."""
        self._under_way: dict[int, Call] = {}
        self._sent_s: dict[int, float] = {}
        """When each of them was sent first."""
        self._heard_s: dict[str, float] = {}
        """When each peer was last heard of, or first asked."""
        self._spoke_s: dict[str, float] = {}
        """When each peer last said something, or the first call was sent to it."""
        self._ask_after_s: dict[str, float] = {}
        """The silence after which each peer is asked next."""

    def __bool__(self) -> bool:
        return len(self._under_way) > (self._question is not None)

    @property
    def endpoints(self) -> list[str]:
        """The peers that were asked."""
        return list(self._heard_s)

    def under_way(self) -> list[Call]:
        """Calls that were sent and have no answer."""
        return list(self._under_way.values())

    def broken_off(self) -> list[Call]:
        """The calls to cancel when whoever waits has stopped to: also those whose answer has come
        and will be seen by nobody, for what it lends is then nobody's."""
        return self.under_way()

    def waits_for(self, request_id: int) -> bool:
        return request_id in self._under_way

    @abstractmethod
    def first(self, now_s: float) -> list[Call]:
        """The calls to begin with."""

    def settle(self, message: Message, now_s: float) -> list[Call]:
        """Take one message. Returns the calls to send next: those that come after it, or the one
        that its peer has lost."""
        call = self._under_way.get(message.request_id)
        if call is None:
            return []
        self._heard_s[call.endpoint] = self._spoke_s[call.endpoint] = now_s
        if message.op == RESUME:
            is_lost = message.body.get("state") == UNKNOWN
            waited_s = now_s - self._sent_s[call.request_id]
            return [call.after(waited_s)] if is_lost else []
        del self._under_way[message.request_id]
        del self._sent_s[message.request_id]
        if message.request_id == self._question:
            self._question = None
            return self._found(message, now_s)
        return self._answered(call, message, now_s)

    def quiet(self, now_s: float) -> list[Call]:
        """Calls to ask about: their peer has said nothing for `FIRST_ASK_S`, the next time for
        twice as long, up to `ASK_AGAIN_S`."""
        silent = [e for e in self._heard_s if self._ask_s(e) <= now_s]
        for endpoint in silent:
            self._heard_s[endpoint] = now_s
            self._ask_after_s[endpoint] = min(ASK_AGAIN_S, 2 * self._ask_after_s[endpoint])
        return [call for call in self._under_way.values() if call.endpoint in silent]

    # -- peers that may be gone -----------------------------------------------------------------

    def look(self, now_s: float) -> list[Call]:
        """What to ask about peers that have said nothing for `LOOK_AFTER_S`."""
        is_due = self._whereabouts is not None and self._question is None and now_s >= self._look_s
        if not is_due or not self._silent(now_s):
            return []
        assert self._whereabouts is not None
        question = self._whereabouts.question()
        self._question, self._look_s = question.request_id, now_s + LOOK_AFTER_S
        return [self._send(question, now_s)]

    def _silent(self, now_s: float) -> list[Call]:
        return [
            call
            for call in self._under_way.values()
            if call.request_id != self._question
            and now_s - self._spoke_s[call.endpoint] >= LOOK_AFTER_S
        ]

    def _found(self, answer: Message, now_s: float) -> list[Call]:
        """It is known where peers are. Calls to those that are gone fail, with the next
        `give_up_silent`; those of others go where they are now."""
        assert self._whereabouts is not None
        try:
            if answer.op == ERROR_OP:
                raise decode_error(answer.body)
            self._whereabouts.hear(answer)
        except TransferQueueError:
            return []  # asked again; whoever asks for something else there is told what is wrong
        moved = []
        for call in self._silent(now_s):
            found = self._whereabouts.of(call)
            if isinstance(found, TransferQueueError):
                self._lost[call.request_id] = found
            elif found != call.endpoint:
                moved += self._move(call, found, now_s)
        return moved

    def _move(self, call: Call, endpoint: str, now_s: float) -> list[Call]:
        moved = call.moved_to(endpoint)
        first_s = self._sent_s[call.request_id]
        self._send(moved, now_s)
        self._sent_s[call.request_id] = first_s
        return [moved.after(now_s - first_s)]

    def next_ask_s(self) -> float:
        """When `quiet` or `give_up_silent` may name calls next."""
        allowed = [
            self._spoke_s[call.endpoint] + call.silence_s
            for call in self._under_way.values()
            if call.silence_s is not None
        ]
        return min([*map(self._ask_s, self._heard_s), *allowed])

    def give_up_silent(self, now_s: float) -> list[Call]:
        """Calls whose peer is gone, or has said nothing for longer than they allow. They have
        failed."""
        silent = [
            call
            for call in self._under_way.values()
            if call.request_id in self._lost
            or (
                call.silence_s is not None
                and now_s - self._spoke_s[call.endpoint] >= call.silence_s
            )
        ]
        for call in silent:
            del self._under_way[call.request_id]
            waited_s = now_s - self._sent_s.pop(call.request_id)
            lost = self._lost.pop(call.request_id, None)
            self._failed(call, lost or ServiceUnreachable(call.endpoint, call.op, waited_s))
        return silent

    def _ask_s(self, endpoint: str) -> float:
        return self._heard_s[endpoint] + self._ask_after_s[endpoint]

    def held_back(self, now_s: float) -> list[Call]:
        """The calls to send now that could not be made when there was room for them."""
        del now_s
        return []

    @abstractmethod
    def give_up(self, waited_s: float) -> None:
        """The time is up: each call without an answer has failed."""

    def _send(self, call: Call, now_s: float) -> Call:
        self._under_way[call.request_id] = call
        self._sent_s[call.request_id] = now_s
        self._heard_s.setdefault(call.endpoint, now_s)
        self._spoke_s.setdefault(call.endpoint, now_s)
        self._ask_after_s.setdefault(call.endpoint, FIRST_ASK_S)
        return call

    @abstractmethod
    def _failed(self, call: Call, error: TransferQueueError) -> None:
        """The call is not waited for any more."""

    @abstractmethod
    def _answered(self, call: Call, message: Message, now_s: float) -> list[Call]:
        """The calls that follow this answer."""


class PendingCalls(Pending):
    """Calls made at once. Invariant: every call ends in exactly one outcome, the first that
    arrived for it."""

    def __init__(self, calls: Sequence[Call], whereabouts: Whereabouts | None = None) -> None:
        super().__init__(whereabouts)
        self._calls = list(calls)
        self._outcomes: dict[int, Outcome] = {}

    def first(self, now_s: float) -> list[Call]:
        return [self._send(call, now_s) for call in self._calls]

    def _answered(self, call: Call, message: Message, now_s: float) -> list[Call]:
        self._outcomes[call.request_id] = outcome_of(message)
        return []

    def _failed(self, call: Call, error: TransferQueueError) -> None:
        self._outcomes[call.request_id] = error

    def broken_off(self) -> list[Call]:
        return list({call.request_id: call for call in (*self._calls, *self.under_way())}.values())

    def give_up(self, waited_s: float) -> None:
        for call in self._under_way.values():
            error = ServiceUnreachable(call.endpoint, call.op, waited_s)
            self._outcomes[call.request_id] = error
        self._under_way.clear()

    def outcomes(self) -> list[Outcome]:
        """In the order of the calls."""
        return [self._outcomes[call.request_id] for call in self._calls]


class PendingFlows(Pending):
    """Flows side by side. Invariant: of each flow at most ``window`` calls are without an answer.

    The first failure of any flow ends them all: nothing more is sent.
    """

    def __init__(self, flows: Sequence[Flow], whereabouts: Whereabouts | None = None) -> None:
        super().__init__(whereabouts)
        self._states = [_FlowState(flow) for flow in flows]
        self._state_of: dict[int, _FlowState] = {}
        self._failure: TransferQueueError | None = None
        self._held_asked_s = 0.0
        """When calls that are held back were asked for last."""

    def __bool__(self) -> bool:
        return self._failure is None and (super().__bool__() or bool(self._held()))

    def _held(self) -> list[_FlowState]:
        return [state for state in self._states if state.is_held]

    def first(self, now_s: float) -> list[Call]:
        self._held_asked_s = now_s
        return [call for state in self._states for call in self._fill(state, now_s)]

    def held_back(self, now_s: float) -> list[Call]:
        if now_s < self._held_asked_s + HELD_AGAIN_S:
            return []
        self._held_asked_s, held = now_s, self._held()
        waiting = {call.endpoint for call in self._under_way.values()}
        calls = [call for state in held for call in self._fill(state, now_s)]
        for endpoint in {call.endpoint for call in calls} - waiting:
            self._spoke_s[endpoint] = now_s  # it was not asked anything meanwhile
        return calls

    def next_ask_s(self) -> float:
        again_s = self._held_asked_s + HELD_AGAIN_S
        if not self._under_way:
            return again_s
        return min(super().next_ask_s(), again_s) if self._held() else super().next_ask_s()

    def _fill(self, state: _FlowState, now_s: float) -> list[Call]:
        calls = state.take_next()
        for call in calls:
            self._state_of[call.request_id] = state
            self._send(call, now_s)
        return calls

    def _answered(self, call: Call, message: Message, now_s: float) -> list[Call]:
        state = self._state_of.pop(call.request_id)
        try:
            outcome = outcome_of(message)
            if isinstance(outcome, TransferQueueError):
                self._failure = outcome
                return []
            state.flow.take(call, outcome)
            state.num_done += 1
            state.num_under_way -= 1
            return self._fill(state, now_s)
        except TransferQueueError as error:
            self._failure = copy(error)  # not itself: it refers to this frame
            return []

    def _failed(self, call: Call, error: TransferQueueError) -> None:
        self._failure = error

    def _move(self, call: Call, endpoint: str, now_s: float) -> list[Call]:
        assert self._whereabouts is not None
        number = int(call.body.get("put_id", call.body.get("lease_id", 0)))
        slot = self._whereabouts.slot_of(call)
        self._lost[call.request_id] = TransferExpired(call.op, number, slot)
        return []

    def give_up(self, waited_s: float) -> None:
        state = next((state for state in self._states if state.num_under_way), None)
        if state is None:
            self._failure = DeviceStuck(self._held()[0].flow.device, waited_s)
        else:
            self._failure = state.unfinished(waited_s)

    def raise_failure(self) -> None:
        """Raise what ended the flows before their end, if anything did."""
        if self._failure is not None:
            raise copy(self._failure)


class _FlowState:
    """How far one flow is."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.num_done = 0
        self.num_under_way = 0
        self.is_held = False
        """Whether the next call could not be made when there was room for it."""

    def take_next(self) -> list[Call]:
        """The calls that the window has room for, and that can be made."""
        calls: list[Call] = []
        self.is_held = False
        while not self.is_held and self.num_under_way + len(calls) < self.flow.window:
            try:
                call = next(self.flow.calls)
            except StopIteration:
                break
            if call is None:
                self.is_held = True
            else:
                calls.append(call)
        self.num_under_way += len(calls)
        return calls

    def unfinished(self, waited_s: float) -> TransferQueueError:
        flow = self.flow
        if self.num_done == 0:
            return ServiceUnreachable(flow.endpoint, flow.op, waited_s)
        return TransferUnfinished(flow.endpoint, flow.op, self.num_done, flow.num_calls, waited_s)
