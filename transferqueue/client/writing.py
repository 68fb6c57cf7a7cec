"""Putting a batch: encode columns, send each shard its rows, commit all or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.assembly import ColumnBytes, rows_of
from transferqueue.client.placement import Part, place_new_rows, split_by_slot
from transferqueue.errors import (
    DuplicateRows,
    InvalidInput,
    RowCountMismatch,
    TransferQueueError,
)
from transferqueue.fields import check_name
from transferqueue.net.calls import Call, Outcome, raise_first
from transferqueue.uids import SEQUENCE_BITS, SEQUENCE_MASK, make_uids
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.columns import encode_column
from transferqueue.wire.put import ColumnPlan, PutPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transferqueue.client.local_memory import LocalMemory
    from transferqueue.client.session import Caller
    from transferqueue.fields import FieldSpec
    from transferqueue.wire.columns import ObjectPolicy
    from transferqueue.wire.format import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one put stores, encoded."""

    partition: str
    num_rows: int
    uids: np.ndarray | None  # int64[rows]; None: new rows
    columns: Mapping[str, ColumnBytes]
    tags: Mapping[str, Any]
    overwrite: bool

    @property
    def nbytes(self) -> int:
        return sum(len(column.payload) for column in self.columns.values())

    @property
    def specs(self) -> dict[str, FieldSpec]:
        return {name: column.spec for name, column in self.columns.items()}


def encode_batch(
    columns: Mapping[str, Any],
    *,
    partition: str,
    uids: np.ndarray | None,
    tags: Mapping[str, Any],
    overwrite: bool,
    objects: ObjectPolicy,
) -> Batch:
    """Check and encode everything, so that a bad column is refused before anything is sent."""
    if not columns:
        raise InvalidInput("a put needs at least one field, got none")
    check_name(partition, what="partition")
    num_rows = _count_rows(columns, uids)
    if uids is not None:
        _check_distinct(uids)
    encoded = {}
    for name, value in columns.items():
        column = encode_column(check_name(name, what="field"), value, num_rows, objects=objects)
        encoded[name] = ColumnBytes(
            spec=column.spec, lengths=column.lengths, payload=column.payload
        )
    return Batch(
        partition=partition,
        num_rows=num_rows,
        uids=uids,
        columns=encoded,
        tags=_check_tags(tags, num_rows),
        overwrite=overwrite,
    )


def _count_rows(columns: Mapping[str, Any], uids: np.ndarray | None) -> int:
    """RowCountMismatch names the first column that does not line up."""
    counts = {name: _rows_of(name, value) for name, value in columns.items()}
    if uids is not None:
        expected, what = len(uids), "the handle"
    else:
        what, expected = next(iter(counts.items()))
        what = f"field {what!r}"
    for name, count in counts.items():
        if count != expected:
            raise RowCountMismatch(
                f"field {name!r} beside {what}",
                expected,
                count,
                "every field of a put has one value a row",
            )
    return expected


def _rows_of(name: str, value: Any) -> int:
    try:
        # A jagged tensor has no len; its first size is the number of rows.
        return int(value.shape[0]) if hasattr(value, "shape") else len(value)
    except (TypeError, IndexError):
        raise InvalidInput(
            f"field {name!r} needs one value a row, got a single {type(value).__name__}; "
            f"wrap it in a list, or use meta_info or tags"
        ) from None


def _check_distinct(uids: np.ndarray) -> None:
    distinct, counts = np.unique(uids, return_counts=True)
    if len(distinct) != len(uids):
        raise DuplicateRows(len(uids), len(distinct), distinct[counts > 1][:5].tolist())


