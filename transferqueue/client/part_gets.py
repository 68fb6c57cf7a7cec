"""What one shard has of a get: sent with its answer, mapped here, or fetched in chunks."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from transferqueue.backends.several import ADDRESS_BITS, own_addresses
from transferqueue.client.assembly import GotPart
from transferqueue.client.device_copies import LentRanges
from transferqueue.client.file_reads import FileColumn
from transferqueue.client.landings import HostTarget, inflow_to
from transferqueue.client.lease_returns import release
from transferqueue.client.silent_shards import PROBE_SILENCE_S, SILENCE_S
from transferqueue.client.windows import Move
from transferqueue.errors import TransferExpired
from transferqueue.fields import FieldKind
from transferqueue.net.calls import Call, Flow
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.chunks import WINDOW_CHUNKS, ChunkGrid, Runs, deal
from transferqueue.wire.get import GetAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import ExitStack

    import numpy as np

    from transferqueue.client.caller import Caller
    from transferqueue.client.counted_copies import Moved
    from transferqueue.client.device_access import DeviceAccess
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.landings import Inflow, Target
    from transferqueue.client.lease_returns import Lease
    from transferqueue.client.placement import Part
    from transferqueue.wire.format import Buffer, Message
    from transferqueue.wire.get import GotColumn
    from transferqueue.wire.window import OpenWindow


class PartGet:
    """The rows of a get that lie on one shard.

    `call` asks for them, `take` gets the answer. What is streamed, `flow` brings to ``targets``,
    and then `done` gives it back and `check_held` tells whether it was right to the end.
    """

    def __init__(
        self,
        part: Part,
        caller: Caller,
        *,
        at_guard: bool = False,
        is_probe: bool = False,
        side: DeviceSide | None = None,
    ) -> None:
        """``at_guard``: get it from the second copy. ``is_probe``: the shard was silent before.
        ``side``: the device that the bytes go to, from that of the shard where it can."""
        self._side = side
        self._accesses: Mapping[int, DeviceAccess] = {}
        """Device memory of the shard that is copied from here, by number."""
        self._loan_id: int | None = None  # lease of device memory
        self.columns: Mapping[str, GotColumn] = {}
        self.targets: dict[str, Target] = {}
        self._part = part
        self._caller = caller
        self._memory = caller.memory
        self._guard = caller.session.guard_of(part.slot)
        self._silence_s = PROBE_SILENCE_S if is_probe else SILENCE_S
        self._at_guard = at_guard and self._guard is not None
        self._lease: Lease | None = None
        self._stream_id: int | None = None
        self._transport: str | None = None
        self._window: OpenWindow | None = None
        self._files: Mapping[str, Any] | None = None
        self._read: frozenset[str] = frozenset()
        self._inflow: Inflow | None = None

    def call(
        self,
        *,
        partition: str,
        uids: np.ndarray,
        fields: Sequence[str],
        optional: Sequence[str],
        timeout_s: float,
        borrow_s: float | None = None,
    ) -> Call:
        """``uids``: of the whole get. ``borrow_s``: for how long device memory is borrowed;
        ``None``: it is only copied from."""
        part = self._part
        arrays = ArrayWriter()
        body: dict[str, Any] = {
            "partition": partition,
            "uids": arrays.add(uids[part.rows]),
            "fields": fields,
            "optional": optional,
            "reader": self._reader(),
            "timeout_s": timeout_s,
        }
        if borrow_s is not None:
            body["borrow_s"] = borrow_s
        slot = part.slot
        if self._at_guard and self._guard is not None:
            body["copy_of"], slot = part.slot, self._guard
        elif body["reader"] is None and self._caller.session.knows(slot):
            self._transport = self._caller.windows.transport_to(self._caller.session.shard(slot))
            body |= {} if self._transport is None else {"window": self._transport}
        shard = self._caller.session.shard(slot, num_rows=part.num_rows, of_rows=len(uids))
        self._endpoint = shard.endpoint
        if not self._at_guard and self._caller.files.reach(shard):
            body["files"] = True
        return self._call(ops.GET, body, arrays.frames)

    def _call(self, op: str, body: dict[str, Any], frames: Sequence[Buffer] = ()) -> Call:
        """One that fails soon when nobody is there, where somebody else has the same rows."""
        silence_s = None if self._guard is None else self._silence_s
        return Call(endpoint=self._endpoint, op=op, body=body, frames=frames, silence_s=silence_s)

    def _reader(self) -> dict[str, Any] | None:
        """This process, if it can read the shard's memory itself."""
        slot = self._part.slot
        self._accesses = {} if self._at_guard else self._lending()
        if self._at_guard:
            return None
        mine = self._memory.process_for(slot) if self._memory.reaches(slot) else None
        if not self._accesses:
            return mine
        tokens = [access.token for access in self._accesses.values()]
        return {**(mine or self._memory.process), "devices": tokens}

    def _lending(self) -> Mapping[int, DeviceAccess]:
        """The shard's device memory, where this process copies from it."""
        session, slot = self._caller.session, self._part.slot
        if self._side is None or not session.knows(slot):
            return {}
        shard = session.shard(slot)
        self._side.way_to(shard)  # is as good as required
        return self._side.opened(shard)

    def take(self, answer: Message) -> None:
        """Take the answer. From here on what it lent is this object's to give back."""
        self._arrays = ArrayReader(answer.frames)
        self._answer = GetAnswer.read(answer.body, self._arrays)
        self.columns = self._answer.columns
        lease_id, loan_id = self._answer.lease_id, self._answer.loan_id
        self._loan_id = None if loan_id is None else int(loan_id)
        # The shard decides: what is not in its memory comes in chunks to those who map it, too.
        if lease_id is not None and any(map(self._is_mapped, self.columns.values())):
            self._lease = self._memory.lease(self._part.slot, self._endpoint, int(lease_id))
        elif lease_id is not None:
            self._stream_id = int(lease_id)
            window = answer.body.get("window")
            self._window = self._caller.windows.opened(self._transport, window)
            self._files = answer.body.get("files")

    def _is_lent(self, column: GotColumn) -> bool:
        """Whether it lies in device memory that was lent."""
        return self._access_of(column) is not None

    def _access_of(self, column: GotColumn) -> DeviceAccess | None:
        """The device memory that it lies in, if it was lent. A column is on one device."""
        ranges = column.mapped
        if self._loan_id is None or ranges is None or ranges.start == ranges.stop:
            return None
        return self._accesses.get(int(self._answer.ranges[0, ranges.start] >> ADDRESS_BITS))

    def _is_mapped(self, column: GotColumn) -> bool:
        """Whether it lies in memory that is mapped here."""
        return column.mapped is not None and not self._is_lent(column)

    def note_answer(self) -> None:
        """The shard of the rows, if it was that which was asked, is not silent."""
        if not self._at_guard:
            self._caller.session.silent.answered(self._part.slot)

    def let_go(self) -> None:
        """The get has failed: what was mapped for it is nobody's."""
        self._lease = None

    @property
    def is_streamed(self) -> bool:
        return self._stream_id is not None

    @property
    def _coming(self) -> list[str]:
        """The fields that come through a window, in chunks or from files, in this order."""
        return [field for field in self.columns if field in self.targets]

    @property
    def num_mapped(self) -> int:
        """Bytes that are read from memory of this host."""
        mapped = [column.mapped for column in self.columns.values() if self._is_mapped(column)]
        return sum(int(self._answer.ranges[1, ranges].sum()) for ranges in mapped)

    def got(self, field: str, moved: Moved | None = None) -> GotPart:
        """The part of a column, without payload where that is streamed. ``moved`` hears of bytes
        that are copied here."""
        part, column = self._part, self.columns[field]
        payload, lent = None, None
        if column.sent is not None:
            payload = self._answer.payload[column.sent]
        elif column.mapped is not None and (access := self._access_of(column)) is not None:
            starts, sizes = self._answer.ranges[:, column.mapped]
            lent = LentRanges(access=access, starts=own_addresses(starts), sizes=sizes)
        elif column.mapped is not None and self._lease is not None:
            starts, sizes = self._answer.ranges[:, column.mapped]
            lent = self._locked(column, starts, sizes)
            if lent is None:
                payload = self._memory.read(self._lease, starts, sizes, moved)
        return GotPart(
            rows=part.rows, num_rows=part.num_rows, column=column, payload=payload, lent=lent
        )

    def _locked(
        self, column: GotColumn, starts: np.ndarray, sizes: np.ndarray
    ) -> LentRanges | None:
        """Ranges of mapped memory that the device copies from where they are."""
        if self._side is None or column.specs[0].kind is not FieldKind.TENSOR:
            return None
        ranges = list(zip(starts.tolist(), sizes.tolist(), strict=True))
        found = self._side.locked(self._caller.session.shard(self._part.slot), ranges)
        return None if found is None else LentRanges(access=found, starts=starts, sizes=sizes)

    @property
    def has_loan(self) -> bool:
        """Whether device memory was lent, and is to be given back."""
        return self._loan_id is not None

    @property
    def lent_of(self) -> list[DeviceAccess]:
        """The device memory that columns lie in."""
        found = (self._access_of(column) for column in self.columns.values())
        return list({access.number: access for access in found if access is not None}.values())

    def give_back(self) -> Call:
        """End the loan. Answered with an error when what was copied may be another put's."""
        assert self._loan_id is not None
        lease_id, self._loan_id = self._loan_id, None
        return release(self._endpoint, [lease_id], self._answer.refs)

    def host_memory(self) -> list[np.ndarray]:
        """What is to be filled, in the order in which it is."""
        targets = [self.targets[field] for field in self._coming]
        return [target.memory for target in targets if isinstance(target, HostTarget)]

    def move(self) -> Move | None:
        """The read that fills the targets, if the shard has opened a window to what they get."""
        if self._window is None or self._transport is None:
            return None
        targets = [self.targets[field] for field in self._coming]
        ends = list(accumulate(target.nbytes for target in targets))
        return Move(
            slot=self._part.slot,
            transport=self._transport,
            window=self._window,
            is_write=False,
            num_bytes=ends[-1],
            pieces=(
                (end - target.nbytes + low, memory)
                for end, target in zip(ends, targets, strict=True)
                for low, memory in target.pieces()
            ),
        )

    def in_files(self) -> list[FileColumn]:
        """The columns that lie in files which this process can read."""
        if self._files is None:
            return []
        ranges = self._arrays.get(self._files["ranges"])
        found, at = [], 0
        for field, (number, num_ranges) in self._files["columns"].items():
            starts, sizes = ranges[:, at : at + num_ranges]
            at += num_ranges
            found.append(
                FileColumn(
                    access=self._files["access"][str(number)],
                    runs=Runs(starts, sizes),
                    target=self.targets[field],
                )
            )
        return found

    def were_read(self) -> None:
        """What lies in files is in its targets."""
        assert self._files is not None
        self._read = frozenset(self._files["columns"])

    def flow(self, lanes: ExitStack) -> Flow | None:
        """The reads that fill the targets; those of chunks that are needed alone. ``lanes`` has
        the lane by which they land on a device, until it is closed."""
        targets = [self.targets[field] for field in self._coming]
        grid = ChunkGrid([target.nbytes for target in targets])
        left = {at for at, field in enumerate(self._coming) if field not in self._read}
        chunks = [
            chunk
            for chunk in range(grid.num_chunks)
            if not self._read or any(piece.column in left for piece in grid.pieces(chunk))
        ]
        if not chunks:
            return None

        def take(call: Call, answer: Message) -> None:
            for piece, block in deal(answer.frames, grid.pieces(call.body["chunk"])):
                targets[piece.column].take(piece.offset, block)

        self._inflow = inflow_to(targets, lanes)
        return Flow(
            endpoint=self._endpoint,
            op=ops.READ,
            calls=self._reads(chunks),
            num_calls=len(chunks),
            window=WINDOW_CHUNKS,
            take=take,
            device="" if self._inflow is None else self._inflow.device,
        )

    def _reads(self, chunks: Sequence[int]) -> Iterator[Call | None]:
        for chunk in chunks:
            while self._inflow is not None and not self._inflow.settle():
                yield None
            yield self._call(ops.READ, {"lease_id": self._stream_id, "chunk": chunk})

    def land(self, timeout_s: float) -> None:
        """Wait until what came in chunks is on its device. `DeviceStuck`."""
        if self._inflow is not None:
            self._inflow.finish(timeout_s)

    def done(self) -> Call:
        """Give back what the shard held."""
        return self._call(ops.READ_DONE, {"lease_id": self._stream_id})

    def check_held(self, answer: Message) -> None:
        """TransferExpired when the shard gave the space on before the last chunk was through: some
        of what came may then be of another put."""
        if not answer.body["held"]:
            assert self._stream_id is not None
            raise TransferExpired("get", self._stream_id, self._part.slot)
