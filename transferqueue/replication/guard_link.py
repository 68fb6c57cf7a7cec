"""A home's stream to its guard: steps go out, answers come back, and a silence is looked into."""

from __future__ import annotations

import itertools
import math
import secrets
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from transferqueue.errors import BytesDamaged, ServiceFailed
from transferqueue.replication.changes import Kind
from transferqueue.replication.copy_log import Phase
from transferqueue.replication.lost_cells import Unreadable
from transferqueue.replication.throttle import Throttle
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.format import ERROR_OP, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.replication.changes import Step
    from transferqueue.replication.copy_log import Entry
    from transferqueue.replication.home import TwoCopies
    from transferqueue.replication.on_record import OnRecord
    from transferqueue.wire.chunks import Runs
    from transferqueue.wire.format import Buffer

PING_S = 0.5
BEGIN_AGAIN_S = 0.25
NO_ROOM_S, MOST_NO_ROOM_S = 2.0, 32.0
"""After a guard had no room for a copy it is asked again, the next time after twice as long: a copy
that does not fit in the end has kept the guard's own clients out of its room meanwhile."""

NO_ROOM = "no room at its guard"
STORE_AWAY = "a store is away"
"""Told in the place of a phase."""

MAPPED_PIECE_BYTES = 16 << 20
"""Of one step whose bytes the guard maps: what it copies before it looks after its own clients
again, 2 to 3 ms. In pieces of 1 MiB the messages took as long as the copying."""

WINDOW_BYTES, WINDOW_STEPS = 2 * MAPPED_PIECE_BYTES, 256
"""On their way to the guard and not answered."""

MAP_FROM_BYTES = 64 << 10
"""Of one step: fewer go with the message, although the guard could map them."""

MAX_PIECES = 16
"""Of one step that are sent from where they lie; more are brought together first."""

_LAST = frozenset({Kind.PUT, Kind.SKIP, Kind.CLEAR, Kind.STRIP, Kind.COMPLETE})


class Stream(Protocol):
    """What of a `StreamSender` is needed."""

    def send(self, message: Message) -> None: ...
    def receive(self) -> Message | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Who keeps the second copy. ``is_there``: whether a process listens there, so far as is
    known."""

    slot: int
    stream: Stream
    is_there: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A step without an answer."""

    request_id: int
    num_bytes: int
    is_last: bool
    """Of its entry."""


