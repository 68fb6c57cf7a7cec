"""The changes of a home, and all that it holds, as steps that are sent one after the other.

A change of few bytes is one step. The bytes of others come before it, in pieces: space is
reserved, filled, and then the last step makes the change. No socket, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.memory.allocator import PAGE_ALIGN_FROM_BYTES
from transferqueue.replication.lost_cells import Unreadable
from transferqueue.shard.cut import cut
from transferqueue.uids import encode_uids
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.chunks import STREAM_FROM_BYTES, Runs
from transferqueue.wire.format import pack_plain, unpack_plain
from transferqueue.wire.put import ColumnPlan, PutPlan
from transferqueue.wire.tags import write_tags

if TYPE_CHECKING:
    from collections.abc import (
        Collection,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from transferqueue.checkpoint.saved_rows import SavedColumn, SavedPartition
    from transferqueue.replication.lost_cells import LostField
    from transferqueue.shard.store import Committed, Store
    from transferqueue.wire.format import Buffer

    Key = tuple[bytes, int]

PIECE_BYTES = STREAM_FROM_BYTES
"""At most so many go with one step."""

GROUP_BYTES = PAGE_ALIGN_FROM_BYTES
"""Cells of smaller slabs are copied together up to so many bytes, into one slab that needs no
pages of its own. A larger slab stays one, so that who maps it later maps one range."""

READER = "copy"
"""Whose leases those of a home's changes and copies are."""


class Kind(StrEnum):
    """What a step does."""

    HEAD = "head"
    """What the home is beside its rows."""
    TAGS = "tags"
    """Of a put that the coordinator may not have heard of."""
    ROWS = "rows"
    """Rows are there, without fields yet."""
    RESERVE = "reserve"
    FILL = "fill"
    PUT = "put"
    SKIP = "skip"
    """Rows were put of which there is no second copy: their uids are given."""
    CLEAR = "clear"
    STRIP = "strip"
    LOST = "lost"
    """There are no bytes of these cells any more. In the place of what was left of their put."""
    COPIED = "copied"
    """All that the home held when the copy began has been sent."""
    COMPLETE = "complete"
    """Whatever is acknowledged from now on was answered by the guard before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One message of a change."""

    kind: Kind
    body: Mapping[str, Any] = field(default_factory=dict)
    frames: Sequence[Buffer] = ()
    bytes_at: Runs | None = None
    """Where the bytes that go with it lie in the sender's memory."""

    @property
    def num_bytes(self) -> int:
        return 0 if self.bytes_at is None else self.bytes_at.total_bytes


def put_steps(
    plan: PutPlan, bytes_at: Runs, key: Key | None = None, *, piece_bytes: int | None = None
) -> Generator[Step]:
    """``bytes_at``: of the columns, one after the other. ``key``: of the request it answers.
    ``piece_bytes``: at most so many go with one step; ``None``: `PIECE_BYTES`.

    Where `Unreadable` is thrown in, what is left of the put is one step that says so. That is for
    rows that the receiver has."""
    try:
        yield from _put_steps(plan, bytes_at, key, piece_bytes)
    except Unreadable:
        yield _lost_step(plan.partition, [column.name for column in plan.columns], plan.uids)


def _put_steps(
    plan: PutPlan, bytes_at: Runs, key: Key | None = None, piece_bytes: int | None = None
) -> Generator[Step]:
    most = piece_bytes or PIECE_BYTES
    arrays = ArrayWriter()
    body = {"plan": _pack(plan.write(arrays), arrays), "key": _plain(key)}
    if bytes_at.total_bytes <= most:
        yield Step(kind=Kind.PUT, body=body, frames=arrays.frames, bytes_at=bytes_at)
        return
    yield Step(kind=Kind.RESERVE, body=body, frames=arrays.frames)
    for offset in range(0, bytes_at.total_bytes, most):
        nbytes = min(most, bytes_at.total_bytes - offset)
        piece = Runs(*bytes_at.cut(offset, nbytes))
        yield Step(kind=Kind.FILL, body={"offset": offset}, bytes_at=piece)
    yield Step(kind=Kind.PUT, body={"plan": None, "key": _plain(key)})


def _lost_step(partition: str, fields: Sequence[str], uids: np.ndarray | None) -> Step:
    assert uids is not None
    arrays = ArrayWriter()
    body = {"partition": partition, "fields": list(fields), "uids": arrays.add(uids)}
    return Step(kind=Kind.LOST, body=body, frames=arrays.frames)


def skip_steps(partition: str, num_rows: int) -> Generator[Step]:
    yield Step(kind=Kind.SKIP, body={"partition": partition, "num_rows": num_rows})


def clear_steps(partition: str, uids: np.ndarray | None, key: Key | None) -> Generator[Step]:
    """``uids`` ``None``: all of the partition."""
    arrays = ArrayWriter()
    body = {"partition": partition, "uids": arrays.add_optional(uids), "key": _plain(key)}
    yield Step(kind=Kind.CLEAR, body=body, frames=arrays.frames)


def strip_steps(partition: str, uids: np.ndarray, fields: Sequence[str]) -> Generator[Step]:
    arrays = ArrayWriter()
    body = {"partition": partition, "uids": arrays.add(uids), "fields": list(fields)}
    yield Step(kind=Kind.STRIP, body=body, frames=arrays.frames)


def complete_steps() -> Generator[Step]:
    yield Step(kind=Kind.COMPLETE)


