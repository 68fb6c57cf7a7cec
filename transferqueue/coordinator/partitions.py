"""All partitions by name: declared, made by their first use, dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.coordinator.effects import Effect, FreeRows
from transferqueue.coordinator.partition import Partition
from transferqueue.coordinator.policy import PartitionPolicy
from transferqueue.coordinator.requests import check_names
from transferqueue.coordinator.uid_ranges import GoneUids
from transferqueue.errors import InvalidInput, UnknownPartition, near_names
from transferqueue.wire.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transferqueue.coordinator.leases import Leases
    from transferqueue.coordinator.uid_ranges import Uids
    from transferqueue.homes import Homes


class Partitions:
    """The partitions of one service, and the rows of dropped ones that shards still hold."""

    def __init__(self, leases: Leases, homes: Homes) -> None:
        self._leases = leases
        self._by_name: dict[str, Partition] = {}
        self._declared: set[str] = set()
        self._dropped: dict[tuple[int, str], Uids] = {}
        """(slot, partition) -> rows of dropped partitions whose free was not reported yet."""
        self.homes = homes
        self.gone = GoneUids(homes)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Partition | None:
        """The partition, if there is one."""
        return self._by_name.get(name)

    def known(self, name: str) -> Partition:
        """The partition; UnknownPartition names near ones."""
        partition = self._by_name.get(name)
        if partition is None:
            raise UnknownPartition(name, near_names(name, self._by_name))
        return partition

    def made(self, name: str) -> Partition:
        """The partition, made now if this is its first use: any task, explicit retention."""
        partition = self._by_name.get(name)
        return self._make(name, PartitionPolicy()) if partition is None else partition

    def looked_at(self, name: str) -> Partition:
        """The partition, or an empty one that nobody else sees: to look makes nothing."""
        check_names("partition", (name,))
        partition = self._by_name.get(name)
        return partition or Partition(name, PartitionPolicy(), self._leases, self.gone)

    def forget_unused(self, is_waited_for: Callable[[str], bool]) -> None:
        """Partitions that were only ever waited on, now that nobody does."""
        for name, partition in list(self._by_name.items()):
            has_been_used = partition.table.num_rows or partition.quota.rows_put
            if not (has_been_used or name in self._declared or is_waited_for(name)):
                del self._by_name[name]

    def _make(self, name: str, policy: PartitionPolicy) -> Partition:
        check_names("partition", (name,))
        partition = self._by_name[name] = Partition(name, policy, self._leases, self.gone)
        return partition

    def declare(self, name: str, policy: PartitionPolicy, now_s: float) -> list[Effect]:
        """See ``ControlPlane.create_partition``."""
        partition = self._by_name.get(name)
        if partition is None:
            self._make(name, policy)
        elif name in self._declared:
            _check_same(name, partition.policy, policy)
            return []
        self._declared.add(name)
        return [] if partition is None else partition.adopt(policy, now_s)

    def drop(self, name: str) -> list[Effect]:
        """Forget the partition, and have its rows freed."""
        effects = self.known(name).free_all()
        for free in effects:
            if isinstance(free, FreeRows):
                before = self._dropped.get((free.slot, name), free.uids[:0])
                self._dropped[(free.slot, name)] = np.concatenate((before, free.uids))
        del self._by_name[name]
        self._declared.discard(name)
        return effects

    def terms(self) -> Terms:
        """What shards have to know of them."""
        return Terms(
            limited=frozenset(p.name for p in self if p.policy.limits_puts),
            one_copy=frozenset(p.name for p in self if p.policy.replicas == 1),
            backends={p.name: dict(p.policy.backend) for p in self if p.policy.backend},
        )

    def is_declared(self, name: str) -> bool:
        return name in self._declared

    def dropped(self) -> Mapping[tuple[int, str], Uids]:
        """Rows of dropped partitions by slot and name, whose free was not reported yet."""
        return self._dropped

    def leave(self, slot: int, name: str, uids: Uids) -> None:
        """A slot may hold these rows of a dropped partition still."""
        self._dropped[(slot, name)] = uids
        self.gone.add(uids)

    def cleared_dropped(self, slot: int, name: str, uids: Uids) -> None:
        """A shard has freed these rows, perhaps of a partition that was dropped."""
        dropped = self._dropped.pop((slot, name), None)
        if dropped is None:
            return
        left = dropped[~np.isin(dropped, uids)]
        if len(left):
            self._dropped[(slot, name)] = left

    def told(self, slot: int, uids: Uids) -> None:
        """All rows that a slot holds: of dropped partitions it has freed the others."""
        for (of_slot, name), left in list(self._dropped.items()):
            if of_slot == slot:
                self.cleared_dropped(slot, name, np.setdiff1d(left, uids))

    def frees_of_dropped(self, slot: int) -> list[Effect]:
        """What a slot has not reported as freed."""
        return [
            FreeRows(slot=slot, partition=name, uids=uids)
            for (of_slot, name), uids in self._dropped.items()
            if of_slot == slot
        ]

    def forget_slot(self, slot: int) -> None:
        """The slot's rows are gone, asked for or not."""
        self._dropped = {key: uids for key, uids in self._dropped.items() if key[0] != slot}

    def hint(self, name: str) -> str:
        """What may be wrong with waiting on an empty partition that nobody declared."""
        if name in self._declared or self._by_name[name].table.num_rows:
            return ""
        near = near_names(name, [other for other in self._by_name if other != name])
        hint = f", did you mean {near[0]!r}" if near else ""
        return f"nobody has put anything into partition {name!r}{hint}"


def _check_same(name: str, old: PartitionPolicy, new: PartitionPolicy) -> None:
    was, now = old.to_plain(), new.to_plain()
    changes = [f"{key} {was[key]!r}, now {now[key]!r}" for key in was if was[key] != now[key]]
    if changes:
        raise InvalidInput(f"partition {name!r} was declared otherwise: {'; '.join(changes)}")
