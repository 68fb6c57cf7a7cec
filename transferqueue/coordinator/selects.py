"""Looking rows up without taking them, and waiting until there are some."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.coordinator.effects import Effect, Refuse, Reply, Selection
from transferqueue.errors import FieldSpecMismatch, NotReady

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transferqueue.coordinator.effects import WaiterId
    from transferqueue.coordinator.row_set import Rows
    from transferqueue.coordinator.specs import Spec
    from transferqueue.coordinator.table import Table
    from transferqueue.coordinator.tags import TagTable
    from transferqueue.coordinator.waiters import SelectWaiter


class Selects:
    """The selects of one partition. Each looks at all rows: they are for small partitions, as
    published weights are, or for rare questions."""

    def __init__(self, table: Table, tags: TagTable) -> None:
        self._table = table
        self._tags = tags
        self._waiting: OrderedDict[WaiterId, SelectWaiter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def waiting(self) -> Iterable[SelectWaiter]:
        """Every select that waits."""
        return self._waiting.values()

    def num_matching(self, waiter: SelectWaiter) -> int:
        """How many rows it would get now. O(rows)."""
        return len(self._matching(waiter, self._table.live_rows()))

    def park(self, waiter: SelectWaiter) -> list[Effect]:
        """Answer at once if enough rows match, else wait."""
        answer = self._try(waiter)
        if answer is None:
            self._waiting[waiter.waiter_id] = waiter
            return []
        return [answer]

    def arrive(self, rows: Rows) -> list[Effect]:
        """These live rows have changed."""
        effects: list[Effect] = []
        for waiter in list(self._waiting.values()):
            if not len(self._matching(waiter, rows)):
                continue
            answer = self._try(waiter)
            if answer is not None:
                del self._waiting[waiter.waiter_id]
                effects.append(answer)
        return effects

    def leave(self, waiter: SelectWaiter) -> None:
        """It waits no more."""
        del self._waiting[waiter.waiter_id]

    def give_up(self, waiter: SelectWaiter, now_s: float, hint: str) -> Effect:
        """Its deadline has come."""
        self.leave(waiter)
        ready = self.num_matching(waiter)
        error = NotReady(waiter.min_rows, ready, {}, now_s - waiter.parked_s, hint)
        return Refuse(waiter_id=waiter.waiter_id, error=error)

    def _matching(self, waiter: SelectWaiter, rows: Rows) -> Rows:
        for field in waiter.fields:
            rows = rows[self._table.is_ready(field, rows)]
        if waiter.where is not None:
            rows = rows[waiter.where.mask(self._tags, rows)]
        if waiter.order_by is not None:
            column = self._tags.columns.get(waiter.order_by)
            rows = rows[:0] if column is None else rows[column.present(rows)]
        return rows

    def _try(self, waiter: SelectWaiter) -> Effect | None:
        rows = self._matching(waiter, self._table.live_rows())
        if len(rows) < waiter.min_rows:
            return None
        rows = self._ordered(waiter, rows)[: waiter.n]
        try:
            asked = {field: self._table.spec(field, rows) for field in waiter.fields if len(rows)}
        except FieldSpecMismatch as error:
            return Refuse(waiter_id=waiter.waiter_id, error=error)
        tags = self._tags.get(rows)
        selection = Selection(
            uids=self._table.uids(rows),
            fields={**self._common(rows), **asked},
            tags={name: values.to_column() for name, values in tags.items()},
        )
        return Reply(waiter_id=waiter.waiter_id, payload=selection)

    def _ordered(self, waiter: SelectWaiter, rows: Rows) -> Rows:
        if waiter.order_by is None or not len(rows):
            return rows
        values = self._tags.column(waiter.order_by).get(rows).values
        rank = np.unique(values, return_inverse=True)[1]
        return rows[np.argsort(-rank if waiter.descending else rank, kind="stable")]

    def _common(self, rows: Rows) -> dict[str, Spec]:
        """Every field that all rows have; one whose rows cannot be described as one is left out,
        as nobody asked for it by name."""
        common: dict[str, Spec] = {}
        for field in self._table.common_fields(rows) if len(rows) else ():
            try:
                common[field] = self._table.spec(field, rows)
            except FieldSpecMismatch:
                continue
        return common
