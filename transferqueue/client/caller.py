"""Calls of a client to its coordinator and shards, with deadlines."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from transferqueue.client.ends_along import EndsAlong
from transferqueue.client.whereabouts import ShardWhereabouts
from transferqueue.errors import DeadlineExceeded, TransportFailed
from transferqueue.net.calls import GRACE_S, Call, Channel, Flow, Outcome, raise_first
from transferqueue.wire import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from transferqueue.client.counted_copies import Moved
    from transferqueue.client.file_reads import FileColumn, FileReads
    from transferqueue.client.local_memory import LocalMemory
    from transferqueue.client.placement import Part
    from transferqueue.client.progress import Progress
    from transferqueue.client.session import Session
    from transferqueue.client.windows import ClientWindows, Move
    from transferqueue.net.calls import Whereabouts
    from transferqueue.tracing.base import CallSpans
    from transferqueue.wire.format import Buffer, Message

LOOK_AGAIN_S = 5.0
"""How long the coordinator, which has just answered, has to say what became of its shards."""

CHECK_S = 1.0
"""How long the coordinator has to say whether a shard that was silent for a whole deadline is to
come back."""

T = TypeVar("T")

_NOTHING = contextlib.nullcontext()


class Caller:
    """Sends calls to the coordinator and to shards by slot, with deadlines."""

    def __init__(
        self,
        channel: Channel,
        session: Session,
        memory: LocalMemory,
        windows: ClientWindows,
        files: FileReads,
        progress: Progress | None = None,
        spans: CallSpans | None = None,
    ) -> None:
        """``progress``: shows what takes long; ``None``: nothing is shown. ``spans``: notes what is
        asked of whom; ``None``: nothing is noted."""
        self._spans = spans
        self.windows = windows
        self.files = files
        self._channel = channel
        self._progress = progress
        self.session = session
        self.memory = memory

    async def coordinator(
        self,
        op: str,
        body: Mapping[str, Any],
        *,
        frames: Sequence[Buffer] = (),
        timeout_s: float,
        parks: bool = False,
    ) -> Message:
        """One call to the coordinator. ``parks``: it keeps the deadline itself and answers late."""
        call = Call(endpoint=self.session.coordinator, op=op, body=body, frames=frames)
        answer = (await self._exchange([call], timeout_s=timeout_s, parks=parks))[0]
        if op == ops.HELLO:
            return answer
        epoch = answer.body.pop(ops.SHARDS_EPOCH, self.session.shards_epoch)
        if epoch != self.session.shards_epoch:
            # What was asked is answered; if this is not, the next answer tells of it again.
            with contextlib.suppress(DeadlineExceeded):
                await self.look_again(timeout_s=min(timeout_s, LOOK_AGAIN_S))
        return answer

    async def know(self, slots: Iterable[int], *, timeout_s: float) -> None:
        """Look again if one of these shards is not known: it may have joined since."""
        if not all(map(self.session.knows, slots)):
            await self.look_again(timeout_s=timeout_s)

    async def look_again(self, *, timeout_s: float) -> None:
        """A shard is not what it was: ask the coordinator how to reach each."""
        hello = await self.coordinator(ops.HELLO, {}, timeout_s=timeout_s)
        self.session.hear(hello.body)
        self._heard()

    def _heard(self) -> None:
        self.memory.look_again(self.session.arenas)

    def _whereabouts(self, endpoints: Iterable[str]) -> Whereabouts | None:
        """For calls to shards."""
        if self.session.coordinator in endpoints:
            return None
        return ShardWhereabouts(self.session, self._heard)

    async def check_there(self, parts: Sequence[Part]) -> None:
        """A shard did not answer in time. RowsLost when the service has given it up; else nothing:
        it may come back."""
        with contextlib.suppress(DeadlineExceeded):
            await self.look_again(timeout_s=CHECK_S)
        self.check_known(parts)

    def check_known(self, parts: Sequence[Part]) -> None:
        """RowsLost, with their numbers, for rows of a shard that is not there any more."""
        of_rows = sum(part.num_rows for part in parts)
        for part in parts:
            self.session.shard(part.slot, num_rows=part.num_rows, of_rows=of_rows)

    async def shards(self, calls: Sequence[Call], *, timeout_s: float) -> list[Message]:
        """Calls to shards at once; the first failure is raised when all have answered."""
        return await self._exchange(calls, timeout_s=timeout_s, parks=False)

    async def outcomes(
        self, calls: Sequence[Call], *, timeout_s: float, parks: bool = False
    ) -> list[Outcome]:
        """As `shards`, failures among the answers."""
        if parks:
            calls = [call.with_timeout(timeout_s) for call in calls]
        if self._spans is None or not calls:
            return await self._ask(calls, timeout_s + GRACE_S * parks)
        with self._spans.of(f"ask {calls[0].op}", peers=len(calls), endpoint=calls[0].endpoint):
            return await self._ask(self._spans.carried(calls), timeout_s + GRACE_S * parks)

    async def _ask(self, calls: Sequence[Call], timeout_s: float) -> list[Outcome]:
        with EndsAlong(calls, self.memory.returns) as along:
            along.outcomes = await self._channel.exchange(
                along.calls,
                timeout_s=timeout_s,
                whereabouts=self._whereabouts([call.endpoint for call in calls]),
            )
        return along.outcomes

    def spanning(self, name: str, **attributes: Any) -> AbstractContextManager[None]:
        """What the block asks for is one thing, where anybody looks."""
        return _NOTHING if self._spans is None else self._spans.of(name, **attributes)

    async def flow(self, flows: Sequence[Flow], *, timeout_s: float) -> None:
        """Many calls to each of some shards: see `Channel.flow`. One span for all of them: a
        server opens none for a chunk."""
        num_chunks = sum(flow.num_calls for flow in flows)
        with self.spanning("move", chunks=num_chunks, peers=len(flows)):
            await self._flow(flows, timeout_s=timeout_s)

    async def _flow(self, flows: Sequence[Flow], *, timeout_s: float) -> None:
        whereabouts = self._whereabouts(flow.endpoint for flow in flows)
        if self._progress is None:
            await self._channel.flow(flows, timeout_s=timeout_s, whereabouts=whereabouts)
            return
        with self._progress.of(flows) as counted:
            await self._channel.flow(counted, timeout_s=timeout_s, whereabouts=whereabouts)

    async def through_windows(self, moves: Sequence[Move], *, timeout_s: float) -> list[bool]:
        """Whether each has gone by its transport; what has not is to go in chunks.
        `TransportFailed` where that is required. After a failure it is known how to reach the
        shards now: one that was started again may listen elsewhere."""
        if not moves:
            return []
        shards = [self.session.shard(move.slot) for move in moves]
        label = "put" if moves[0].is_write else "get"
        deadline_s = time.monotonic() + timeout_s
        done: list[bool] = []
        try:
            with self.counting(label, sum(move.num_bytes for move in moves)) as moved:
                done = await self._channel.apart(
                    [
                        partial(self.windows.carry_out, shard, move, timeout_s, moved)
                        for shard, move in zip(shards, moves, strict=True)
                    ]
                )
        except TransportFailed:
            await self._look_where_shards_listen(deadline_s)
            raise
        if not all(done):
            await self._look_where_shards_listen(deadline_s)
        return done

    async def _look_where_shards_listen(self, deadline_s: float) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s > 0:
            with contextlib.suppress(DeadlineExceeded):
                await self.look_again(timeout_s=min(left_s, LOOK_AGAIN_S))

    @property
    def is_counting(self) -> bool:
        """Whether anybody wants to see how many bytes have moved."""
        return self._progress is not None

    def counting(self, label: str, total: int) -> AbstractContextManager[Moved | None]:
        """What is to be told of bytes that have moved, if anybody wants to see it."""
        if self._progress is None or not total:
            return contextlib.nullcontext()
        return self._progress.counting(label, total)

    async def from_files(self, reads: Sequence[Sequence[FileColumn]]) -> list[bool]:
        """Whether the columns of each part have been read from files; else they come in chunks."""
        if not reads:
            return []
        total = sum(column.target.nbytes for columns in reads for column in columns)
        with self.counting("get", total) as moved:
            works = [partial(self.files.carry_out, columns, moved) for columns in reads]
            return await self._channel.apart(works)

    async def to_its_end(self, work: Callable[[], T]) -> T:
        """Do what waits for a device: see `Channel.to_its_end`."""
        return await self._channel.to_its_end(work)

    @property
    def shows_progress(self) -> bool:
        return self._progress is not None

    def showing(
        self, label: str, total: int = 0, look: Callable[[], int] | None = None
    ) -> AbstractContextManager[None]:
        """That something goes on, until the block ends; ``look`` says how many of ``total`` bytes
        of it are done."""
        if self._progress is None:
            return contextlib.nullcontext()
        if look is None or not total:
            return self._progress.waiting(label)
        return self._progress.watching(label, total, look)

    async def tell(self, calls: Sequence[Call]) -> None:
        """Send calls without waiting for the answers."""
        if calls:
            await self._channel.exchange(calls, timeout_s=0.0)

    async def _exchange(
        self, calls: Sequence[Call], *, timeout_s: float, parks: bool
    ) -> list[Message]:
        return raise_first(await self.outcomes(calls, timeout_s=timeout_s, parks=parks))
