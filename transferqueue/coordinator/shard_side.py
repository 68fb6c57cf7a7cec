"""The side of the control plane that shards and producers see: what is stored, freed, let in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.config import MAX_SHARDS
from transferqueue.coordinator.effects import ClientId, Effect, FreeRows, WaiterId
from transferqueue.coordinator.leases import Leases
from transferqueue.coordinator.partitions import Partitions
from transferqueue.coordinator.requests import MAX_NAME_CHARS, committed_tags, committed_uids
from transferqueue.coordinator.specs import Spec, spec_from_plain
from transferqueue.coordinator.waiters import PutWaiter, Waiter
from transferqueue.coordinator.waiting_room import WaitingRoom
from transferqueue.errors import InvalidInput
from transferqueue.homes import NAMED, Homes, UidRange
from transferqueue.wire.tags import SITE_TAG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from transferqueue.coordinator.partition import Partition
    from transferqueue.coordinator.uid_ranges import Uids


class ShardSide:
    """All partitions of one service, as the shards fill and empty them.

    ``first_claim_id`` lets a coordinator that is started again go on above the ids it gave before.
    """

    def __init__(self, *, first_claim_id: int = 1, homes: Homes = NAMED) -> None:
        self._leases = Leases(first_claim_id)
        self._partitions = Partitions(self._leases, homes)
        self._room = WaitingRoom()
        self.next_slot = 0
        """Above every slot that a shard has or may still come with. Uids are of a slot and never
        come back, so neither does a slot."""

    @property
    def leases(self) -> Leases:
        return self._leases

    @property
    def partitions(self) -> Partitions:
        return self._partitions

    def commit(
        self,
        *,
        now_s: float,
        slot: int,
        partition: str,
        uids: NDArray[np.int64],
        fields: Mapping[str, Spec],
        tags: Mapping[str, Any] | None = None,
        nbytes: Mapping[str, int] | None = None,
    ) -> list[Effect]:
        """These cells are stored. Known ones are no-ops, so a stream may be sent again.

        ``tags``: name -> scalar for all rows, or an array or list of ``len(uids)``. ``nbytes``:
        bytes of each field over all of the rows. Rows that were freed before stay freed.
        """
        uids, order = committed_uids(slot, uids, self._partitions.homes)
        specs = {field: spec_from_plain(field, spec) for field, spec in fields.items()}
        tags = dict(tags or {})
        site = str(tags.pop(SITE_TAG, ""))[:MAX_NAME_CHARS]
        good_tags, bad_tags = committed_tags(tags, order)
        made = self._partitions.made(partition)
        for name in bad_tags:
            made.count_refused_tag(name, len(uids))
        effects = made.commit(slot, uids, specs, good_tags, nbytes or {}, now_s, site)
        return self._finish(effects)

    def cleared(
        self,
        *,
        now_s: float,
        slot: int,
        partition: str,
        uids: NDArray[np.int64],
        nbytes: Mapping[str, int] | None = None,
    ) -> list[Effect]:
        """These rows are gone from the shard, whoever asked for it. Unknown ones are no-ops.

        ``nbytes``: the bytes that came free by field; without it the field's mean is assumed.
        """
        self._partitions.cleared_dropped(slot, partition, uids)
        self._partitions.gone.add(uids)
        known = self._partitions.get(partition)
        return [] if known is None else self._finish(known.cleared(uids, nbytes or {}, now_s))

    def slot_joined(self, slot: int, *, now_s: float) -> list[Effect]:
        """A shard is back: ask again for every free it has not reported as done."""
        self.next_slot = max(self.next_slot, slot + 1)
        effects: list[Effect] = []
        self._partitions.gone.lost_slots.discard(slot)
        for partition in self._partitions:
            partition.quota.void_credit(slot)
            effects += partition.frees_of(slot) + partition.settle(now_s)
        return self._finish(effects + self._partitions.frees_of_dropped(slot))

    def give_slot(self) -> tuple[int, UidRange]:
        """A slot for a shard that is about to be started, and the uids that it may give to rows.
        InvalidInput when there are no more."""
        slot = self.next_slot
        uids = self._partitions.homes.new_uids_of(slot) if slot < MAX_SHARDS else None
        if uids is None:
            raise InvalidInput(
                f"all {slot:,} slots of the service have been given to shards; a checkpoint can be "
                f"restored onto more"
            )
        self.next_slot += 1
        return slot, uids

    def slot_told(
        self, slot: int, uids: NDArray[np.int64], *, next_uid: int, now_s: float
    ) -> list[Effect]:
        """A shard that is another process now has told of all its rows: ascending ``uids``.

        Others of the slot are gone: known ones, which it lost, and every one below
        ``next_uid`` that nobody will put any more.
        """
        effects: list[Effect] = []
        for partition in self._partitions:
            effects += _lose_others(partition, slot, uids, now_s)
        self._partitions.gone.add_all_but(slot, uids, next_uid)
        self._partitions.told(slot, uids)
        return self._finish(effects)

    def slot_lost(self, slot: int, *, now_s: float) -> list[Effect]:
        """A shard is gone for good: so are its rows; what waits for them is told (RowsLost)."""
        effects: list[Effect] = []
        self._partitions.gone.lost_slots.add(slot)
        for partition in self._partitions:
            partition.quota.void_credit(slot)
            effects += partition.lose_slot(slot, now_s)
        self._partitions.forget_slot(slot)
        return self._finish(effects)

    def admit(
        self,
        *,
        now_s: float,
        waiter_id: WaiterId,
        client_id: ClientId,
        slot: int,
        partition: str,
        num_rows: int,
        num_bytes: int,
        deadline_s: float,
    ) -> list[Effect]:
        """Ask for room for new rows of a shard; answered with ``Admitted`` when there is.

        The room is the slot's until a commit uses it or ``return_credit`` hands it back. Only new
        rows ask: further fields of rows that are in are counted, and never wait (a stage that
        could not add its field would keep the others from freeing anything).
        """
        waiter = PutWaiter(
            waiter_id=waiter_id,
            client_id=client_id,
            parked_s=now_s,
            deadline_s=deadline_s,
            slot=slot,
            num_rows=num_rows,
            num_bytes=num_bytes,
        )
        made = self._partitions.made(partition)
        return self._enter(made, waiter, made.admit(waiter, now_s))

    def return_credit(
        self, *, now_s: float, slot: int, partition: str, num_rows: int, num_bytes: int
    ) -> list[Effect]:
        """Give back room that was admitted and will not be used."""
        known = self._partitions.get(partition)
        if known is None:
            return []
        known.quota.return_credit(slot, num_rows, num_bytes)
        return self._finish(known.settle(now_s))

    def _enter(self, partition: Partition, waiter: Waiter, effects: list[Effect]) -> list[Effect]:
        """The request waits, unless these effects answer it."""
        self._room.enter(partition.name, waiter)
        return self._finish(effects)

    def _finish(self, effects: list[Effect]) -> list[Effect]:
        """Those that are answered wait no more."""
        for effect in effects:
            if not isinstance(effect, FreeRows):
                self._room.leave(effect.waiter_id)
        return effects


def _lose_others(partition: Partition, slot: int, uids: Uids, now_s: float) -> list[Effect]:
    """Of the slot only these rows, ascending, are still there."""
    mine = partition.table.uids(partition.table.present_rows())
    at = partition.homes.split(mine).get(slot)
    if at is None:
        return []
    lost = np.setdiff1d(mine[at], uids, assume_unique=True)
    return partition.cleared(lost, {}, now_s) if len(lost) else []
