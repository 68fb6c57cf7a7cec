"""What a client asks of its peers, and what it gets: values shared by both channels."""

from __future__ import annotations

import dataclasses
import itertools
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from transferqueue.errors import TransferQueueError
from transferqueue.wire.format import Buffer, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

GRACE_S = 2.0
"""A peer that parks a call answers at its deadline; the channel waits this much longer for it."""

FIRST_ASK_S, ASK_AGAIN_S = 0.25, 2.0
"""Without an answer for so long, the channel asks whether the peer has the request at all: soon
for the first time, since a shard that was killed is back within half a second, then ever later.

A request or its reply is lost only when a connection breaks. Sending a whole request again after
a guess of a timeout would store it twice or move gigabytes twice, so the channel sends the small
``resume`` instead: the peer says ``working``, or repeats the answer it gave, or says ``unknown``,
and only then is the request itself sent again.
"""

RESUME = "resume"
CANCEL = "cancel"
WORKING = "working"
UNKNOWN = "unknown"

LOOK_AFTER_S = 1.0
"""A peer that says nothing at all for so long may be gone: it is asked whether it is. One that is
there says within milliseconds that it is working."""

_request_ids = itertools.count(1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to one peer."""

    endpoint: str
    op: str
    body: Mapping[str, Any] = field(default_factory=dict)
    frames: Sequence[Buffer] = ()
    request_id: int = field(default_factory=lambda: next(_request_ids))
    silence_s: float | None = None
    """The call has failed when its peer has said nothing at all for so long, not even that it is
    working on it; ``None``: its deadline alone counts."""
    moved_from: tuple[str, ...] = ()
    """Where it went before, when others took the place of its peer."""

    def message(self) -> Message:
        return Message(
            op=self.op, request_id=self.request_id, body=dict(self.body), frames=list(self.frames)
        )

    def control(self, op: str) -> Message:
        """``resume`` or ``cancel`` for this request."""
        return Message(op=op, request_id=self.request_id, body={}, frames=[])

    def moved_to(self, endpoint: str) -> Call:
        """The same call for whoever has taken the place of its peer, and may have answered it."""
        been = (*self.moved_from, self.endpoint)
        return dataclasses.replace(self, endpoint=endpoint, moved_from=been)

    def after(self, waited_s: float) -> Call:
        """The same call, sent again after so long: its peer has so much less time for it."""
        timeout_s = self.body.get("timeout_s")
        if not isinstance(timeout_s, float):
            return self
        return self.with_timeout(max(0.0, timeout_s - waited_s))

    def with_timeout(self, timeout_s: float) -> Call:
        """The same call, carrying the deadline that its server keeps."""
        return self.with_more("timeout_s", timeout_s)

    def with_more(self, name: str, value: Any) -> Call:
        """The same call, one value of its body set."""
        return dataclasses.replace(self, body={**self.body, name: value})


Outcome = Message | TransferQueueError


class Whereabouts(Protocol):
    """Where peers are that say nothing: known to another peer, which is asked."""

    def question(self) -> Call:
        """Answered when there is something new, which may take long."""
        ...

    def hear(self, answer: Message) -> None: ...

    def of(self, call: Call) -> str | TransferQueueError:
        """The endpoint that a call is to go to, as it is known now; or why it has failed."""
        ...

    def slot_of(self, call: Call) -> int:
        """Of its peer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Many calls to one peer, made one after the other as the answers to earlier ones come."""

    endpoint: str
    op: str
    calls: Iterator[Call | None]
    """Made only when they are about to be sent: their frames may be copies. ``None``: the next one
    cannot be made yet, and the iterator is asked again soon."""
    num_calls: int
    window: int
    """How many may be without an answer at a time: what bounds the bytes in flight."""
    take: Callable[[Call, Message], None]
    """Gets each answer once, in any order. A `TransferQueueError` that it raises ends the flow."""
    device: str = ""
    """What a call that cannot be made yet waits for; only a flow that has some names it."""


class Channel(Protocol):
    """Long-lived sockets to any number of peers. One face waits in the thread, one in the loop."""

    async def exchange(
        self, calls: Sequence[Call], *, timeout_s: float, whereabouts: Whereabouts | None = None
    ) -> list[Outcome]:
        """Send every call, wait for every answer. Outcomes in the order of ``calls``.

        A peer's refusal and a peer's silence (`ServiceUnreachable`) are outcomes, not raises, so
        that one failed peer does not hide what the others did. ``whereabouts``: who to ask about
        silent peers; a call goes on where its peer's place has been taken.
        """
        ...

    async def flow(
        self, flows: Sequence[Flow], *, timeout_s: float, whereabouts: Whereabouts | None = None
    ) -> None:
        """Carry out every flow, side by side. Raises the first failure, and then has given up what
        was still under way; `TransferUnfinished` when the time is up. One whose peer's place has
        been taken has failed (`TransferExpired`): nobody else has what it began."""
        ...

    async def apart(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Do what blocks a thread, each beside the others, and beside whatever else goes on."""
        ...

    async def to_its_end(self, work: Callable[[], T]) -> T:
        """As `apart`, for work on memory that is another's when this is over: it is over when the
        thread is, also for a task that is cancelled."""
        ...


def raise_first(outcomes: Sequence[Outcome]) -> list[Message]:
    """The messages, or the first failure among them."""
    messages: list[Message] = []
    for outcome in outcomes:
        if isinstance(outcome, TransferQueueError):
            # Not itself: it would refer to its frames, and they to it, with all that they hold.
            raise copy(outcome)
        messages.append(outcome)
    return messages