def _check_tags(tags: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for name, value in tags.items():
        check_name(name, what="tag")
        if hasattr(value, "numpy") and hasattr(value, "dim"):
            value = value.item() if value.dim() == 0 else value.detach().cpu().numpy()
        if isinstance(value, np.ndarray | list | tuple) and len(value) != num_rows:
            raise RowCountMismatch(
                f"tag {name!r}", num_rows, len(value), "give one value for all rows, or one a row"
            )
        checked[name] = value
    return checked


class Put:
    """One put on its way: reserve on every shard, write, then commit on all.

    A part for a shard whose memory is mapped here is written into the reserved space; others are
    sent with the request that reserves. A failed step gives everything back. A part that is sent
    and is the only one needs no second trip: it commits as it comes.
    """

    def __init__(
        self,
        caller: Caller,
        batch: Batch,
        *,
        timeout_s: float,
        split_bytes: int,
        map_from_bytes: int,
    ) -> None:
        self._caller = caller
        self._batch = batch
        self._timeout_s = timeout_s
        self._parts = [
            _PartPut(part, batch, caller.memory, map_from_bytes)
            for part in self._place(split_bytes)
        ]

    def _place(self, split_bytes: int) -> list[Part]:
        batch, session = self._batch, self._caller.session
        if batch.uids is not None:
            return split_by_slot(batch.uids)
        turn = session.next_turn()
        return place_new_rows(
            batch.num_rows, batch.nbytes, session.slots, turn=turn, split_bytes=split_bytes
        )

    async def run(self) -> np.ndarray:
        """Store the batch; returns the uids of its rows, int64[rows]."""
        if not self._parts:
            return np.empty(0, dtype=np.int64)
        if len(self._parts) == 1 and not self._parts[0].is_mapped:
            calls = [self._reserve_call(self._parts[0], commit=True)]
            outcomes = await self._caller.outcomes(calls, timeout_s=self._timeout_s, parks=True)
            answers = raise_first(outcomes)
        else:
            answers = await self._reserve_and_commit()
        if self._batch.uids is not None:
            return self._batch.uids
        return np.concatenate([_new_uids(answer.body) for answer in answers])

    async def _reserve_and_commit(self) -> list[Message]:
        calls = [self._reserve_call(part, commit=False) for part in self._parts]
        outcomes = await self._caller.outcomes(calls, timeout_s=self._timeout_s, parks=True)
        try:
            for part, answer in zip(self._parts, raise_first(outcomes), strict=True):
                part.write(answer)
        except BaseException:
            await self._abort(outcomes)
            raise
        return await self._commit(outcomes)

    async def _abort(self, outcomes: Sequence[Outcome]) -> None:
        calls = self._part_calls(ops.ABORT, outcomes)
        if calls:
            # A shard that cannot be reached gives the space back at the deadline, or when this
            # process ends.
            await self._caller.outcomes(calls, timeout_s=self._timeout_s)

    async def _commit(self, outcomes: Sequence[Outcome]) -> list[Message]:
        calls = self._part_calls(ops.COMMIT, outcomes)
        return await self._caller.shards(calls, timeout_s=self._timeout_s)

    def _part_calls(self, op: str, outcomes: Sequence[Outcome]) -> list[Call]:
        """``commit`` or ``abort`` for every part that was reserved."""
        return [
            Call(
                endpoint=self._caller.session.shard(part.slot).endpoint,
                op=op,
                body={"put_id": outcome.body["put_id"]},
            )
            for part, outcome in zip(self._parts, outcomes, strict=True)
            if not isinstance(outcome, TransferQueueError)
        ]

    def _reserve_call(self, part: _PartPut, *, commit: bool) -> Call:
        arrays = ArrayWriter()
        body = part.plan().write(arrays)
        body["commit"] = commit
        if part.is_mapped:
            body["payload"], body["writer"] = None, self._caller.memory.process
        else:
            body["payload"] = [arrays.add_bytes(block) for block in part.payloads()]
        shard = self._caller.session.shard(
            part.slot, num_rows=part.num_rows, of_rows=self._batch.num_rows
        )
        return Call(endpoint=shard.endpoint, op=ops.PUT, body=body, frames=arrays.frames)


class _PartPut:
    """The rows of a put that go to one shard."""

    def __init__(self, part: Part, batch: Batch, memory: LocalMemory, map_from_bytes: int) -> None:
        self.slot = part.slot
        self.num_rows = part.num_rows
        self._rows = part.rows
        self._batch = batch
        self._memory = memory
        self._columns = {
            name: rows_of(column, part.rows, batch.num_rows)
            for name, column in batch.columns.items()
        }
        num_bytes = sum(column.num_bytes for column in self._columns.values())
        self.is_mapped = memory.reaches(part.slot) and num_bytes >= map_from_bytes

    def plan(self) -> PutPlan:
        batch = self._batch
        return PutPlan(
            partition=batch.partition,
            num_rows=self.num_rows,
            uids=None if batch.uids is None else batch.uids[self._rows],
            columns=[
                ColumnPlan(
                    name=name,
                    spec=batch.columns[name].spec,
                    lengths=column.lengths,
                    nbytes=column.num_bytes,
                )
                for name, column in self._columns.items()
            ],
            tags={name: _tag_rows(value, self._rows) for name, value in batch.tags.items()},
            overwrite=batch.overwrite,
        )

    def payloads(self) -> Iterator[np.ndarray]:
        """The bytes of each column. Views where the rows follow one another, else copies."""
        for column in self._columns.values():
            yield column.payload()

    def write(self, answer: Message) -> None:
        """Copy each column to where the shard has reserved space for it."""
        if not self.is_mapped:
            return
        addresses = ArrayReader(answer.frames).int64s(answer.body["addresses"])
        for address, column in zip(addresses.tolist(), self._columns.values(), strict=True):
            if column.num_bytes:
                column.copy_to(self._memory.writable(self.slot, address, column.num_bytes))


def _tag_rows(value: Any, rows: slice | np.ndarray) -> Any:
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, list | tuple):
        return list(value[rows]) if isinstance(rows, slice) else [value[i] for i in rows.tolist()]
    return value


def _new_uids(body: Mapping[str, Any]) -> np.ndarray:
    first, num_rows = int(body["first_uid"]), int(body["num_rows"])
    return make_uids(first >> SEQUENCE_BITS, first & SEQUENCE_MASK, num_rows)
