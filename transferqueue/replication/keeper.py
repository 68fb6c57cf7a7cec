"""A guard's edge: it keeps the mirrors of other slots, and gives them back to a home that has
lost its rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.backends.arena_owner import owner_of
from transferqueue.backends.several import ADDRESS_BITS
from transferqueue.backends.shm_reader import ShmReader
from transferqueue.errors import BytesDamaged, ServiceFailed
from transferqueue.net.server import Reply
from transferqueue.process_id import ProcessId, boot_id
from transferqueue.replication.changes import FullCopy, Kind
from transferqueue.replication.lost_cells import Unreadable
from transferqueue.replication.mirror import BytesReplaced, Mirror, Taken
from transferqueue.replication.mirror_space import MirrorSpace
from transferqueue.shard.store import Store
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.server import Handler, Request
    from transferqueue.replication.changes import Step
    from transferqueue.shard.backend_choice import BackendChoice
    from transferqueue.wire.format import Buffer

AWAY = "away"
"""In the place of a kind: the bytes lie in a store that does not answer."""

FIRST_EPOCH = 1 << 30
"""Leases on mirrors have numbers from a range of their own: no lease of a process of this shard on
its own rows has such a one (`shard.store.EPOCH_SHIFT`), nor one on another mirror."""


@dataclass(slots=True, kw_only=True)
class Kept:
    """The mirror of one slot."""

    generation: str
    mirror: Mirror
    space: MirrorSpace
    epoch: int
    """Its leases are numbered from."""
    memory: ShmReader | None
    """The home's, when it can be mapped."""
    owner: ProcessId
    """The home."""
    num_received: int = 0
    is_final: bool = False
    """A successor of its home takes it over: nothing changes it any more."""
    copy: FullCopy | None = None
    """Under way back to its home."""
    steps: Generator[Step] | None = None
    unsent: Step | None = None
    """The next of them, whose bytes could not be read yet."""
    given_up: set[int] = field(default_factory=set)
    """Numbers of backends that are not asked for its bytes any more."""
    last: tuple[int, Reply] | None = field(default=None)


