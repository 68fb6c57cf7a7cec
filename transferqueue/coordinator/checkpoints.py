"""The coordinator's edge for checkpoints: a client asks, shards are led through the steps, and the
manifest is written when all of it is on the disk."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.checkpoint.files import write_records
from transferqueue.checkpoint.folder import CheckpointWriter
from transferqueue.checkpoint.manifest import Manifest, SavedFile
from transferqueue.coordinator.background import Background
from transferqueue.coordinator.checkpoint_round import Order, Phase, Round
from transferqueue.errors import CheckpointBusy, CheckpointFailed, InvalidInput, TransferQueueError
from transferqueue.net.server import Handler, Reply, Request, Server
from transferqueue.wire import ops
from transferqueue.wire.format import decode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from transferqueue.coordinator.shard_links import ShardLinks
    from transferqueue.journal.records import Record

FILE = "coordinator"

SILENCE_S = 15.0
"""A shard says something every half second; after so long without a word it is not there."""


STEPS_S = 30.0
"""All steps before the bytes are written take milliseconds; after so long an order, or the answer
to it, was lost with a connection."""


@dataclass(slots=True, kw_only=True)
class _UnderWay:
    """The checkpoint that is being made."""

    request: Request
    path: str
    deadline_s: float
    round: Round
    incarnations: dict[int, str]
    opening: Background[CheckpointWriter]
    writer: CheckpointWriter | None = None
    ordered_s: float = math.inf
    """When the shards were told to prepare."""
    own: Background[SavedFile] | None = None
    publishing: Background[None] | None = None
    began_s: float = field(default_factory=time.monotonic)


class Checkpoints:
    """One at a time. ``dump``: all that the coordinator knows and no shard does, now."""

    def __init__(
        self,
        *,
        service_id: str,
        life: int,
        links: ShardLinks,
        dump: Callable[[], Iterable[Record]],
        num_slots: Callable[[], int],
    ) -> None:
        """``num_slots``: above every slot of which a shard has rows, here or not back yet."""
        self._num_slots = num_slots
        self._service_id = service_id
        self._life = life
        self._links = links
        self._dump = dump
        self._server: Server | None = None
        self._current: _UnderWay | None = None
        self._closing: list[tuple[Background[None], Callable[[], object]]] = []
        """What is being cleared away, and what is said then."""
        self.client_handlers: dict[str, Handler] = {ops.CHECKPOINT: self._begin}
        self.shard_handlers: dict[str, Handler] = {ops.STEP_DONE: self._step_done}

    def attach(self, server: Server) -> None:
        """The server over which answers go; once, before it runs."""
        self._server = server

    @property
    def _loop(self) -> Server:
        assert self._server is not None
        return self._server

    # -- a client asks --------------------------------------------------------------------------

    def _begin(self, request: Request) -> None:
        """Body: ``path``, absolute; ``timeout_s``. Answered when it is finished."""
        path = str(request.body["path"])
        if not os.path.isabs(path) or "\0" in path:
            raise InvalidInput(f"the path of a checkpoint is absolute, got {path!r:.200}")
        if self._current is not None:
            raise CheckpointBusy(path, f"this service is writing one to {self._current.path}")
        incarnations = self._links.incarnations
        for slot in range(self._num_slots()):
            if slot not in incarnations and slot not in self._links.lost:
                raise CheckpointFailed(path, f"shard {slot}", "has not come (back) yet; ask again")
        self._current = _UnderWay(
            request=request,
            path=path,
            deadline_s=request.received_s + request.seconds(),
            round=Round(incarnations),
            incarnations=incarnations,
            opening=Background(lambda: CheckpointWriter(path), self._loop.wake),
        )

    def cancel(self, key: tuple[bytes, int]) -> None:
        """The client gave it up."""
        if self._current is not None and self._current.request.key == key:
            self._end(self._current, lambda: None)

    # -- shards answer --------------------------------------------------------------------------

    def _step_done(self, request: Request) -> Reply:
        """Body: ``slot``, ``id``, ``step``, and what came of it."""
        current, body = self._current, request.body
        if current is None or current.writer is None or body["id"] != current.writer.id:
            return Reply(body={})
        if body["step"] == ops.ABANDON:
            self._fail(current, decode_error(body["error"]))
        else:
            current.round.answered(request.number("slot"), str(body["step"]), body)
        return Reply(body={})

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Go on as far as it can."""
        self._tell_of_ended()
        current = self._current
        if current is None:
            return
        try:
            if current.publishing is None:  # then it is there, whatever becomes of the shards
                self._check(current, now_s)
            self._go_on(current, now_s)
        except TransferQueueError as error:
            self._fail(current, error)
        except OSError as error:
            self._fail(current, CheckpointFailed(current.path, "the coordinator", str(error)))

    def next_s(self) -> float | None:
        return None if self._current is None else self._current.round.settle_until_s

    def _check(self, current: _UnderWay, now_s: float) -> None:
        """Whether it can still be finished. `CheckpointFailed`."""
        if now_s >= current.deadline_s:
            why = (
                f"not finished after {now_s - current.began_s:.1f} s ({current.round.phase.value})"
            )
            raise CheckpointFailed(current.path, "the coordinator", why)
        if now_s - current.ordered_s > STEPS_S and current.round.phase is not Phase.WRITING:
            who, phase = f"shards {current.round.unanswered}", current.round.phase.value
            raise CheckpointFailed(current.path, who, f"no answer in {STEPS_S:.0f} s, {phase}")
        here = self._links.incarnations
        joined = here.keys() - current.incarnations.keys()
        if joined and current.round.phase is not Phase.WRITING:
            # It was not told to hold, and may have parts of puts.
            who = f"shard {min(joined)}"
            raise CheckpointFailed(current.path, who, "joined meanwhile, so ask again")
        for slot, incarnation in current.incarnations.items():
            if here.get(slot) != incarnation:
                why = "was started again meanwhile" if slot in here else "is gone"
                raise CheckpointFailed(current.path, f"shard {slot}", why)
            silent_s = now_s - self._links.heard_s(slot)
            if silent_s > SILENCE_S and slot not in current.round.saved:
                why = f"not heard for {silent_s:.0f} s"
                raise CheckpointFailed(current.path, f"shard {slot}", why)

    def _go_on(self, current: _UnderWay, now_s: float) -> None:
        if current.writer is None:
            if current.opening.has_ended:
                current.writer = writer = current.opening.result()
                body = {"folder": writer.folder, "token": writer.token}
                current.ordered_s, slots = now_s, current.round.slots
                self._order(current, [Order(slot=s, step=ops.PREPARE, body=body) for s in slots])
            return
        was_writing = current.round.phase is Phase.WRITING
        orders = current.round.advance(self._links.next_events, now_s)
        self._order(current, orders)
        # Nothing else is done in between, so this is the state at the orders; shards need not wait
        # for it.
        if current.round.phase is Phase.WRITING and not was_writing:
            records = list(self._dump())
            at = os.path.join(current.writer.folder, FILE)
            current.own = Background(lambda: write_records(at, records), self._loop.wake)
        self._publish(current, current.writer)

    def _publish(self, current: _UnderWay, writer: CheckpointWriter) -> None:
        if current.publishing is not None:
            if current.publishing.has_ended:
                current.publishing.result()
                self._finish(current)
        elif current.round.is_saved and current.own is not None and current.own.has_ended:
            manifest = self._manifest(current, writer, current.own.result())
            current.publishing = Background(lambda: writer.publish(manifest), self._loop.wake)

    def _manifest(self, current: _UnderWay, writer: CheckpointWriter, own: SavedFile) -> Manifest:
        saved = current.round.saved
        return Manifest(
            folder=os.path.basename(writer.folder),
            service_id=self._service_id,
            life=self._life,
            created_unix_s=time.time(),
            coordinator=own,
            shards=tuple(saved[slot] for slot in sorted(saved)),
        )

    # -- the end --------------------------------------------------------------------------------

    def _finish(self, current: _UnderWay) -> None:
        saved = current.round.saved.values()
        body = {
            "path": current.path,
            "num_rows": sum(shard.num_rows for shard in saved),
            "num_bytes": sum(shard.live_bytes for shard in saved),
            "seconds": time.monotonic() - current.began_s,
        }
        self._end(current, lambda: self._loop.reply(current.request, Reply(body=body)))

    def _fail(self, current: _UnderWay, error: TransferQueueError) -> None:
        self._end(current, lambda: self._loop.refuse(current.request, error))

    def _end(self, current: _UnderWay, answer: Callable[[], object]) -> None:
        """Have the shards let go, delete what was not finished, and then ``answer``: who asks
        again finds the folder free."""
        self._current = None
        if current.writer is not None and current.publishing is None:
            self._order(current, [Order(slot=s, step=ops.ABANDON) for s in current.round.slots])
        self._closing.append((Background(lambda: _close(current), self._loop.wake), answer))

    def _tell_of_ended(self) -> None:
        for closing in [closing for closing in self._closing if closing[0].has_ended]:
            self._closing.remove(closing)
            closing[0].result()
            closing[1]()

    def _order(self, current: _UnderWay, orders: Sequence[Order]) -> None:
        assert current.writer is not None
        for order in orders:
            body: dict[str, Any] = {**order.body, "id": current.writer.id, "step": order.step}
            self._links.order_step(order.slot, body)

    def close(self) -> None:
        """Give up what is under way."""
        if self._current is not None:
            self._end(self._current, lambda: None)
        for closing, _ in self._closing:
            closing.result()
        self._closing = []


def _close(current: _UnderWay) -> None:
    """In a thread: wait for what still writes, and let go of the folder."""
    for work in (current.own, current.publishing):
        if work is not None:
            try:
                work.result()
            except OSError:
                continue  # told by whoever ended it
    try:
        current.opening.result().close()
    except (OSError, TransferQueueError):
        return  # it was never there
