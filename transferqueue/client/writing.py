"""Putting a batch: encode columns, send each shard its rows, commit all or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.assembly import ColumnBytes, take_rows
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
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.columns import encode_column
from transferqueue.wire.put import ColumnPlan, PutPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.session import Caller
    from transferqueue.fields import FieldSpec
    from transferqueue.wire.columns import ObjectPolicy


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
    """One put on its way. Steps: stage on every shard, then commit on all; a failed stage gives
    everything back. With one shard both steps are one trip."""

    def __init__(self, caller: Caller, batch: Batch, *, timeout_s: float, split_bytes: int) -> None:
        self._caller = caller
        self._batch = batch
        self._timeout_s = timeout_s
        self._parts = self._place(split_bytes)

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
        if len(self._parts) == 1:
            calls = [self._call(self._parts[0], commit=True)]
            outcomes = await self._caller.outcomes(calls, timeout_s=self._timeout_s, parks=True)
            answers = raise_first(outcomes)
        else:
            put_ids = await self._stage()
            answers = await self._commit(put_ids)
        if self._batch.uids is not None:
            return self._batch.uids
        return np.concatenate([_new_uids(answer.body) for answer in answers])

    async def _stage(self) -> list[int]:
        calls = [self._call(part, commit=False) for part in self._parts]
        outcomes = await self._caller.outcomes(calls, timeout_s=self._timeout_s, parks=True)
        if any(isinstance(outcome, TransferQueueError) for outcome in outcomes):
            await self._abort(outcomes)
        return [int(message.body["put_id"]) for message in raise_first(outcomes)]

    async def _abort(self, outcomes: Sequence[Outcome]) -> None:
        calls = [
            self._part_call(part, ops.ABORT, outcome.body["put_id"])
            for part, outcome in zip(self._parts, outcomes, strict=True)
            if not isinstance(outcome, TransferQueueError)
        ]
        if calls:
            # A shard that cannot be reached gives the space back at the put's deadline.
            await self._caller.outcomes(calls, timeout_s=self._timeout_s)

    async def _commit(self, put_ids: Sequence[int]) -> list[Any]:
        calls = [
            self._part_call(part, ops.COMMIT, put_id)
            for part, put_id in zip(self._parts, put_ids, strict=True)
        ]
        return await self._caller.shards(calls, timeout_s=self._timeout_s)

    def _part_call(self, part: Part, op: str, put_id: int) -> Call:
        return Call(
            endpoint=self._caller.session.shard(part.slot).endpoint,
            op=op,
            body={"put_id": put_id},
        )

    def _call(self, part: Part, *, commit: bool) -> Call:
        batch = self._batch
        columns = {
            name: take_rows(column, part.rows, batch.num_rows)
            for name, column in batch.columns.items()
        }
        plan = PutPlan(
            partition=batch.partition,
            num_rows=part.num_rows,
            uids=None if batch.uids is None else batch.uids[part.rows],
            columns=[
                ColumnPlan(
                    name=name,
                    spec=column.spec,
                    lengths=column.lengths,
                    nbytes=len(column.payload),
                )
                for name, column in columns.items()
            ],
            tags={name: _tag_rows(value, part.rows) for name, value in batch.tags.items()},
            overwrite=batch.overwrite,
        )
        arrays = ArrayWriter()
        body = plan.write(arrays)
        body["payload"] = [arrays.add_bytes(column.payload) for column in columns.values()]
        body["commit"] = commit
        shard = self._caller.session.shard(
            part.slot, num_rows=part.num_rows, of_rows=batch.num_rows
        )
        return Call(endpoint=shard.endpoint, op=ops.PUT, body=body, frames=arrays.frames)


def _tag_rows(value: Any, rows: slice | np.ndarray) -> Any:
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, list | tuple):
        return list(value[rows]) if isinstance(rows, slice) else [value[i] for i in rows.tolist()]
    return value


def _new_uids(body: Mapping[str, Any]) -> np.ndarray:
    first, num_rows = int(body["first_uid"]), int(body["num_rows"])
    return make_uids(first >> SEQUENCE_BITS, first & SEQUENCE_MASK, num_rows)
