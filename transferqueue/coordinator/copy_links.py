"""The coordinator's edge towards homes and guards: what heartbeats say of second copies, and which
shards are missed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from transferqueue.coordinator.second_copies import Place
from transferqueue.errors import InvalidInput
from transferqueue.net.server import Reply
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transferqueue.coordinator.journal import CoordinatorJournal
    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.second_copies import SecondCopies
    from transferqueue.coordinator.shard_link import ShardLink
    from transferqueue.homes import UidRange
    from transferqueue.net.server import Handler, Request

HERE_S = 5.0
"""A shard that was heard of so lately is there."""

LOOK_EVERY_S = 1.0

PAUSED_S = 5.0
"""A coordinator that has not looked for so long stood still itself, as all of a host may that is
suspended: nobody was heard of meanwhile, and nobody is missed for it."""


class CopyLinks:
    """``shards``: those that have come, by slot; ``num_shards``: those that were started with the
    service; ``slots``: those that may have rows; ``uids_of``: which a slot may give to new ones.
    ``lose`` gives a slot's rows up, ``on_changed`` hears that clients are to be told something new.
    """

    def __init__(
        self,
        copies: SecondCopies,
        *,
        shards: Mapping[int, ShardLink],
        num_shards: int,
        slots: Callable[[], set[int]],
        uids_of: Callable[[int], UidRange | None],
        journal: CoordinatorJournal,
        lose: Callable[[int], None],
        on_changed: Callable[[], None],
    ) -> None:
        self._copies = copies
        self._shards = shards
        self._num_shards = num_shards
        self._slots = slots
        self._uids_of = uids_of
        self._journal = journal
        self._lose = lose
        self._on_changed = on_changed
        self._started_s = self._awake_s = time.monotonic()
        """``_awake_s``: since when shards are heard of."""
        self._look_s = self._started_s
        self._known: frozenset[int] = frozenset()
        self._claimed_s: dict[int, float] = {}
        """When a shard that is about to come has said so, by slot."""
        self.handlers: dict[str, Handler] = {ops.WHERE_COPY: self._where}

    @property
    def replicas(self) -> int:
        """Copies of every row."""
        return self._copies.replicas

    def check_replicas(self, wanted: int | None, partition: Partition) -> None:
        """InvalidInput for copies that cannot be kept of a partition."""
        name, num_rows = partition.name, partition.table.num_rows
        if wanted == 2 and self.replicas == 1:
            raise InvalidInput(
                f"partition {name!r}: replicas=2 needs shards that guard one another, and this "
                f"service was started without: start it with replicas=2, and declare what needs no "
                f"second copy with replicas=1"
            )
        if self.gives_up_second_copies(wanted, partition) and num_rows:
            raise InvalidInput(
                f"partition {name!r}: replicas=1 has to be declared before the first put; it "
                f"has {num_rows} rows with two copies: clear them first, or take another name"
            )

    def gives_up_second_copies(self, wanted: int | None, partition: Partition) -> bool:
        """Whether rows of the partition, which had two, are to have one from now on."""
        return wanted == 1 and self.replicas == 2 and partition.policy.replicas != 1

    def guard_of(self, slot: int) -> int | None:
        """The slot whose shard has its second copy, or is to have it."""
        return self._copies.of(slot).guard if self._copies.replicas > 1 else None

    # -- heartbeats -----------------------------------------------------------------------------

    def came(self, slot: int, body: Mapping[str, Any]) -> None:
        """A shard says who it is; `SlotTakenOver`, or `InvalidInput` when the slot is another
        owner's."""
        lineage = str(body.get("lineage") or "")
        self._copies.came(slot, str(body["incarnation"]), lineage)
        shard = self._shards.get(slot)
        if shard is not None and shard.lineage != lineage and self._copies.of(slot).host is None:
            raise InvalidInput(f"slot {slot} is another shard's; ask for one of your own (join)")

    def hear(self, slot: int, said: Mapping[str, Any], now_s: float) -> dict[str, Any]:
        """What is answered to the part of a heartbeat that is about second copies."""
        record = said["record"]
        is_recorded = self._copies.record(
            slot,
            copy=None if record["copy"] is None else str(record["copy"]),
            guard=record["guard"],
            epoch=int(said["epoch"]),
            incarnation_of=self._incarnation_of,
            now_s=now_s,
        )
        at = self._copies.at(slot)
        hosted = [self._hosted(of, self._shards[slot].incarnation) for of in at.hosted]
        self._write_down()  # before anybody hears of it
        return {
            "guard": self._address(self._copies.of(slot).guard),
            "recorded": int(record["number"]) if is_recorded else None,
            "relied_on": [
                [of, generation, self._may_rely(slot, int(of), str(generation), now_s)]
                for of, generation in said["relied_on"]
            ],
            "kept": [*at.guarded, *at.copies],
            "hosted": hosted,
        }

    def _incarnation_of(self, slot: int) -> str | None:
        shard = self._shards.get(slot)
        return None if shard is None else shard.incarnation

    def _hosted(self, slot: int, incarnation: str) -> dict[str, Any]:
        """With which the process of this incarnation begins to serve a slot."""
        known, uids = self._copies.of(slot), self._uids_of(slot)
        return {
            "slot": slot,
            "lineage": known.lineage,
            "epoch": self._copies.begin(slot, incarnation),
            "uids": None if uids is None else [uids.start, uids.stop],
        }

    def _may_rely(self, guard: int, slot: int, generation: str, now_s: float) -> bool:
        incarnation = self._shards[guard].incarnation
        return self._copies.rely_on(slot, generation, incarnation, now_s)

    def _address(self, guard: int | None) -> dict[str, Any] | None:
        """Without endpoints while the guard has not come."""
        if guard is None:
            return None
        shard = self._shards.get(guard)
        if shard is None:
            return {"slot": guard, "endpoints": []}
        boot_id = shard.facts["boot_id"]
        return {"slot": guard, "endpoints": shard.endpoints, "boot_id": boot_id}

    def _where(self, request: Request) -> Reply:
        """Body: ``slot``, ``lineage``. A home that has lost its rows asks where they are."""
        slot = request.number("slot")
        self._copies.check_lineage(slot, str(request.body["lineage"]))
        self._claimed_s[slot] = request.received_s
        known = self._copies.of(slot)
        if known.copy is None:
            return Reply(body={"copy": None})
        shard = self._shards.get(known.copy.guard)
        if shard is None:
            return Reply(body={"copy": None, "is_awaited": True})
        if shard.incarnation != known.copy.incarnation:
            return Reply(body={"copy": None})
        guard = self._address(known.copy.guard)
        body = {"copy": known.copy.generation, "guard": guard, "epoch": known.epoch}
        return Reply(body=body)

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        if now_s < self._look_s:
            return
        if now_s - self._look_s > PAUSED_S:
            self._awake_s = now_s
        self._look_s = now_s + LOOK_EVERY_S
        places = self._places(now_s)
        due = self._copies.due(self._heard_s(), places, now_s)
        for slot in due.lost:
            self._lose(slot)
        if due.lost or due.taken_over or places.keys() != self._known:
            self.look_again(now_s)
        self._write_down()

    def next_s(self) -> float | None:
        """When `tick` is due."""
        return None if self._copies.takeover_s is None else self._look_s

    def look_again(self, now_s: float) -> None:
        """Shards have come, gone, or say something else of themselves: give guards to those that
        need one. At the start all are waited for, so that they guard one another in turn."""
        places = self._places(now_s)
        self._known = frozenset(places)
        are_all_here = self._shards.keys() >= set(range(self._num_shards))
        if are_all_here or now_s - self._started_s > HERE_S:
            if self._copies.choose_guards(places):
                self._on_changed()
            self._write_down()

    def _places(self, now_s: float) -> dict[int, Place]:
        return {
            slot: Place(
                node=str(shard.facts["node"]),
                process=f"{shard.facts['boot_id']}:{shard.facts['pid']}",
                incarnation=shard.incarnation,
                heard_s=shard.heard_s,
                is_draining=bool(shard.facts.get("draining")),
            )
            for slot, shard in self._shards.items()
            if now_s - shard.heard_s < HERE_S
        }

    def _heard_s(self) -> dict[int, float]:
        """When each slot's shard was heard of last."""
        heard = {}
        for slot in self._slots():
            shard = self._shards.get(slot)
            heard_s = self._awake_s if shard is None else max(self._awake_s, shard.heard_s)
            heard[slot] = max(heard_s, self._claimed_s.get(slot, heard_s))
        return heard

    def hand_over(self, slot: int) -> bool:
        """The shard does not come back: whether its guard takes its place."""
        now_s = time.monotonic()
        is_taken = self._copies.hand_over(slot, self._places(now_s), now_s)
        if is_taken:
            self.look_again(now_s)
            self._write_down()
        return is_taken

    def is_of(self, slot: int, lineage: str) -> bool:
        """Whether an owner's processes may serve the slot."""
        return self._copies.is_of(slot, lineage)

    def _write_down(self) -> None:
        for slot in self._copies.take_changed():
            known = self._copies.slots.get(slot)
            self._journal.copies(slot, None if known is None else known.to_plain())