class FullCopy:
    """All that a store shows at one moment. Its memory is held until `close`."""

    def __init__(
        self,
        store: Store,
        *,
        answers: Mapping[Key, list[Any]],
        tagged: Sequence[Committed],
        one_copy: Collection[str],
        now_s: float,
        lost: Iterable[LostField] = (),
    ) -> None:
        """``answers``: to requests that changed something. ``tagged``: puts whose tags nobody else
        may have. ``one_copy``: partitions that are not copied. ``lost``: cells of which this store
        has no bytes."""
        self._store = store
        self._lost = list(lost)
        self._cut = cut(store, (), without=one_copy)
        slabs = [column.slab_ids for column in self._cut.columns]
        self._lease = store.leases.acquire(
            READER, np.concatenate([np.empty(0, np.int32), *slabs]), now_s
        )
        self._head = {
            "next_uid": store.next_uid,
            "lost_below": store.lost_below,
            "lost_in": dict(store.lost_in),
            "one_copy": [name for name in one_copy if name in store.partitions],
            "answers": [[*key, *said] for key, said in answers.items()],
            "parts": store.split_puts.ended_to_plain(),
            "backends": {name: dict(choice) for name, choice in store.choice.of.items()},
        }
        self._tagged = list(tagged)
        self.total_bytes = sum(column.runs.total_bytes for column in self._cut.columns)

    def steps(self) -> Generator[Step]:
        """Once. See `put_steps` for bytes that cannot be read."""
        arrays = ArrayWriter()
        head = {"head": _pack(self._head, arrays)}
        yield Step(kind=Kind.HEAD, body=head, frames=arrays.frames)
        for committed in self._tagged:
            yield _tags_step(committed)
        columns = iter(self._cut.columns)
        for partition in self._cut.partitions:
            yield from _rows_steps(partition)
            for column in partition.columns:
                yield from _column_steps(partition, column, next(columns).runs)
        for one in self._lost:
            yield _lost_step(one.partition, [one.field], one.uids)
        yield Step(kind=Kind.COPIED)

    def close(self) -> None:
        """Idempotent."""
        self._store.release(READER, [self._lease])


def _tags_step(committed: Committed) -> Step:
    arrays = ArrayWriter()
    body = {
        "partition": committed.partition,
        "uids": arrays.add(committed.uids),
        "tags": _pack(write_tags(committed.tags, arrays), arrays),
    }
    return Step(kind=Kind.TAGS, body=body, frames=arrays.frames)


_MAX_UIDS = 1 << 24
"""A code of uids holds no more."""


def _rows_steps(partition: SavedPartition) -> Generator[Step]:
    for start in range(0, len(partition.uids), _MAX_UIDS):
        arrays = ArrayWriter()
        code = encode_uids(partition.uids[start : start + _MAX_UIDS])
        uids = arrays.add_bytes(np.frombuffer(code, np.uint8))
        body = {"partition": partition.name, "uids": uids}
        yield Step(kind=Kind.ROWS, body=body, frames=arrays.frames)


def _column_steps(partition: SavedPartition, column: SavedColumn, runs: Runs) -> Generator[Step]:
    uids, sizes = partition.uids[column.present], column.sizes
    ends = np.cumsum(sizes)

    def put(first: int, last: int) -> tuple[PutPlan, Runs]:
        low, high = int(ends[first] - sizes[first]), int(ends[last - 1])
        spec = column.specs[int(column.spec_of_slab[column.slabs[first]])]
        plan = PutPlan(
            partition=partition.name,
            num_rows=last - first,
            uids=uids[first:last],
            columns=[
                ColumnPlan(
                    name=column.field,
                    spec=spec,
                    lengths=column.lengths[first:last] if spec.has_lengths else None,
                    nbytes=high - low,
                )
            ],
        )
        return plan, Runs(*runs.cut(low, high - low))

    for first, last in _groups(column, sizes):
        slabs = column.slabs[first:last]
        edges = (np.flatnonzero(np.diff(slabs)) + 1 + first).tolist()
        if not edges:
            yield from put_steps(*put(first, last))
            continue
        try:
            yield from _put_steps(*put(first, last))
        except Unreadable:  # each slab alone: a store may have lost one of them and have the next
            for low, high in pairwise([first, *edges, last]):
                yield from put_steps(*put(low, high))


def _groups(column: SavedColumn, sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cells that go together: first and one after the last."""
    slabs = column.slabs
    spec = column.spec_of_slab[slabs]
    is_large = (np.bincount(slabs, weights=sizes) >= GROUP_BYTES)[slabs]
    block = (np.cumsum(sizes) - sizes) // GROUP_BYTES
    other_slab = slabs[1:] != slabs[:-1]
    ends_here = spec[1:] != spec[:-1]
    ends_here |= other_slab & (is_large[1:] | is_large[:-1])
    ends_here |= (block[1:] != block[:-1]) & ~is_large[1:]
    edges = [0, *(np.flatnonzero(ends_here) + 1).tolist(), len(slabs)]
    yield from pairwise(edges)


def _pack(plain: Any, arrays: ArrayWriter) -> int:
    """Plain values as a frame, whose number this is: a header has no room for all that there may
    be. `unpack` is the inverse."""
    return arrays.add_bytes(np.frombuffer(pack_plain(plain), np.uint8))


def unpack(arrays: ArrayReader, frame: object) -> Any:
    return unpack_plain(arrays.get_bytes(frame).data)


def _plain(key: Key | None) -> list[Any] | None:
    return None if key is None else list(key)
