"""The rows of a put that go to one shard, and the four ways for their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.several import ADDRESS_BITS, own_address
from transferqueue.client import device_fills
from transferqueue.client.column_bytes import rows_of
from transferqueue.client.counted_copies import STEP_BYTES
from transferqueue.client.device_puts import DeviceRows, ScatteredRows
from transferqueue.client.windows import Move
from transferqueue.errors import HandleRefused
from transferqueue.net.calls import Call, Flow
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.chunks import CHUNK_BYTES, MAX_FRAMES, WINDOW_CHUNKS, ChunkGrid
from transferqueue.wire.put import BY_WRITE, ColumnPlan, PutPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transferqueue.client.batch import Batch
    from transferqueue.client.column_bytes import ColumnRows
    from transferqueue.client.counted_copies import Moved
    from transferqueue.client.device_access import DeviceAccess
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.device_sides import Ways
    from transferqueue.client.local_memory import LocalMemory
    from transferqueue.client.placement import Part
    from transferqueue.client.session import ShardAddress
    from transferqueue.client.windows import ClientWindows
    from transferqueue.wire.format import Buffer, Message


MOVE_BYTES = 8 << 20
"""Scattered rows are brought together so many bytes at a time, beside a transport that sends."""


class PartRows:
    """The rows of a batch that one shard gets."""

    def __init__(self, part: Part, batch: Batch) -> None:
        self.slot = part.slot
        self.num_rows = part.num_rows
        self._rows = part.rows
        self._batch = batch
        self.columns = {
            name: rows_of(column, part.rows, batch.num_rows)
            for name, column in batch.columns.items()
        }
        self.num_bytes = sum(column.num_bytes for column in self.columns.values())

    def plan(self) -> PutPlan:
        """What the shard is told of them, all but their bytes."""
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
                for name, column in self.columns.items()
            ],
            tags={name: _tag_rows(value, self._rows) for name, value in batch.tags.items()},
            overwrite=batch.overwrite,
        )


class PartPut(ABC):
    """How the bytes of one part get to their shard."""

    late: DeviceSide | None = None
    """Whose copies into the shard's memory may come yet, until they are known to be done."""

    def __init__(self, rows: PartRows) -> None:
        self.rows = rows
        self.by_window = False
        """Whether they have gone through a window."""

    @abstractmethod
    def request(self, arrays: ArrayWriter) -> dict[str, Any]:
        """What the request that reserves says about the bytes."""


class InlinePut(PartPut):
    """Few bytes: they go with the request.

    They are copied: the socket may hold them until after the call has failed, and by then the
    caller may write to them again.
    """

    def request(self, arrays: ArrayWriter) -> dict[str, Any]:
        payload = np.empty(self.rows.num_bytes, dtype=np.uint8)
        at = 0
        for column in self.rows.columns.values():
            column.copy_to(payload[at : at + column.num_bytes])
            at += column.num_bytes
        return {"payload": arrays.add_bytes(payload), "writer": None}


class PlacedPut(PartPut):
    """The shard's memory is within reach here: mapped, or of a device and open, or it has both.

    One copy, from the caller's memory to its place. To mapped memory that is page-locked a device
    copies by itself what is on it; to device memory, the rest by way of a ring of page-locked
    chunks. Columns that the shard keeps elsewhere go there in chunks.
    """

    def __init__(
        self,
        rows: PartRows,
        memory: LocalMemory,
        shard: ShardAddress,
        ways: Ways,
    ) -> None:
        """``ways``: to device memory of the shard; what is not there is mapped. Those of tensors
        on one device go by that, others come to it by its ring."""
        super().__init__(rows)
        self._memory, self._shard, self._ways = memory, shard, ways

    @property
    def opens_device(self) -> bool:
        return bool(self._ways)

    def request(self, arrays: ArrayWriter) -> dict[str, Any]:
        slot, writer = self.rows.slot, self._memory.process
        if self._memory.reaches(slot):
            writer = self._memory.process_for(slot)
        if self._ways:
            writer = {**writer, "devices": [access.token for _, access in self._ways.values()]}
        return {"payload": None, "writer": writer}

    def fill(self, answer: Message, timeout_s: float, moved: Moved | None = None) -> Flow | None:
        """Copy each column to where the shard has reserved space for it in its memory, and tell
        ``moved`` how far that is. Returns the writes for the others, if there are any."""
        columns = list(self.rows.columns.values())
        addresses = [BY_WRITE] * len(columns)
        if "addresses" in answer.body:
            addresses = ArrayReader(answer.frames).int64s(answer.body["addresses"]).tolist()
        placed = list(zip(addresses, columns, strict=True))
        there = [(at, c) for at, c in placed if c.num_bytes and at != BY_WRITE]
        on_host = [(at, c) for at, c in there if at >> ADDRESS_BITS not in self._ways]
        self._map(on_host, timeout_s, moved)
        for number, (side, access) in self._ways.items():
            on_device = [(own_address(at), c) for at, c in there if at >> ADDRESS_BITS == number]
            if on_device:
                self._copy_to_device(side, access, on_device, timeout_s, moved)
        others = [column for at, column in placed if at == BY_WRITE]
        return ChunkedColumns(others, self._shard.endpoint).flow(answer) if others else None

    def _map(
        self, columns: Sequence[tuple[int, ColumnRows]], timeout_s: float, moved: Moved | None
    ) -> None:
        of_side: dict[DeviceSide, list[tuple[int, DeviceRows]]] = {}
        for address, column in columns:
            if isinstance(column, DeviceRows) and not isinstance(column, ScatteredRows):
                of_side.setdefault(column.side, []).append((address, column))
            else:
                self._copy(column, address, moved)
        for side, there in of_side.items():
            self._place_from(side, there, timeout_s, moved)

    def _copy(self, column: ColumnRows, address: int, moved: Moved | None) -> None:
        place = self._memory.writable(self.rows.slot, address, column.num_bytes)
        if moved is None:
            column.copy_to(place)
            return
        for low in range(0, len(place), STEP_BYTES):
            step = place[low : low + STEP_BYTES]
            column.copy_to(step, low)
            moved(len(step))

    def _place_from(
        self,
        side: DeviceSide,
        columns: Sequence[tuple[int, DeviceRows]],
        timeout_s: float,
        moved: Moved | None,
    ) -> None:
        ranges = [(address, column.num_bytes) for address, column in columns]
        locked = side.locked(self._shard, ranges)
        if locked is None:
            for address, column in columns:
                self._copy(column, address, moved)
            return
        self.late = side
        device_fills.place(side, locked, columns, timeout_s)
        self.late = None
        if moved is not None:
            moved(sum(nbytes for _, nbytes in ranges))

    def _copy_to_device(
        self,
        side: DeviceSide,
        access: DeviceAccess,
        columns: Sequence[tuple[int, ColumnRows]],
        timeout_s: float,
        moved: Moved | None,
    ) -> None:
        self.late = side
        try:
            device_fills.fill(side, access, columns, timeout_s)
        except HandleRefused:  # before the first copy
            self.late = None
            raise
        self.late = None
        if moved is not None:
            moved(sum(column.num_bytes for _, column in columns))