class Keeper:
    """``choice``: to which backends puts go here. ``epoch``: how many processes this shard has had.
    ``on_free``: memory may have come free."""

    def __init__(
        self,
        *,
        backend: SeveralBackends,
        choice: BackendChoice,
        epoch: int,
        on_free: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._choice = choice
        self._on_free = on_free
        self._next_epoch = FIRST_EPOCH + ((epoch & 0x3FFF) << 16)
        self.kept: dict[int, Kept] = {}
        """By slot."""
        self._spaces: list[MirrorSpace] = []
        self._newest: dict[int, int] = {}
        """Of each slot, the number of the newest process that has been heard of: what an earlier
        one had asked for may come after it was killed."""
        self.handlers: dict[str, Handler] = {ops.COPY: self._copy, ops.FETCH_COPY: self._fetch}

    def complete(self, slot: int) -> Kept | None:
        """The mirror of a slot, if whatever its home acknowledged is in it."""
        kept = self.kept.get(slot)
        return kept if kept is not None and kept.mirror.is_complete else None

    def used_bytes(self, number: int) -> int:
        """Of this shard's backend of this number that mirrors take, also dropped ones that somebody
        reads."""
        return sum(space.used_in(number) for space in self._spaces)

    def by_epoch(self, epoch: int) -> Kept | None:
        """The mirror whose leases have this number."""
        return next((kept for kept in self.kept.values() if kept.epoch == epoch), None)

    # -- from a home ----------------------------------------------------------------------------

    def _copy(self, request: Request) -> Reply:
        """Body: ``slot``, ``generation``, ``kind``: ``begin``, ``ping`` or of a step."""
        slot, kind = request.number("slot"), str(request.body["kind"])
        generation = str(request.body["generation"])
        if kind == "begin":
            return self._begin(slot, generation, request.body)
        kept = self.kept.get(slot)
        if kept is None or kept.generation != generation or kept.is_final:
            return Reply(body={"generation": None})
        is_made = True
        # One was lost with a connection: those behind it must not be made. The home learns of it.
        is_next = kind != "ping" and request.number("number") == kept.num_received + 1
        if is_next:
            try:
                is_made = self._take(slot, kept, Kind(kind), request)
            except BytesReplaced:
                kept.num_received -= 1  # none of those behind it is the next one
                return Reply(body={"generation": None})
        said = {"generation": generation, "received": kept.num_received, "is_made": is_made}
        if not is_made:
            full = self._backend.members[self._backend.refused[0]]
            capacity = full.budget_bytes
            said |= {"free": capacity - full.backend.used_bytes, "capacity": capacity}
        return Reply(body=said)

    def _begin(self, slot: int, generation: str, body: Mapping[str, Any]) -> Reply:
        if self._is_late(slot, int(body["epoch"])):
            return Reply(body={"generation": None})
        kept = self.kept.get(slot)
        if kept is None or kept.generation != generation:  # else it asks again
            self.drop(slot)
            kept = self.kept[slot] = self._new(slot, generation, body)
        may_map, members = kept.memory is not None, self._backend.members
        free = sum(member.budget_bytes - member.backend.used_bytes for member in members)
        return Reply(body={"generation": generation, "may_map": may_map, "free": free})

    def _is_late(self, slot: int, epoch: int) -> bool:
        self._newest[slot] = max(epoch, self._newest.get(slot, epoch))
        return epoch < self._newest[slot]

    def _new(self, slot: int, generation: str, body: Mapping[str, Any]) -> Kept:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        space = MirrorSpace(self._backend)
        self._spaces = [*(one for one in self._spaces if one.used_bytes), space]
        store = Store(slot=slot, space=space)
        store.begin(epoch, space, self._choice)
        arena = body["arena"]
        memory = None
        owner = ProcessId.of_plain(dict(body["owner"]))
        if arena is not None and owner.boot_id == boot_id():
            address = ArenaAddress.from_plain(dict(arena))
            memory = ShmReader(address) if address.is_here() else None
        mirror = Mirror(store, self._backend, space)
        return Kept(
            generation=generation,
            mirror=mirror,
            space=space,
            epoch=epoch,
            memory=memory,
            owner=owner,
        )

    def _take(self, slot: int, kept: Kept, kind: Kind, request: Request) -> bool:
        kept.num_received += 1
        try:
            is_made = kept.mirror.take(_step(kept, kind, request))
        except BytesReplaced:
            raise
        except BaseException:
            self.drop(slot)  # it may be half of a change
            raise
        if kind in (Kind.CLEAR, Kind.STRIP, Kind.PUT):
            self._on_free()
        return is_made

    def keep_only(self, slots: Collection[int]) -> None:
        """Other mirrors are of no use: their homes have another guard, or are lost."""
        for slot in [slot for slot in self.kept if slot not in slots]:
            self.drop(slot)

    def drop(self, slot: int) -> None:
        """Forget a mirror. Nothing happens when there is none."""
        kept = self.kept.pop(slot, None)
        if kept is not None:
            _end_copy(kept)
            kept.mirror.drop()
            if kept.memory is not None:
                kept.memory.close()
            self._on_free()

    # -- back to a home -------------------------------------------------------------------------

    def _fetch(self, request: Request) -> Reply:
        """Body: ``slot``, ``generation``, ``epoch``, ``at``: the number of a step of the copy, 0 to
        begin it, one after the other; ``gives_up``: whether to go on without the bytes of a store
        that does not answer. Answered with ``kind`` nil when that mirror is not here, and with
        `AWAY` and ``why`` when such a store is in the way: then the step is asked for again."""
        slot, at = request.number("slot"), request.number("at")
        kept = self.complete(slot)
        is_it = kept is not None and kept.generation == request.body["generation"]
        if kept is None or not is_it or self._is_late(slot, request.number("epoch")):
            return Reply(body={"kind": None})
        kept.is_final = True
        if at == 0:
            _end_copy(kept)
            kept.copy = FullCopy(
                kept.mirror.store,
                answers=kept.mirror.answers,
                tagged=list(kept.mirror.tagged),
                one_copy=(),
                now_s=request.received_s,
                lost=kept.mirror.lost.each(),
            )
            kept.steps, kept.last = kept.copy.steps(), None
        if kept.steps is None:
            return Reply(body={"kind": None})
        if kept.last is not None and kept.last[0] == at:
            return kept.last[1]  # its answer was lost
        kept.unsent = kept.unsent or next(kept.steps)
        try:
            reply = self._readable(kept, kept.steps, gives_up=bool(request.body.get("gives_up")))
        except ServiceFailed as error:
            return Reply(body={"kind": AWAY, "why": str(error)})
        kept.unsent = None
        kept.last = (at, reply)
        if reply.body["kind"] == Kind.COPIED:
            copy, kept.copy = kept.copy, None
            if copy is not None:
                copy.close()
        return reply

    def _readable(self, kept: Kept, steps: Generator[Step], *, gives_up: bool) -> Reply:
        """The step whose turn it is, or what stands for it when its bytes are lost. What a store
        does not have is lost. One that does not answer may have it: `ServiceFailed`, unless whoever
        asks gives it up. Then it is not asked for anything else: each time would take seconds."""
        while True:
            assert kept.unsent is not None
            numbers = _numbers(kept.unsent)
            if not numbers & kept.given_up:
                try:
                    return self._step(kept.unsent)
                except BytesDamaged:
                    pass  # its home counts the rows, and says so once
                except ServiceFailed:
                    if not gives_up:
                        raise
                    kept.given_up |= numbers
            kept.unsent = steps.throw(Unreadable())

    def _step(self, step: Step) -> Reply:
        frames: list[Buffer] = list(step.frames)
        blocks = None
        if step.bytes_at is not None and step.num_bytes:
            blocks = len(frames)
            frames.append(self._backend.read_ranges(step.bytes_at.starts, step.bytes_at.sizes).data)
        body = {"kind": str(step.kind), "step": dict(step.body), "blocks": blocks}
        return Reply(body=body, frames=frames)

    # -- reports --------------------------------------------------------------------------------

    def report(self) -> list[dict[str, Any]]:
        """For `status`: the mirrors that are kept here."""
        return [
            {
                "slot": slot,
                "is_complete": kept.mirror.is_complete,
                "rows": kept.mirror.store.num_rows,
                "slabs": len(kept.mirror.store.slabs),
            }
            for slot, kept in sorted(self.kept.items())
        ]

    def close(self) -> None:
        for kept in self.kept.values():
            if kept.memory is not None:
                kept.memory.close()


def _end_copy(kept: Kept) -> None:
    copy, kept.copy, kept.steps, kept.unsent = kept.copy, None, None, None
    kept.given_up = set()
    if copy is not None:
        copy.close()


def _numbers(step: Step) -> set[int]:
    """Of the backends that its bytes lie in."""
    runs = step.bytes_at
    return set() if runs is None else set((runs.starts >> ADDRESS_BITS).tolist())


def _step(kept: Kept, kind: Kind, request: Request) -> Taken:
    """With the bytes that came along, or that it says where to find."""
    mapped, first, memory = request.body.get("mapped"), request.body.get("blocks"), kept.memory
    blocks: Sequence[Buffer] = [] if first is None else request.frames[int(first) :]
    are_still_there = None
    if mapped is not None and memory is not None:
        arrays, owner = ArrayReader(request.frames), kept.owner
        starts, sizes = (arrays.int64s(reference).tolist() for reference in mapped)
        ranges = zip(starts, sizes, strict=True)
        blocks = [memory.readable(start, start + size).data for start, size in ranges]
        are_still_there = lambda: owner_of(memory.arena) == owner  # noqa: E731
    return Taken(
        kind=kind,
        body=dict(request.body),
        frames=request.frames,
        blocks=blocks,
        are_still_there=are_still_there,
    )
