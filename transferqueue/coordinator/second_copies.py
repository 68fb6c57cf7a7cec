"""Who keeps the second copy of which slot, which of them can be relied on, and who takes the place
of a shard that does not come back. No socket, no clock.

Symbols: a **slot** has a home, the shard that serves it, and a guard, another slot whose shard
keeps its mirror. Its **record** names the mirror that holds all that the home has acknowledged, or
none. Only the home changes it, through here (`on_record`), and the three who act on it ask here: a
home that has lost its rows, a guard that is asked for rows, and `due`, which gives the slot to the
guard. So of a home that goes on alone and a guard that takes its place never both happen: whichever
is written down first excludes the other.

Rule for a guard: on another node if there is one, never in the process of the home itself; then one
that is not to go; then the one that guards fewest; then the next slot.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.errors import SlotTakenOver
from transferqueue.replication.relied_on import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

FRESH_S = 3.0
"""A guard that was heard of so lately is there to take over, and a home that asked for something
so lately still wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a shard is."""

    node: str
    process: str
    incarnation: str
    heard_s: float
    is_draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A mirror with everything: it ends with the guard's process."""

    guard: int
    incarnation: str
    generation: str

    def to_plain(self) -> list[Any]:
        return [self.guard, self.incarnation, self.generation]


