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

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transferqueue.errors import SlotTakenOver
from transferqueue.replication.relied_on import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Mapping

FRESH_S = 3.0
"""A guard that was heard of so lately is there to take over."""


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
    """What is known of one slot. All but ``relied_on_s`` is written down."""

    guard: int | None = None
    copy: Copy | None = None
    epoch: int = 0
    """The number of its newest process."""
    host: int | None = None
    """The slot in whose process it is served, since it was taken over."""
    lineage: str = ""
    """Of the processes that may serve it then."""
    relied_on_s: float = 0.0
    """Until when the guard may read from the mirror."""

    def to_plain(self) -> dict[str, Any]:
        return {
            "guard": self.guard,
            "copy": None if self.copy is None else self.copy.to_plain(),
            "epoch": self.epoch,
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
            host=plain["host"],
            lineage=str(plain["lineage"]),
        )


@dataclass(slots=True)
class SecondCopies:
    """``replicas``: 1 or 2. ``takeover_s``: how long a shard may be away before its place is taken,
    or, without a second copy, its rows are given up; ``None``: for ever. ``changed`` are the slots
    of which something is to be written down."""

    replicas: int = 1
    takeover_s: float | None = None
    slots: dict[int, SlotCopies] = field(default_factory=dict)
    changed: set[int] = field(default_factory=set)

    def of(self, slot: int) -> SlotCopies:
        return self.slots.setdefault(slot, SlotCopies())

    # -- guards ---------------------------------------------------------------------------------

    def choose_guards(self, places: Mapping[int, Place]) -> bool:
        """Give every slot a guard that is there, or one that may come back. True: some changed.
        ``places``: of the shards that are there."""
        if self.replicas == 1:
            return False
        chosen = False
        for slot in sorted(places):
            known = self.of(slot)
            guard = known.guard
            best = self._best_guard(slot, places)
            is_away = guard is not None and guard not in places and guard in self.slots
            if guard == best or is_away or (best is not None and self._is_fine(slot, places)):
                continue
            known.guard, known.copy = best, None
            self.changed.add(slot)
            chosen = True
        return chosen

    def _is_fine(self, slot: int, places: Mapping[int, Place]) -> bool:
        """Whether the guard that there is need not go to another place."""
        guard = self.of(slot).guard
        if guard is None or guard not in places:
            return False
        home, there = places[slot], places[guard]
        is_elsewhere = home.node != there.node
        return home.process != there.process and (
            is_elsewhere or all(place.node == home.node for place in places.values())
        )

    def _best_guard(self, slot: int, places: Mapping[int, Place]) -> int | None:
        home = places[slot]
        load: dict[int, int] = {}
        for other, known in self.slots.items():
            if other != slot and known.guard is not None:
                load[known.guard] = load.get(known.guard, 0) + 1

        def rank(other: int) -> tuple[bool, bool, int, bool, int]:
            place = places[other]
            is_behind = other < slot
            return place.node == home.node, place.is_draining, load.get(other, 0), is_behind, other

        others = [other for other, place in places.items() if place.process != home.process]
        return min(others, key=rank, default=None)

    # -- what is on record ----------------------------------------------------------------------

    def record(
        self,
        slot: int,
        *,
        copy: str | None,
        guard: int | None,
        epoch: int,
        places: Mapping[int, Place],
        now_s: float,
    ) -> bool:
        """What the home of the slot wants written down. False: not yet."""
        known = self.of(slot)
        if copy is None:
            if now_s < known.relied_on_s:
                return False  # its guard is reading from the mirror
            made = None
        else:
            if guard is None or guard != known.guard or guard not in places:
                return False
            made = Copy(guard=guard, incarnation=places[guard].incarnation, generation=copy)
        if (known.copy, known.epoch) != (made, epoch):
            known.copy, known.epoch = made, epoch
            self.changed.add(slot)
        return True

    def rely_on(self, slot: int, generation: str, incarnation: str, now_s: float) -> bool:
        """Whether the guard of this incarnation may read from a mirror for a while."""
        copy = self.of(slot).copy
        if copy is None or (copy.generation, copy.incarnation) != (generation, incarnation):
            return False
        self.of(slot).relied_on_s = now_s + LEASE_S
        return True

    def check_lineage(self, slot: int, lineage: str) -> None:
        """`SlotTakenOver` for a process that must not serve the slot."""
        known = self.slots.get(slot)
        if known is not None and known.host is not None and lineage != known.lineage:
            raise SlotTakenOver(slot)

    def came(self, slot: int, incarnation: str, lineage: str) -> None:
        """A shard says who it is. The mirrors of an earlier process went with that."""
        self.check_lineage(slot, lineage)
        self._void(slot, but=incarnation)

    def _void(self, guard: int, but: str = "") -> None:
        for slot, known in self.slots.items():
            copy = known.copy
            if copy is not None and copy.guard == guard and copy.incarnation != but:
                known.copy = None
                self.changed.add(slot)

    def kept_by(self, guard: int) -> list[int]:
        """The slots whose mirrors are of use at this guard."""
        return [
            slot
            for slot, known in sorted(self.slots.items())
            if known.guard == guard or (known.copy is not None and known.copy.guard == guard)
        ]

    # -- ends -----------------------------------------------------------------------------------

    def lose(self, slot: int) -> None:
        """The shard is gone for good, and so are its rows and the mirrors that it kept."""
        self._void(slot)
        for other in [o for o, known in self.slots.items() if known.guard == slot]:
            self.of(other).guard = None
            self.changed.add(other)
        self.slots.pop(slot, None)
        self.changed.add(slot)

    def due(self, heard_s: Mapping[int, float], places: Mapping[int, Place], now_s: float) -> Due:
        """``heard_s``: when the shard of each slot was heard of last. Slots that are taken over by
        their guards, from now on, and those whose rows are lost."""
        if self.takeover_s is None:
            return Due()
        due = Due()
        for slot in [slot for slot, at in heard_s.items() if now_s - at >= self.takeover_s]:
            copy = self.of(slot).copy
            place = None if copy is None else places.get(copy.guard)
            if copy is None or (place is not None and place.incarnation != copy.incarnation):
                due.lost.append(slot)
            elif place is not None and now_s - place.heard_s < FRESH_S:
                self._take_over(slot, copy.guard)
                due.taken_over.append(slot)
        return due

    def _take_over(self, slot: int, host: int) -> None:
        known = self.of(slot)
        known.host, known.lineage = host, secrets.token_hex(8)
        self.changed.add(slot)
        self._void(slot)  # its process is not heard any more, and so are its mirrors
        for other in [o for o, of in self.slots.items() if of.guard == slot]:
            self.of(other).guard = None
            self.changed.add(other)

    def hosted_by(self, host: int) -> list[dict[str, Any]]:
        """The slots that are served in the process of this one, each with the lineage and the
        number of the process that begins."""
        return [
            {"slot": slot, "lineage": known.lineage, "epoch": known.epoch + 1}
            for slot, known in sorted(self.slots.items())
            if known.host == host
        ]


@dataclass(slots=True)
class Due:
    """What has become of slots that nobody serves."""

    taken_over: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