class StreamedPut(PartPut):
    """Many bytes for a shard of another host: in chunks, from the caller's memory."""

    def __init__(self, rows: PartRows, endpoint: str, transport: str | None = None) -> None:
        """``transport``: by which they go instead, where the shard can."""
        super().__init__(rows)
        self.transport = transport
        self._columns = ChunkedColumns(list(rows.columns.values()), endpoint)

    def request(self, arrays: ArrayWriter) -> dict[str, Any]:
        window = {} if self.transport is None else {"window": self.transport}
        return {"payload": None, "writer": None, **window}

    def move(self, answer: Message, windows: ClientWindows) -> Move | None:
        """The same bytes to the window that the shard has opened, if it has."""
        window = windows.opened(self.transport, answer.body.get("window"))
        if window is None or self.transport is None:
            return None
        return Move(
            slot=self.rows.slot,
            transport=self.transport,
            window=window,
            is_write=True,
            num_bytes=self.rows.num_bytes,
            pieces=self._pieces(),
        )

    def _pieces(self) -> Iterator[tuple[int, memoryview]]:
        at = 0
        for column in self.rows.columns.values():
            step = CHUNK_BYTES if isinstance(column, DeviceRows) else MOVE_BYTES
            lows = range(0, column.num_bytes, step)
            pieces = [(low, min(step, column.num_bytes - low)) for low in lows]
            for low, block in zip(lows, column.lent(pieces), strict=True):
                yield at + low, block.data
            at += column.num_bytes

    def fill(self, answer: Message) -> Flow:
        """The writes that fill what the shard has reserved."""
        return self._columns.flow(answer)


class ChunkedColumns:
    """Columns whose bytes go to a shard in chunks.

    Chunks that are sent twice, or after the put has failed, change nothing: only a commit makes
    them visible, and it comes when the answers to all of them are here.
    """

    def __init__(self, columns: Sequence[ColumnRows], endpoint: str) -> None:
        self._columns = columns
        self._endpoint = endpoint
        self._grid = ChunkGrid([column.num_bytes for column in columns])

    def flow(self, answer: Message) -> Flow:
        """The writes, in answer to a reservation. Not on an event loop: may wait for a device."""
        for column in self._columns:
            column.get_ready()
        return Flow(
            endpoint=self._endpoint,
            op=ops.WRITE,
            calls=self._calls(int(answer.body["put_id"])),
            num_calls=self._grid.num_chunks,
            window=WINDOW_CHUNKS,
            take=lambda call, message: None,
            device=next(
                (c.side.device.name for c in self._columns if isinstance(c, DeviceRows)), ""
            ),
        )

    def _calls(self, put_id: int) -> Iterator[Call | None]:
        chunks = [self._grid.pieces(chunk) for chunk in range(self._grid.num_chunks)]
        of_column: list[list[tuple[int, int]]] = [[] for _ in self._columns]
        for piece in chain.from_iterable(chunks):
            of_column[piece.column].append((piece.offset, piece.nbytes))
        cuts = [c.cuts(pieces) for c, pieces in zip(self._columns, of_column, strict=True)]
        for chunk, pieces in enumerate(chunks):
            blocks: list[np.ndarray] = []
            for piece in pieces:
                while (block := next(cuts[piece.column])) is None:
                    yield None  # the device is not that far
                blocks.append(block)
            yield Call(
                endpoint=self._endpoint,
                op=ops.WRITE,
                body={"put_id": put_id, "chunk": chunk},
                frames=_frames(blocks),
            )


def _frames(blocks: list[np.ndarray]) -> list[Buffer]:
    if len(blocks) > MAX_FRAMES:
        blocks = [np.concatenate(blocks)]
    return [block.data for block in blocks]


def _tag_rows(value: Any, rows: slice | np.ndarray) -> Any:
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, list | tuple):
        return list(value[rows]) if isinstance(rows, slice) else [value[i] for i in rows.tolist()]
    return value
