"""A shard's edge for checkpoints: the coordinator orders the steps, this carries them out."""

from __future__ import annotations

import itertools
import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transferqueue.checkpoint.cells import CellsWriter
from transferqueue.checkpoint.files import write_records
from transferqueue.checkpoint.folder import check_token
from transferqueue.checkpoint.manifest import SavedFile, SavedShard
from transferqueue.checkpoint.saved_rows import to_records
from transferqueue.errors import CheckpointFailed, TransferQueueError
from transferqueue.shard.cut import Cut, cut
from transferqueue.wire import ops
from transferqueue.wire.format import Message, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transferqueue.backends.base import Backend
    from transferqueue.net.server import Request, Server
    from transferqueue.shard.hold import Hold
    from transferqueue.shard.store import Store
    from transferqueue.wire.chunks import Runs
    from transferqueue.wire.format import Buffer

READER = "checkpoint"
"""Whose leases those of a checkpoint are."""

BLOCK_BYTES = 8 << 20

MAX_PIECES = 16
"""Of one block that are written from where they lie; more are brought together first."""

FIRST_REQUEST_ID = 1 << 41
"""Above the numbers of events and of `Admission`, with which these share a stream."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Writing:
    """The bytes of a cut on their way to the disk."""

    cut: Cut
    leases: list[int]
    """Of each column, those not written yet."""
    writer: CellsWriter
    blocks: Iterator[tuple[int, list[Buffer]]]
    num_released: int = 0
    is_all_handed_over: bool = False


class ShardCheckpoints:
    """``send`` goes to the coordinator, ``next_event`` is the number of the event that it will be
    told next, ``on_free`` hears that space or the way for puts came free. ``is_settled``: whether
    every change that has come is made; those that are on their way to a second copy are not."""

    def __init__(
        self,
        *,
        slot: int,
        store: Store,
        backend: Backend,
        server: Server,
        hold: Hold,
        send: Callable[[Message], None],
        next_event: Callable[[], int],
        on_free: Callable[[], None],
        is_settled: Callable[[], bool],
    ) -> None:
        self._slot = slot
        self._store = store
        self._backend = backend
        self._server = server
        self._hold = hold
        self._send = send
        self._next_event = next_event
        self._on_free = on_free
        self._is_settled = is_settled
        self._is_settling = False
        """Held, and not told yet: some changes have come before."""
        self._request_ids = itertools.count(FIRST_REQUEST_ID)
        self._id: str | None = None
        self._folder = ""
        self._passing: frozenset[str] = frozenset()
        self._is_waiting_for_parts = False
        self._writing: _Writing | None = None
        self._given_up: list[_Writing] = []
        """Their last write is still under way: a disk may hang, and nobody waits for it here."""
        self._steps: dict[str, Callable[[dict[str, Any]], None]] = {
            ops.PREPARE: self._prepare,
            ops.HOLD: self._begin_hold,
            ops.PASS: self._let_pass,
            ops.CUT: self._cut,
            ops.ABANDON: lambda body: self.abandon(),
        }

    def may_pass(self, request: Request) -> bool:
        """Whether a request is the commit of a part that is waited for."""
        if request.op != ops.COMMIT or not self._passing:
            return False
        put_id = request.number("put_id")
        if not self._store.is_under_way(put_id):
            return False
        return self._store.reservation(put_id).plan.part_of in self._passing

    # -- orders ---------------------------------------------------------------------------------

    def hear(self, message: Message, now_s: float) -> None:
        """An order of the coordinator."""
        body, step = dict(message.body), str(message.body["step"])
        if step == ops.PREPARE:
            self.abandon()
            self._id = str(body["id"])
        if body["id"] != self._id:
            return  # of a checkpoint that was given up
        body["now_s"] = now_s
        try:
            self._steps[step](body)
        except TransferQueueError as error:
            self._fail(error)
        except OSError as error:
            self._fail(CheckpointFailed(self._folder, self._name, str(error)))

    def _prepare(self, body: dict[str, Any]) -> None:
        self._folder = str(body["folder"])
        check_token(self._folder, str(body["token"]), platform.node())
        self._answer(ops.PREPARE)

    def _begin_hold(self, body: dict[str, Any]) -> None:
        self._hold.begin(body["now_s"])
        self._passing, self._is_waiting_for_parts = frozenset(), False
        self._is_settling = not self._is_settled()
        if not self._is_settling:
            self._tell_held()

    def _tell_held(self) -> None:
        parts = self._store.split_puts.names().to_plain()
        self._answer(ops.HOLD, next_event=self._next_event(), parts=parts)

    def _let_pass(self, body: dict[str, Any]) -> None:
        self._passing = frozenset(body["names"])
        self._is_waiting_for_parts = True
        self._hold.let_pass(self._server)

    def _cut(self, body: dict[str, Any]) -> None:
        if not self._hold.is_on:
            why = "it was held for too long and let its clients go on"
            raise CheckpointFailed(self._folder, self._name, why)
        written = [self._store.split_puts.written(name) for name in body["leave_out"]]
        made = cut(self._store, [part for part in written if part is not None])
        leases = self._store.leases
        rows_path = self._path("rows")
        self._writing = writing = _Writing(
            cut=made,
            leases=[leases.acquire(READER, c.slab_ids, body["now_s"]) for c in made.columns],
            writer=CellsWriter(
                self._path("cells"),
                wake=self._server.wake,
                last=lambda sums: write_records(rows_path, to_records(made.partitions, sums.all())),
            ),
            blocks=_blocks(self._backend, [column.runs for column in made.columns]),
        )
        self._end_hold()
        self._feed(writing)

    def abandon(self) -> None:
        """Let everything go on, and write nothing more. Idempotent."""
        self._id = None
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.writer.cancel()
            self._given_up.append(writing)
        self._release_given_up()
        self._end_hold()

    def _release_given_up(self) -> None:
        for writing in [w for w in self._given_up if w.writer.has_ended]:
            self._given_up.remove(writing)
            self._release(writing, len(writing.leases))

    # -- time -----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        if self._hold.until_s is not None and now_s >= self._hold.until_s:
            why = "the cut was not ordered in time, so it let its clients go on"
            self._fail(CheckpointFailed(self._folder, self._name, why))
        if self._is_settling and self._is_settled():
            self._is_settling = False
            self._tell_held()
        if self._is_waiting_for_parts and not self._is_awaited_under_way():
            self._is_waiting_for_parts = False
            self._tell_held()
        if self._given_up:
            self._release_given_up()
        if self._writing is not None:
            try:
                self._feed(self._writing)
            except TransferQueueError as error:  # the bytes of a slab could not be read
                self._fail(error)

    def _is_awaited_under_way(self) -> bool:
        return bool(self._passing & self._store.split_puts.names().under_way)

    def next_s(self) -> float | None:
        return self._hold.until_s

    def close(self) -> None:
        """Nobody looks at the memory any more when this returns."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.writer.cancel()
            self._given_up.append(writing)
        for given_up in self._given_up:
            given_up.writer.join()

    # -- steps ----------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"shard {self._slot} on {platform.node()}"

    def _path(self, what: str) -> str:
        return os.path.join(self._folder, f"shard-{self._slot}.{what}")

    def _end_hold(self) -> None:
        self._passing, self._is_waiting_for_parts = frozenset(), False
        self._is_settling = False
        if self._hold.is_on:
            self._hold.end(self._server)
            self._on_free()

    def _feed(self, writing: _Writing) -> None:
        """Hand blocks over while the writer has room; let go of what is written."""
        writer = writing.writer
        while writer.has_room and not writing.is_all_handed_over and not writer.has_ended:
            block = next(writing.blocks, None)
            if block is None:
                writing.is_all_handed_over = True
                writer.finish()
            else:
                writer.add(block[1], block[0])
        self._release(writing, writer.num_columns_done)
        if writer.has_ended:
            self._end(writing)

    def _release(self, writing: _Writing, num_columns: int) -> None:
        """Columns before this one are written."""
        if num_columns > writing.num_released:
            done = writing.leases[writing.num_released : num_columns]
            writing.num_released = num_columns
            self._store.release(READER, done)
            self._on_free()

    def _end(self, writing: _Writing) -> None:
        writing.writer.join()
        self._release(writing, len(writing.leases))
        self._writing = None
        rows = writing.writer.other
        if writing.writer.error is not None or rows is None:
            self._fail(CheckpointFailed(self._folder, self._name, str(writing.writer.error)))
            return
        cells = os.path.basename(writing.writer.path)
        saved = SavedShard(
            slot=self._slot,
            rows=rows,
            cells=SavedFile(name=cells, nbytes=writing.writer.sums.nbytes, crc32=None),
            num_rows=writing.cut.num_rows,
            extent_bytes=writing.cut.extent_bytes,
            stretches=tuple(writing.cut.stretches),
        )
        self._answer(ops.CUT, saved=saved.to_plain())

    def _fail(self, error: TransferQueueError) -> None:
        self._answer(ops.ABANDON, error=encode_error(error))
        self.abandon()

    def _answer(self, step: str, **more: Any) -> None:
        body = {"slot": self._slot, "id": self._id, "step": step, **more}
        message = Message(op=ops.STEP_DONE, request_id=next(self._request_ids), body=body)
        self._send(message)


def _blocks(backend: Backend, columns: list[Runs]) -> Iterator[tuple[int, list[Buffer]]]:
    """The bytes of the columns in blocks, each with the number of its column."""
    for number, runs in enumerate(columns):
        for offset in range(0, runs.total_bytes, BLOCK_BYTES):
            starts, sizes = runs.cut(offset, min(BLOCK_BYTES, runs.total_bytes - offset))
            if len(starts) > MAX_PIECES:
                yield number, [backend.read_ranges(starts, sizes).data]
                continue
            pieces = zip(starts.tolist(), sizes.tolist(), strict=True)
            yield number, [backend.readable(start, size) for start, size in pieces]
