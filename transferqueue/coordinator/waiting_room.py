"""Every request that waits, of all partitions: whose it is, and until when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.coordinator.deadlines import Deadlines

if TYPE_CHECKING:
    from transferqueue.coordinator.effects import ClientId, WaiterId
    from transferqueue.coordinator.waiters import Waiter


class WaitingRoom:
    """Requests by id, by client, by partition and by deadline."""

    def __init__(self) -> None:
        self._waiters: dict[WaiterId, tuple[str, Waiter]] = {}
        self._of_client: dict[ClientId, dict[WaiterId, None]] = {}
        self.deadlines: Deadlines[WaiterId] = Deadlines()

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, waiter_id: WaiterId) -> bool:
        return waiter_id in self._waiters

    def enter(self, partition: str, waiter: Waiter) -> None:
        """The request waits."""
        self._waiters[waiter.waiter_id] = (partition, waiter)
        self._of_client.setdefault(waiter.client_id, {})[waiter.waiter_id] = None
        self.deadlines.set(waiter.waiter_id, waiter.deadline_s)

    def leave(self, waiter_id: WaiterId) -> tuple[str, Waiter] | None:
        """The request waits no more; its partition and itself, ``None`` if it did not wait."""
        entry = self._waiters.pop(waiter_id, None)
        if entry is None:
            return None
        client_id = entry[1].client_id
        of_client = self._of_client[client_id]
        del of_client[waiter_id]
        if not of_client:
            del self._of_client[client_id]
        self.deadlines.drop(waiter_id)
        return entry

    def of_client(self, client_id: ClientId) -> list[WaiterId]:
        """What a client waits for, in the order it asked."""
        return list(self._of_client.get(client_id, ()))

    def of_partition(self, partition: str) -> list[WaiterId]:
        """What waits on a partition, in the order it came. O(waiting)."""
        return [key for key, (name, _) in self._waiters.items() if name == partition]
