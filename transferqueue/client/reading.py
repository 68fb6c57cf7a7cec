"""Getting columns: ask the home shards, join what they send, decode."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.assembly import ColumnBytes, GotPart, expand_rows, join_parts
from transferqueue.client.placement import Part, split_by_slot
from transferqueue.net.calls import Call
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.columns import decode_column
from transferqueue.wire.get import read_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.client.local_memory import Lease
    from transferqueue.client.session import Caller
    from transferqueue.wire.columns import ObjectPolicy
    from transferqueue.wire.format import Message
    from transferqueue.wire.get import GotColumn


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
        self._timeout_s = timeout_s
        self._uids, self._inverse = _distinct(uids)
        self._parts = split_by_slot(self._uids)

    async def run(self) -> dict[str, ColumnBytes]:
        """The columns as bytes. RowsGone, FieldsMissing, FieldSpecMismatch."""
        calls = [self._call(part) for part in self._parts]
        answers = await self._caller.shards(calls, timeout_s=self._timeout_s)
        return self._join(answers)

    def _call(self, part: Part) -> Call:
        arrays = ArrayWriter()
        memory = self._caller.memory
        body: dict[str, Any] = {
            "partition": self._partition,
            "uids": arrays.add(self._uids[part.rows]),
            "fields": self._fields,
            "optional": self._optional,
            "reader": memory.process if memory.reaches(part.slot) else None,
        }
        shard = self._caller.session.shard(
            part.slot, num_rows=part.num_rows, of_rows=len(self._uids)
        )
        return Call(endpoint=shard.endpoint, op=ops.GET, body=body, frames=arrays.frames)

    def _join(self, answers: Sequence[Message]) -> dict[str, ColumnBytes]:
        by_part = [
            self._filled(part, answer) for part, answer in zip(self._parts, answers, strict=True)
        ]
        joined: dict[str, ColumnBytes] = {}
        for field in (*self._fields, *self._optional):
            parts = [
                GotPart(rows=part.rows, num_rows=part.num_rows, column=columns[field])
                for part, columns in zip(self._parts, by_part, strict=True)
                if field in columns
            ]
            if parts:
                joined[field] = self._expand(join_parts(field, len(self._uids), parts))
        return joined

    def _filled(self, part: Part, answer: Message) -> dict[str, GotColumn]:
        """A shard's columns, those that it left in place mapped or copied from there."""
        columns = read_columns(answer.body, ArrayReader(answer.frames))
        lease_id = answer.body["lease_id"]
        if lease_id is None:
            return columns
        endpoint = self._caller.session.shard(part.slot).endpoint
        lease = self._caller.memory.lease(part.slot, endpoint, int(lease_id))
        return {
            name: column if column.starts is None else self._read(lease, column)
            for name, column in columns.items()
        }

    def _read(self, lease: Lease, column: GotColumn) -> GotColumn:
        assert column.starts is not None
        return replace(
            column,
            payload=self._caller.memory.read(lease, column.starts, column.sizes()),
            starts=None,
        )

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
            column.spec, column.payload, column.lengths, num_rows, objects=objects
        )
        if column.present is not None:
            decoded[present_name(field)] = column.present
    return decoded
