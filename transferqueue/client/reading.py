"""Getting columns: ask the home shards, join what they have, decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.assembly import ColumnBytes, JoinedColumn, expand_rows
from transferqueue.client.deadline import Deadline
from transferqueue.client.part_gets import PartGet
from transferqueue.client.placement import split_by_home
from transferqueue.errors import (
    ArenaReplaced,
    NoSecondCopy,
    ServiceUnreachable,
    TransferExpired,
    TransferQueueError,
)
from transferqueue.net.calls import raise_first
from transferqueue.wire.columns import decode_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.client.session import Caller
    from transferqueue.net.calls import Call
    from transferqueue.wire.columns import ObjectPolicy


def present_name(field: str) -> str:
    """The mask that comes beside an optional field that only some rows have."""
    return f"{field}.present"


class Get:
    """One get: fields of rows, in the order of ``uids``, which may repeat."""

    def __init__(
        self,
        caller: Caller,
        *,
        partition: str,
        uids: np.ndarray,
        fields: Sequence[str],
        optional: Sequence[str],
        timeout_s: float,
    ) -> None:
        self._caller = caller
        self._partition = partition
        self._fields = list(fields)
        self._optional = list(optional)
        self._deadline = Deadline(timeout_s)
        self._uids, self._inverse = _distinct(uids)
        self._rows = split_by_home(self._uids, caller.session.homes)
        self._at_guard: set[int] = set()
        """Slots whose rows are got from their second copy."""

    async def run(self) -> dict[str, ColumnBytes]:
        """The columns as bytes. RowsGone, FieldsMissing, FieldSpecMismatch."""
        slots = [part.slot for part in self._rows]
        await self._caller.know(slots, timeout_s=self._deadline.left_s())
        while True:
            try:
                return await self._fetch()
            except TransferExpired:  # a link was down for too long, or a shard was started again
                if not self._deadline.left_s():
                    raise
            except ArenaReplaced:
                if not self._deadline.left_s():
                    raise
                await self._caller.look_again(timeout_s=self._deadline.left_s())
            except (ServiceUnreachable, NoSecondCopy) as error:
                if self._deadline.left_s() and self._turned_to(error):
                    continue
                await self._caller.check_there(self._rows)
                raise

    def _turned_to(self, error: TransferQueueError) -> bool:
        """Whether there is another copy to ask: that of the guard after its home was silent, and
        the other way round. A slot that is not the one that failed is asked where it was."""
        slots = {part.slot for part in self._rows if self._is_of(part.slot, error)}
        self._at_guard ^= slots
        return bool(slots)

    def _is_of(self, slot: int, error: TransferQueueError) -> bool:
        session = self._caller.session
        guard = session.guard_of(slot)
        if guard is None:
            return False
        if isinstance(error, NoSecondCopy):
            return bool(error.args[0] == slot)
        asked = guard if slot in self._at_guard else slot
        return bool(error.args[0] == session.shard(asked).endpoint)

    async def _fetch(self) -> dict[str, ColumnBytes]:
        parts = [
            PartGet(rows, self._caller, at_guard=rows.slot in self._at_guard) for rows in self._rows
        ]
        calls = [self._call(part) for part in parts]
        outcomes = await self._caller.outcomes(calls, timeout_s=self._deadline.left_s())
        joined: dict[str, JoinedColumn] = {}
        try:
            for part, outcome in zip(parts, outcomes, strict=True):
                if not isinstance(outcome, TransferQueueError):
                    part.take(outcome)
            raise_first(outcomes)
            joined.update(self._join(parts))
            await self._stream(parts)
        except BaseException:
            # The error keeps this frame, and that would keep what was mapped.
            joined.clear()
            for part in parts:
                part.let_go()
            await self._caller.tell([part.done() for part in parts if part.is_streamed])
            raise
        return {field: self._expand(column.finish()) for field, column in joined.items()}

    def _call(self, part: PartGet) -> Call:
        return part.call(
            partition=self._partition,
            uids=self._uids,
            fields=self._fields,
            optional=self._optional,
            timeout_s=self._deadline.left_s(),
        )

    def _join(self, parts: Sequence[PartGet]) -> dict[str, JoinedColumn]:
        joined: dict[str, JoinedColumn] = {}
        for field in (*self._fields, *self._optional):
            having = [part for part in parts if field in part.columns]
            if having:
                got = [part.got(field) for part in having]
                joined[field] = column = JoinedColumn(field, len(self._uids), got)
                for number, part in enumerate(having):
                    if got[number].payload is None:
                        part.targets[field] = column.target(number)
        return joined

    async def _stream(self, parts: Sequence[PartGet]) -> None:
        """Fetch what comes in chunks. TransferExpired when a shard did not hold it to the end."""
        streamed = [part for part in parts if part.is_streamed]
        if not streamed:
            return
        flows = [part.flow() for part in streamed]
        await self._caller.flow(flows, timeout_s=self._deadline.last_step_s())
        calls = [part.done() for part in streamed]
        for part, answer in zip(
            streamed,
            await self._caller.shards(calls, timeout_s=self._deadline.last_step_s()),
            strict=True,
        ):
            part.check_held(answer)

    def _expand(self, column: ColumnBytes) -> ColumnBytes:
        if self._inverse is None:
            return column
        return expand_rows(column, self._inverse, len(self._uids))


def _distinct(uids: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The uids each once, and how to get the asked for rows from them (``None``: they are it)."""
    if len(uids) < 2 or (np.diff(uids) > 0).all():
        return uids, None
    distinct, inverse = np.unique(uids, return_inverse=True)
    return (uids, None) if len(distinct) == len(uids) else (distinct, inverse)


def decode_columns(
    columns: dict[str, ColumnBytes], num_rows: int, *, objects: ObjectPolicy
) -> dict[str, Any]:
    """Tensors and arrays over the bytes; a mask beside each column that is only partly there."""
    decoded: dict[str, Any] = {}
    for field, column in columns.items():
        decoded[field] = decode_column(
            column.spec, column.payload, column.lengths, num_rows, field=field, objects=objects
        )
        if column.present is not None:
            decoded[present_name(field)] = column.present
    return decoded