@dataclass(slots=True, kw_only=True)
class SlotCopies:
    """What is known of one slot. All but the last three is written down."""

    guard: int | None = None
    copy: Copy | None = None
    epoch: int = 0
    """The number of its newest process, as that said."""
    begun: int = 0
    """The highest number of a process that has come, or was to begin in another shard's."""
    host: int | None = None
    """The slot in whose process it is served, since it was taken over."""
    lineage: str = ""
    """Of the processes that may serve it since; also when they are lost too."""
    relied_on_s: float = 0.0
    """Until when the guard may read from the mirror."""
    refused_s: float = -math.inf
    """When its home last asked to go on alone, and had to wait for that."""
    begun_in: str = ""
    """The incarnation of the host that was given the number ``begun``."""

    def to_plain(self) -> dict[str, Any]:
        return {
            "guard": self.guard,
            "copy": None if self.copy is None else self.copy.to_plain(),
            "epoch": self.epoch,
            "begun": self.begun,
            "host": self.host,
            "lineage": self.lineage,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SlotCopies:
        copy = plain["copy"]
        return cls(
            guard=plain["guard"],
            copy=None
            if copy is None
            else Copy(guard=copy[0], incarnation=copy[1], generation=copy[2]),
            epoch=int(plain["epoch"]),
            begun=int(plain["begun"]),
            host=plain["host"],
            lineage=str(plain["lineage"]),
        )


class SecondCopies:
    """``replicas``: 1 or 2. ``takeover_s``: how long a shard may be away before its place is taken,
    or, without a second copy, its rows are given up; ``None``: for ever. ``slots``: what was
    written down of each by an earlier coordinator."""

    def __init__(
        self,
        replicas: int = 1,
        takeover_s: float | None = None,
        slots: Mapping[int, SlotCopies] | None = None,
    ) -> None:
        self.replicas = replicas
        self.takeover_s = takeover_s
        self.slots: dict[int, SlotCopies] = dict(slots or {})
        self._changed: set[int] = set()
        self._at: dict[int, AtShard] | None = None
        """What each shard is told of slots that are not its own; ``None``: to be made again."""

    def of(self, slot: int) -> SlotCopies:
        return self.slots.setdefault(slot, SlotCopies())

    def _note(self, slot: int) -> None:
        self._changed.add(slot)
        self._at = None

    def take_changed(self) -> set[int]:
        """The slots of which something is to be written down since this was called last."""
        changed, self._changed = self._changed, set()
        return changed

    # -- guards ---------------------------------------------------------------------------------

    def choose_guards(self, places: Mapping[int, Place]) -> bool:
        """Give every slot a guard that is there, or one that may come back. True: some changed.
        ``places``: of the shards that are there."""
        if self.replicas == 1:
            return False
        nodes = {place.node for place in places.values()}
        load: Counter[int | None] = Counter(known.guard for known in self.slots.values())
        chosen = False
        for slot in sorted(places):
            known = self.of(slot)
            before = known.guard
            if before is not None and self._may_stay(before, places[slot], places, nodes):
                continue
            load[before] -= 1
            best = _best_guard(slot, places, load)
            load[best] += 1
            if best != before:
                known.guard, known.copy = best, None
                self._note(slot)
                chosen = True
        return chosen

    def _may_stay(
        self, guard: int, home: Place, places: Mapping[int, Place], nodes: AbstractSet[str]
    ) -> bool:
        """Whether there is no better guard. One that is away may come back."""
        there = places.get(guard)
        if there is None:
            return guard in self.slots
        return home.process != there.process and (home.node != there.node or len(nodes) == 1)

    # -- what is on record ----------------------------------------------------------------------

    def record(
        self,
        slot: int,
        *,
        copy: str | None,
        guard: int | None,
        epoch: int,
        incarnation_of: Callable[[int], str | None],
        now_s: float,
    ) -> bool:
        """What the home of the slot wants written down. False: not yet. ``incarnation_of``: the
        process that was heard of as the shard of a slot."""
        known = self.of(slot)
        if epoch > known.begun:  # it has clients from now on, also when it has to wait here
            known.begun = epoch
            self._note(slot)
        made = None
        if copy is None:
            if now_s < known.relied_on_s:
                known.refused_s = now_s
                return False  # its guard is reading from the mirror
        else:
            incarnation = None if guard is None else incarnation_of(guard)
            if guard is None or guard != known.guard or incarnation is None:
                return False
            made = Copy(guard=guard, incarnation=incarnation, generation=copy)
            known.refused_s = -math.inf
        if (known.copy, known.epoch) != (made, epoch):
            known.copy, known.epoch = made, epoch
            self._note(slot)
        return True

    def begin(self, slot: int, incarnation: str) -> int:
        """The number with which the host of this incarnation begins to serve the slot: one for each
        process of a host. It counts when it is given, not when the new home says it. A home may
        wait for its record (`record`), be killed meanwhile, and have had clients by then; without
        its arena the next one would give the same numbers to other puts and leases, and a client
        that goes on with its own would commit, or give back, somebody else's."""
        known = self.of(slot)
        if known.begun_in != incarnation:
            known.begun += 1
            known.begun_in = incarnation
            self._note(slot)
        return known.begun

    def rely_on(self, slot: int, generation: str, incarnation: str, now_s: float) -> bool:
        """Whether the guard of this incarnation may read from a mirror for a while. No more while
        the home asks to go on alone: who reads on would hold it up for ever."""
        known = self.of(slot)
        copy = known.copy
        if copy is None or (copy.generation, copy.incarnation) != (generation, incarnation):
            return False
        if now_s - known.refused_s < FRESH_S:
            return False
        known.relied_on_s = now_s + LEASE_S
        return True

    def check_lineage(self, slot: int, lineage: str) -> None:
        """`SlotTakenOver` for a process that must not serve the slot."""
        if not self.is_of(slot, lineage):
            raise SlotTakenOver(slot)

    def is_of(self, slot: int, lineage: str) -> bool:
        """Whether processes of this lineage may serve the slot."""
        known = self.slots.get(slot)
        return known is None or known.lineage in ("", lineage)

    def came(self, slot: int, incarnation: str, lineage: str) -> None:
        """A shard says who it is. The mirrors of an earlier process went with that."""
        self.check_lineage(slot, lineage)
        self._void(slot, but=incarnation)

    def _void(self, guard: int, but: str = "") -> None:
        for slot in self.at(guard).copies:
            copy = self.of(slot).copy
            if copy is not None and copy.incarnation != but:
                self.of(slot).copy = None
                self._note(slot)

    # -- what shards are told -------------------------------------------------------------------

    def at(self, shard: int) -> AtShard:
        """What the shard of this slot has, or is to have, of other slots."""
        if self._at is None:
            self._at = {}
            for slot, known in sorted(self.slots.items()):
                if known.guard is not None:
                    self._at.setdefault(known.guard, AtShard()).guarded.append(slot)
                if known.copy is not None:
                    self._at.setdefault(known.copy.guard, AtShard()).copies.append(slot)
                if known.host is not None:
                    self._at.setdefault(known.host, AtShard()).hosted.append(slot)
        return self._at.get(shard) or AtShard()

    # -- ends -----------------------------------------------------------------------------------

    def lose(self, slot: int) -> None:
        """The shard is gone for good, and so are its rows and the mirrors that it kept. The one
        from which it took the slot over knows rows that have changed since: it stays refused."""
        self._leave(slot)
        known = self.slots.pop(slot, None)
        if known is not None and known.lineage:
            self.slots[slot] = SlotCopies(lineage=known.lineage)
        self._note(slot)

    def hand_over(self, slot: int, places: Mapping[int, Place], now_s: float) -> bool:
        """The shard does not come back: from now on its guard has its place, if it has everything
        and is there."""
        copy = self.of(slot).copy
        place = None if copy is None else places.get(copy.guard)
        is_there = place is not None and now_s - place.heard_s < FRESH_S
        if copy is None or place is None or not is_there or place.incarnation != copy.incarnation:
            return False
        known = self.of(slot)
        known.host, known.lineage, known.begun_in = copy.guard, secrets.token_hex(8), ""
        self._note(slot)
        self._leave(slot)
        return True

    def _leave(self, slot: int) -> None:
        """The process that served the slot is not heard any more, nor are its mirrors there."""
        self._void(slot)
        for other in self.at(slot).guarded:
            self.of(other).guard = None
            self._note(other)

    def due(self, heard_s: Mapping[int, float], places: Mapping[int, Place], now_s: float) -> Due:
        """``heard_s``: when the shard of each slot was heard of last. Slots that are taken over by
        their guards, from now on, and those whose rows are lost."""
        due = Due()
        if self.takeover_s is None:
            return due
        for slot in [slot for slot, at_s in heard_s.items() if now_s - at_s >= self.takeover_s]:
            copy = self.of(slot).copy
            place = None if copy is None else places.get(copy.guard)
            if self.hand_over(slot, places, now_s):
                due.taken_over.append(slot)
            elif copy is None or (place is not None and place.incarnation != copy.incarnation):
                due.lost.append(slot)
        return due


def _best_guard(
    slot: int, places: Mapping[int, Place], load: Mapping[int | None, int]
) -> int | None:
    home = places[slot]

    def rank(other: int) -> tuple[bool, bool, int, bool, int]:
        place = places[other]
        return place.node == home.node, place.is_draining, load[other], other < slot, other

    others = [other for other, place in places.items() if place.process != home.process]
    return min(others, key=rank, default=None)


@dataclass(slots=True)
class AtShard:
    """Slots that are not the shard's own."""

    guarded: list[int] = field(default_factory=list)
    """Whose second copy goes there."""
    copies: list[int] = field(default_factory=list)
    """Whose second copy is there, with everything."""
    hosted: list[int] = field(default_factory=list)
    """That are served in its process."""


@dataclass(slots=True)
class Due:
    """What has become of slots that nobody serves."""

    taken_over: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
