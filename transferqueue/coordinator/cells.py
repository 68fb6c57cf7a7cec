"""Waits for (uid, field) cells of one partition."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from transferqueue.coordinator.effects import CellsReady, Effect, Refuse, Reply
from transferqueue.coordinator.waiters import lost_rows
from transferqueue.errors import TransferQueueError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transferqueue.coordinator.effects import WaiterId
    from transferqueue.coordinator.table import Table
    from transferqueue.coordinator.uid_ranges import Uids
    from transferqueue.coordinator.waiters import CellWaiter
    from transferqueue.homes import Homes


class CellWaits:
    """Those that wait, in the order they came."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[WaiterId, CellWaiter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> Iterable[CellWaiter]:
        """Every one of them."""
        return self._waiting.values()

    def park(self, waiter: CellWaiter, table: Table) -> list[Effect]:
        """Answer at once if everything is there, else wait."""
        waiter.look(table)
        if not waiter.missing:
            return [_answer(waiter, table)]
        self._waiting[waiter.waiter_id] = waiter
        return []

    def arrive(self, fields: Iterable[str], uids: Uids, table: Table) -> list[Effect]:
        """These ascending uids have these fields now."""
        fields = list(fields)
        done = [waiter for waiter in self._waiting.values() if waiter.arrive(fields, uids)]
        for waiter in done:
            del self._waiting[waiter.waiter_id]
        return [_answer(waiter, table) for waiter in done]

    def refuse_gone(self, uids: Uids) -> list[Effect]:
        """These ascending uids were freed."""
        return self._refuse([w.gone(uids) for w in self._waiting.values()])

    def refuse_lost(self, slot: int, homes: Homes) -> list[Effect]:
        """The shard of this slot is gone for good."""
        return self._refuse([lost_rows(w, w.uids, slot, homes) for w in self._waiting.values()])

    def _refuse(self, answers: list[Refuse | None]) -> list[Effect]:
        refusals: list[Effect] = [answer for answer in answers if answer is not None]
        for refusal in refusals:
            assert isinstance(refusal, Refuse)
            del self._waiting[refusal.waiter_id]
        return refusals

    def leave(self, waiter: CellWaiter) -> None:
        """It waits no more."""
        del self._waiting[waiter.waiter_id]

    def give_up(self, waiter: CellWaiter, now_s: float, hint: str) -> Effect:
        """Its deadline has come."""
        self.leave(waiter)
        return waiter.give_up(now_s, hint)


def _answer(waiter: CellWaiter, table: Table) -> Effect:
    rows = table.find(waiter.uids)
    try:
        fields = {field: table.spec(field, rows) for field in waiter.fields}
    except TransferQueueError as error:
        return Refuse(waiter_id=waiter.waiter_id, error=error)
    return Reply(waiter_id=waiter.waiter_id, payload=CellsReady(fields=fields))