class GuardLink:
    """``epoch``: how many processes this slot has had before. ``arena``: how this shard's memory is
    mapped, if it can be, and ``owner`` this process. ``bytes_per_s``: of a copy. ``silence_s``: how
    long changes wait for a guard that says nothing. ``num_untold``: how many events the coordinator
    has not acknowledged. ``on_record``: see there. Without a guard (`attach`) changes are made on
    one copy."""

    def __init__(
        self,
        *,
        slot: int,
        epoch: int,
        backend: SeveralBackends,
        copies: TwoCopies,
        arena: Mapping[str, Any] | None,
        owner: Mapping[str, Any],
        bytes_per_s: float,
        silence_s: float,
        num_untold: Callable[[], int],
        on_record: OnRecord,
    ) -> None:
        self._guard: Guard | None = None
        self._slot = slot
        self._epoch = epoch
        self._backend = backend
        self._copies = copies
        self._log = copies.log
        self._arena = arena
        self._owner = owner
        self._num_untold = num_untold
        self._on_record = on_record
        self._silence_s = silence_s
        self._heard_s = 0.0
        """When the guard said something last, or changes began to wait for it."""
        self._throttle = Throttle(bytes_per_s)
        self._request_ids = itertools.count(1)
        self._generation = ""
        self._begin_s: float | None = 0.0
        """When to ask the guard (again) to drop what it has; ``None``: it has."""
        self._first_id = 1
        """Answers to earlier messages are of no interest."""
        self._may_map = False
        self._guard_free_bytes = 0
        """When it began."""
        self._obstacle: str | None = None
        """Why there is no copy."""
        self._no_room_s = NO_ROOM_S
        self._copy_s = 0.0
        """No copy begins before."""
        self._entry: Entry | None = None
        self._steps: Generator[Step] | None = None
        self._sent: deque[_Sent] = deque()
        self._num_sent = 0
        self._pings: dict[int, int] = {}
        """How many steps were sent before each."""
        self._ping_s = 0.0
        self._copied_bytes = 0
        self._now_s = 0.0
        self._start_over(0.0)

    def attach(self, guard: Guard | None, now_s: float) -> None:
        """The second copy goes there from now on; ``None``: nowhere. The one that there was is of
        no use any more."""
        self._guard, self._now_s, self._heard_s = guard, now_s, now_s
        self._copies.guard = -1 if guard is None else guard.slot
        self._has_room()
        self._start_over(now_s)

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        self._now_s = now_s
        if self._guard is None:
            return
        if self._begin_s is None and now_s >= self._ping_s:
            self._ping(now_s)
        elif self._may_begin and self._begin_s is not None and now_s >= self._begin_s:
            self._begin_s = now_s + BEGIN_AGAIN_S
            self._tell("begin", epoch=self._epoch, arena=self._arena, owner=self._owner)
        self._mind_silence(now_s)
        self.send()

    @property
    def _may_begin(self) -> bool:
        """Whether the guard may drop what it has: not before it is on record that no mirror has
        everything, or a home that is lost meanwhile would have none."""
        return self._log.phase is Phase.ALONE

    def _ping(self, now_s: float) -> None:
        self._ping_s = now_s + PING_S
        if self._pings and self._guard is not None:  # the last one has no answer
            self._look_for_guard(self._guard)
        if self._begin_s is None:
            self._pings[self._tell("ping")] = self._num_sent

    def _mind_silence(self, now_s: float) -> None:
        """Changes that wait for a guard which says nothing are made without it, in the end."""
        if not self._log.num_waiting:
            self._heard_s = max(self._heard_s, now_s - self._silence_s / 2)
        elif now_s - self._heard_s >= self._silence_s and not self._on_record.is_asking_for_none:
            self._start_over(now_s + BEGIN_AGAIN_S)

    def next_s(self) -> float:
        """When `tick` is due."""
        if self._guard is None:
            return math.inf
        due = self._ping_s if self._begin_s is None else self._begin_s
        if self._begin_s is not None and not self._may_begin:
            due = self._now_s + BEGIN_AGAIN_S  # it is called when the coordinator has said so, too
        is_held = self._entry is not None and self._entry.is_copy and self._has_window
        return min(due, self._throttle.next_s()) if is_held else due

    # -- out ------------------------------------------------------------------------------------

    @property
    def _has_window(self) -> bool:
        in_flight = sum(sent.num_bytes for sent in self._sent)
        return in_flight < WINDOW_BYTES and len(self._sent) < WINDOW_STEPS

    def send(self) -> None:
        """Send what there is, as far as the window and the throttle allow."""
        while self._guard is not None and self._has_window:
            if self._steps is None:
                self._entry = self._log.next_entry()
                if self._entry is None:
                    return
                self._steps = self._entry.steps
            assert self._entry is not None
            assert self._steps is not None
            if self._entry.is_copy and not self._throttle.is_open(self._now_s):
                return
            self._send_next(self._steps, self._entry)

    def _send_next(self, steps: Generator[Step], entry: Entry) -> None:
        """What a store does not have any more a copy goes without. One that does not answer may
        have it, so there is no copy yet: it would lack what this home can give soon. A change whose
        bytes cannot be read is made without the guard, which then gets a copy."""
        step = next(steps)
        while True:
            try:
                self._ship(step, entry)
            except BytesDamaged:
                if not entry.is_copy:
                    self.lost_sight()
                    return
                step = steps.throw(Unreadable())
            except ServiceFailed:
                self._cannot_copy(STORE_AWAY)
                return
            else:
                return

    def _ship(self, step: Step, entry: Entry) -> None:
        is_last = step.kind is Kind.COPIED if entry.is_copy else step.kind in _LAST
        frames = list(step.frames)
        body = {**step.body, "untold": self._num_untold() + self._log.num_waiting}
        if step.bytes_at is not None and step.num_bytes:
            body |= self._bytes(step.bytes_at, frames)
        if entry.is_copy:
            self._throttle.count(step.num_bytes)
            self._copied_bytes += step.num_bytes
        if is_last:
            self._steps = self._entry = None
        self._num_sent += 1
        request_id = self._tell(step.kind, frames, number=self._num_sent, **body)
        self._sent.append(_Sent(request_id=request_id, num_bytes=step.num_bytes, is_last=is_last))

    def _bytes(self, runs: Runs, frames: list[Buffer]) -> dict[str, Any]:
        """The bytes of a step, added to its frames; or where they lie, for a guard that can map
        them. They are held here until it has answered."""
        is_here = self._backend.lies_in_memory(runs.starts)
        may_map = self._may_map and self._backend.is_mappable(runs.starts)
        if may_map and runs.total_bytes >= MAP_FROM_BYTES:
            arrays = ArrayWriter()
            arrays.frames = frames
            return {"mapped": [arrays.add(runs.starts), arrays.add(runs.sizes)]}
        first = len(frames)
        if is_here and len(runs.starts) <= MAX_PIECES:
            pieces = zip(runs.starts.tolist(), runs.sizes.tolist(), strict=True)
            frames += [self._backend.readable(start, size) for start, size in pieces]
        else:
            frames.append(self._backend.read_ranges(runs.starts, runs.sizes).data)
        return {"blocks": first}

    def _tell(self, kind: str, frames: list[Buffer] | None = None, **body: Any) -> int:
        request_id = next(self._request_ids)
        said = {"slot": self._slot, "generation": self._generation, "kind": str(kind), **body}
        message = Message(op=ops.COPY, request_id=request_id, body=said, frames=frames or [])
        assert self._guard is not None
        self._guard.stream.send(message)
        return request_id

    # -- in -------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Take what the guard has answered."""
        while self._guard is not None and (message := self._guard.stream.receive()) is not None:
            self._heard_s = self._now_s
            if message.request_id >= self._first_id and message.op in (ERROR_OP, "ok"):
                self._hear(message)
        self.send()

    def _hear(self, message: Message) -> None:
        if message.op == ERROR_OP and message.body["cls"] == ServiceFailed.__name__:
            self._cannot_copy(STORE_AWAY)
        elif message.op == ERROR_OP:
            self._start_over(self._now_s + BEGIN_AGAIN_S)
        elif message.body["generation"] != self._generation:
            self._guard_is_new()
        elif self._begin_s is not None:
            self._guard_free_bytes = int(message.body["free"])
            self._begun(may_map=bool(message.body["may_map"]))
        elif message.request_id in self._pings:
            if int(message.body["received"]) < self._pings.pop(message.request_id):
                self.lost_sight()  # a connection broke with some on their way
        elif self._sent and message.request_id == self._sent[0].request_id:
            if not message.body["is_made"]:
                said = int(message.body["free"]), int(message.body["capacity"])
                self._copies.guard_free_bytes, self._copies.guard_bytes = said
            self._answered(is_made=bool(message.body["is_made"]))
        elif self._sent and message.request_id > self._sent[0].request_id:
            self.lost_sight()  # the answer to an earlier one is lost

    def _answered(self, *, is_made: bool) -> None:
        if self._sent.popleft().is_last or not is_made:  # a copy may find no room in between
            self._copies.answered(is_made=is_made)
            if self._log.phase is Phase.ALONE:
                self._cannot_copy(NO_ROOM)

    def _cannot_copy(self, obstacle: str) -> None:
        """Not now: the guard has no room for all that there is, or a store does not give it or does
        not take it, and may do so later. The guard drops what has come of it at once."""
        self._obstacle = obstacle
        self._copy_s = self._now_s + self._no_room_s
        self._no_room_s = min(MOST_NO_ROOM_S, 2 * self._no_room_s)
        self._start_over(self._now_s)

    def _has_room(self) -> None:
        self._obstacle, self._no_room_s, self._copy_s = None, NO_ROOM_S, 0.0

    def _begun(self, *, may_map: bool) -> None:
        """The guard has dropped whatever it had of this slot."""
        self._begin_s, self._may_map = None, may_map
        self._copies.piece_bytes = MAPPED_PIECE_BYTES if may_map else None
        self._ping_s = self._now_s + PING_S
        if self._now_s < self._copy_s:
            self._start_over(self._copy_s)
            return
        self._copied_bytes = 0
        if not self._copies.begin_copy(self._guard_free_bytes):
            self._cannot_copy(NO_ROOM)

    def _guard_is_new(self) -> None:
        """It is another process, or has dropped what it had: nothing of it can be relied on. Or it
        has heard of a newer process of this slot, and refuses to begin with this one."""
        is_refused = self._begin_s is not None
        self._start_over(self._now_s + BEGIN_AGAIN_S * is_refused)

    def _look_for_guard(self, guard: Guard) -> None:
        """A process that is not there any more has taken its mirror with it: there is nothing to
        wait for. One that stands still may have a mirror that is relied on."""
        is_asking = self._log.phase is Phase.ALONE or self._on_record.is_asking_for_none
        if not is_asking and not guard.is_there():
            self._start_over(self._now_s + BEGIN_AGAIN_S)

    def complete(self) -> None:
        """The guard knows that it has everything: that is of use when it is on record."""
        self._has_room()
        if self._guard is not None and self._log.phase is Phase.IN_STEP:
            self._on_record.ask(self._generation, self._guard.slot, self._log.note_complete)

    def lost_sight(self) -> None:
        """It is not known what the guard has, and it may be relied on."""
        self._start_over(self._now_s)

    def _start_over(self, at_s: float) -> None:
        """With another generation. Changes go on here alone as soon as it is on record that no
        mirror has everything; then the guard gets all that there is."""
        self._generation = secrets.token_hex(8)
        self._begin_s = at_s
        self._first_id = next(self._request_ids)
        self._entry = self._steps = None
        self._sent.clear()
        self._pings.clear()
        self._num_sent = 0
        if self._log.phase is not Phase.ALONE:
            self._log.lost_sight()
            self._on_record.ask(None, None, self._log.guard_is_empty)

    # -- reports --------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """For `status`: ``is_complete`` says whether all is on both."""
        copy = self._copies.copy
        return {
            "guard": None if self._guard is None else self._guard.slot,
            "phase": self._obstacle or str(self._log.phase),
            "is_complete": self._log.is_complete,
            "changes_waiting": self._log.num_waiting,
            "copied_bytes": self._copied_bytes,
            "bytes_to_copy": 0 if copy is None else max(0, copy.total_bytes - self._copied_bytes),
        }
