"""The steps of one checkpoint over all shards: what to order when. No socket, no clock, no file.

The text of the package `checkpoint` says what the steps are for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from transferqueue.checkpoint.manifest import SavedShard
from transferqueue.shard.split_puts import PartNames
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SETTLE_S = 1.0
"""How long the parts of a put that is in on some shards are waited for on the others. A client
commits them all at once, so this is for one that was stopped or killed in between."""


class Phase(Enum):
    """How far it is."""

    PREPARING = "preparing"
    HOLDING = "holding"
    SETTLING = "settling"
    WRITING = "writing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one shard is to do next."""

    slot: int
    step: str
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    next_event: int
    parts: PartNames


class Round:
    """One checkpoint. `answered` takes what shards say, `advance` returns what follows from it.

    When `advance` has returned the orders to cut, `phase` is ``WRITING`` and the state of the
    coordinator at that very moment belongs to the checkpoint.
    """

    def __init__(self, slots: Iterable[int]) -> None:
        self.slots = sorted(slots)
        self.phase = Phase.PREPARING
        self._prepared: set[int] = set()
        self._held: dict[int, _Held] = {}
        self.settle_until_s: float | None = None
        self._is_settled = False
        self.saved: dict[int, SavedShard] = {}

    @property
    def is_saved(self) -> bool:
        """Whether every shard's part is on the disk."""
        return self.phase is Phase.WRITING and len(self.saved) == len(self.slots)

    @property
    def unanswered(self) -> list[int]:
        """Shards that have not carried out the last order."""
        answered = {
            Phase.PREPARING: self._prepared,
            Phase.HOLDING: self._held.keys(),
            Phase.SETTLING: self._held.keys(),
            Phase.WRITING: self.saved.keys(),
        }[self.phase]
        return [slot for slot in self.slots if slot not in answered]

    def answered(self, slot: int, step: str, body: Mapping[str, Any]) -> None:
        """A shard has carried out an order."""
        if step == ops.PREPARE:
            self._prepared.add(slot)
        elif step == ops.HOLD and self.phase in (Phase.HOLDING, Phase.SETTLING):
            parts = PartNames.from_plain(body["parts"])
            self._held[slot] = _Held(next_event=int(body["next_event"]), parts=parts)
        elif step == ops.CUT:
            self.saved[slot] = SavedShard.from_plain(body["saved"])

    def advance(self, next_events: Mapping[int, int], now_s: float) -> list[Order]:
        """``next_events``: of each shard, the number of the event that is heard next."""
        if self.phase is Phase.PREPARING and len(self._prepared) == len(self.slots):
            self.phase = Phase.HOLDING
            return [Order(slot=slot, step=ops.HOLD) for slot in self.slots]
        if self.settle_until_s is not None and now_s >= self.settle_until_s:
            return self._stop_settling()
        if self.phase in (Phase.HOLDING, Phase.SETTLING) and len(self._held) == len(self.slots):
            return self._settle(now_s) or self._cut(next_events)
        return []

    # -- puts that are in on some shards only ----------------------------------------------------

    def _settle(self, now_s: float) -> list[Order]:
        """Let parts pass of which another one is in."""
        if self._is_settled:
            return []
        committed = self._named(lambda parts: parts.committed)
        awaited = {slot: held.parts.under_way & committed for slot, held in self._held.items()}
        orders = [
            Order(slot=slot, step=ops.PASS, body={"names": sorted(names)})
            for slot, names in awaited.items()
            if names
        ]
        if not orders:
            self._is_settled, self.settle_until_s = True, None
            return []
        self.phase = Phase.SETTLING
        self.settle_until_s = now_s + SETTLE_S
        for order in orders:
            del self._held[order.slot]
        return orders

    def _stop_settling(self) -> list[Order]:
        """What has not come by now is left out."""
        self._is_settled, self.settle_until_s = True, None
        return [Order(slot=slot, step=ops.HOLD) for slot in self.slots if slot not in self._held]

    def _left_out(self) -> dict[int, list[str]]:
        """Of each shard, the parts that it has and another one has not."""
        incomplete = self._named(lambda parts: parts.under_way | parts.given_up)
        return {
            slot: sorted(held.parts.committed & incomplete) for slot, held in self._held.items()
        }

    def _named(self, names_of: Any) -> frozenset[str]:
        names: frozenset[str] = frozenset()
        return names.union(*(names_of(held.parts) for held in self._held.values()))

    # -- the cut --------------------------------------------------------------------------------

    def _cut(self, next_events: Mapping[int, int]) -> list[Order]:
        heard_all = all(
            next_events.get(slot, 0) >= held.next_event for slot, held in self._held.items()
        )
        if not heard_all:
            return []
        self.phase = Phase.WRITING
        left_out = self._left_out()
        return [
            Order(slot=slot, step=ops.CUT, body={"leave_out": left_out[slot]})
            for slot in self.slots
        ]
