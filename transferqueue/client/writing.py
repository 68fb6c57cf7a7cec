"""Putting a batch: send each shard its rows, commit all or none."""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from transferqueue.client.deadline import Deadline
from transferqueue.client.part_puts import (
    InlinePut,
    PartPut,
    PartRows,
    PlacedPut,
    StreamedPut,
)
from transferqueue.client.placement import Part, nearest, place_new_rows, split_by_home
from transferqueue.client.windows import WindowTries
from transferqueue.errors import (
    ArenaReplaced,
    HandleRefused,
    OwnerLost,
    PutCut,
    RowsLost,
    ServiceUnreachable,
    ShardDraining,
    TransferExpired,
    TransferQueueError,
    TransportFailed,
)
from transferqueue.net.calls import Call, Outcome, raise_first
from transferqueue.uids import SEQUENCE_BITS, SEQUENCE_MASK, make_uids
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.chunks import STREAM_FROM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.client.batch import Batch
    from transferqueue.client.caller import Caller
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.device_sides import DeviceSides
    from transferqueue.net.calls import Flow
    from transferqueue.wire.format import Message

T = TypeVar("T")

_TRIED_AGAIN = (
    TransferExpired,
    TransportFailed,
    ArenaReplaced,
    ShardDraining,
    ServiceUnreachable,
    HandleRefused,
    OwnerLost,
    RowsLost,
)
"""Failures after which nothing of the put is stored, and another attempt may do: device memory that
cannot be opened is not tried again, an owner that has ended is started anew, and new rows go to
another shard than one that is lost for good."""

FAREWELL_S = 1.0
"""How long a put that failed waits for shards to say that they gave its space back."""


class Put:
    """One put on its way: reserve on every shard, move the bytes, then commit on all.

    A failed step gives everything back. A part of few bytes that is the only one needs no second
    trip: it commits as it comes.
    """

    def __init__(
        self,
        caller: Caller,
        batch: Batch,
        devices: DeviceSides,
        *,
        timeout_s: float,
        split_bytes: int,
        map_from_bytes: int,
    ) -> None:
        self._caller = caller
        self._batch = batch
        self._deadline = Deadline(timeout_s)
        self._map_from_bytes = map_from_bytes
        self._split_bytes = split_bytes
        self._side, self._devices = batch.side, devices
        self._parts: list[PartPut] = []
        self._window_tries = WindowTries()

    def _place(self) -> list[Part]:
        batch, session = self._batch, self._caller.session
        if batch.uids is not None:
            return split_by_home(batch.uids, session.homes)
        turn = session.next_turn()
        slots = session.slots_to_fill()
        if self._side is not None:
            slots = nearest([(slot, self._side.way_to(session.shard(slot)).rung) for slot in slots])
        return place_new_rows(
            batch.num_rows, batch.nbytes, slots, turn=turn, split_bytes=self._split_bytes
        )

    def _parts_of(self, places: Sequence[Part]) -> list[PartPut]:
        return [self._part(part) for part in places]

    def _part(self, part: Part) -> PartPut:
        """The way for the bytes of a part: with the request, through memory, or in chunks.
        `RungRefused` where it is a worse one than is required."""
        rows, memory = PartRows(part, self._batch), self._caller.memory
        shard = self._caller.session.shard(part.slot)
        ways = self._devices.opening(shard, self._side)
        is_near = bool(ways) or memory.reaches(part.slot)
        if is_near and rows.num_bytes >= self._map_from_bytes:
            return PlacedPut(rows, memory, shard, ways)
        if rows.num_bytes > STREAM_FROM_BYTES:
            return StreamedPut(rows, shard.endpoint, self._caller.windows.transport_to(shard))
        return InlinePut(rows)

    async def run(self) -> np.ndarray:
        """Store the batch; returns the uids of its rows, int64[rows]."""
        if self._side is not None:
            await self._caller.tell(self._side.due())
        places = self._place()
        if not places:
            return np.empty(0, dtype=np.int64)
        slots = [place.slot for place in places]
        await self._caller.know(slots, timeout_s=self._deadline.left_s())
        while True:
            try:
                self._parts = await self._waiting_for_device(partial(self._parts_of, places))
                answers = await self._store()
                break
            except _TRIED_AGAIN as error:
                others = await self._places_after(error, places)
                if others is None:
                    raise
                places = others
        if self._batch.uids is not None:
            return self._batch.uids
        return np.concatenate([_new_uids(answer) for answer in answers])

    async def _places_after(
        self, error: TransferQueueError, places: list[Part]
    ) -> list[Part] | None:
        """Where to try again after a failure of which nothing is stored. ``None`` where that is of
        no use: time is up, or nobody is there to take the rows."""
        if isinstance(error, TransportFailed) and not self._has_another_way(error):
            return None
        if isinstance(error, ServiceUnreachable):
            self._caller.session.note_silence(str(error.args[0]))
            if self._batch.uids is not None:
                await self._caller.check_there(places)
        if isinstance(error, RowsLost | ShardDraining):
            return self._places_elsewhere(error, places)
        if isinstance(error, ServiceUnreachable) or not self._deadline.left_s():
            return None
        if isinstance(error, ArenaReplaced | OwnerLost):
            await self._caller.look_again(timeout_s=self._deadline.left_s())
        return places

    def _places_elsewhere(
        self, error: RowsLost | ShardDraining, places: Sequence[Part]
    ) -> list[Part] | None:
        """Instead of a shard that is gone, or takes no new rows."""
        session = self._caller.session
        if self._batch.uids is not None:
            self._caller.check_known(places)
            return None
        if isinstance(error, ShardDraining):
            has_others = session.heard_of_draining(error.slot)
        else:
            has_others = bool(session.slots)
        return self._place() if has_others and self._deadline.left_s() else None

    def _has_another_way(self, error: TransportFailed) -> bool:
        """For the next attempt."""
        if self._caller.windows.required is not None:
            return self._window_tries.failed()
        for part in self._parts:
            if part.by_window:
                self._caller.windows.has_failed(part.rows.slot, error)
        return True

    async def _store(self) -> list[Message]:
        if len(self._parts) == 1 and isinstance(self._parts[0], InlinePut):
            return raise_first(await self._reserve(commit=True))
        outcomes = await self._reserve(commit=False)
        try:
            await self._fill(raise_first(outcomes))
        except BaseException:
            await self._abort(self._aborts(outcomes))
            raise
        return await self._commit(outcomes)

    async def _abort(self, aborts: Sequence[Call]) -> None:
        """A shard that does not answer now hears of it later."""
        ended = await self._caller.outcomes(aborts, timeout_s=FAREWELL_S)
        untold = [
            abort
            for abort, outcome in zip(aborts, ended, strict=True)
            if isinstance(outcome, ServiceUnreachable)
        ]
        self._caller.memory.returns.tell_later(untold)

    async def _waiting_for_device(self, work: Callable[[], T]) -> T:
        """Do what may wait for a device, if some of the bytes are on one or go to one."""
        to_device = any(isinstance(p, PlacedPut) and p.opens_device for p in self._parts)
        if self._side is None and not to_device:
            return work()
        return await self._caller.to_its_end(work)

    async def _reserve(self, *, commit: bool) -> list[Outcome]:
        calls = await self._waiting_for_device(partial(self._reserve_calls, commit=commit))
        return await self._caller.outcomes(calls, timeout_s=self._deadline.left_s(), parks=True)

    def _reserve_calls(self, *, commit: bool) -> list[Call]:
        name = secrets.token_hex(8) if len(self._parts) > 1 else ""
        return [self._reserve_call(part, name, commit=commit) for part in self._parts]

    def _reserve_call(self, part: PartPut, name: str, *, commit: bool) -> Call:
        """``name``: what the parts of one attempt have in common, so that a checkpoint has all of
        them or none."""
        arrays = ArrayWriter()
        plan = replace(part.rows.plan(), part_of=name)
        body = plan.write(arrays) | part.request(arrays) | {"commit": commit}
        shard = self._caller.session.shard(
            part.rows.slot, num_rows=part.rows.num_rows, of_rows=self._batch.num_rows
        )
        return Call(endpoint=shard.endpoint, op=ops.PUT, body=body, frames=arrays.frames)

    async def _fill(self, answers: Sequence[Message]) -> None:
        await self._fill_windows(answers)
        await self._flow(await self._waiting_for_device(partial(self._fill_placed, answers)))

    def _fill_placed(self, answers: Sequence[Message]) -> list[Flow]:
        """Copy what is within reach of here. Returns what is to go in chunks."""
        flows: list[Flow | None] = []
        placed = sum(p.rows.num_bytes for p in self._parts if isinstance(p, PlacedPut))
        with self._caller.counting("put", placed) as moved:
            for part, answer in zip(self._parts, answers, strict=True):
                if isinstance(part, PlacedPut):
                    flows.append(part.fill(answer, self._deadline.last_step_s(), moved))
                elif isinstance(part, StreamedPut) and not part.by_window:
                    flows.append(part.fill(answer))
        return [flow for flow in flows if flow is not None]

    async def _flow(self, flows: Sequence[Flow]) -> None:
        if flows:
            await self._caller.flow(flows, timeout_s=self._deadline.last_step_s())

    async def _fill_windows(self, answers: Sequence[Message]) -> None:
        """What can goes by a transport."""
        parts, moves = [], []
        for part, answer in zip(self._parts, answers, strict=True):
            if isinstance(part, StreamedPut):
                move = part.move(answer, self._caller.windows)
                parts += [] if move is None else [part]
                moves += [] if move is None else [move]
        self._window_tries.note(moves)
        done = await self._caller.through_windows(moves, timeout_s=self._deadline.last_step_s())
        for part, is_done in zip(parts, done, strict=True):
            part.by_window = is_done

    def _aborts(self, outcomes: Sequence[Outcome]) -> list[Call]:
        """For every part that was reserved, but for those that a device may write to yet, whatever
        it was that ended the wait for its copies."""
        return [
            call
            for part, call in self._calls_of_parts(ops.ABORT, outcomes)
            if part.late is None or not self._postpones(part.late, call)
        ]

    def _postpones(self, side: DeviceSide, abort: Call) -> bool:
        is_postponed = side.postpones(abort)
        if is_postponed:
            self._caller.memory.returns.tell_later(of=side)
        return is_postponed

    async def _commit(self, outcomes: Sequence[Outcome]) -> list[Message]:
        try:
            commits = self._calls(ops.COMMIT, outcomes)
            committed = await self._caller.outcomes(commits, timeout_s=self._deadline.last_step_s())
            failures = [error for error in committed if isinstance(error, TransferQueueError)]
            if failures and len(failures) < len(committed):
                await self._undo(committed, failures[0])
            return raise_first(committed)
        except BaseException:
            # A commit that was lost on the way has left its space reserved.
            aborts = self._calls(ops.ABORT, outcomes)
            await self._caller.tell(aborts)
            self._caller.memory.returns.tell_later(aborts)  # this one may be lost too
            raise

    async def _undo(self, committed: Sequence[Outcome], failure: TransferQueueError) -> None:
        """One shard has its rows and another failed. New samples are cleared again; `PutCut` says
        which may still be in. Fields of samples that were there before cannot be taken back, so it
        says that too."""
        stored = [
            (part, outcome)
            for part, outcome in zip(self._parts, committed, strict=True)
            if not isinstance(outcome, TransferQueueError)
        ]
        if self._batch.uids is not None:
            num_stored = sum(part.rows.num_rows for part, _ in stored)
            slots = {part.rows.slot for part in self._parts} - {p.rows.slot for p, _ in stored}
            raise PutCut(
                list(self._batch.columns),
                num_stored,
                self._batch.num_rows,
                sorted(slots),
                str(failure),
            ) from failure
        stored = [one for one in stored if self._caller.session.knows(one[0].rows.slot)]
        calls = [self._clear_call(part, _new_uids(answer)) for part, answer in stored]
        left_s = max(FAREWELL_S, self._deadline.left_s())
        cleared = await self._caller.outcomes(calls, timeout_s=left_s)
        kept = [
            part.rows
            for (part, _), outcome in zip(stored, cleared, strict=True)
            if isinstance(outcome, TransferQueueError)
        ]
        if kept:
            raise PutCut(
                list(self._batch.columns),
                sum(rows.num_rows for rows in kept),
                self._batch.num_rows,
                [rows.slot for rows in kept],
                str(failure),
                self._batch.partition,
            ) from failure

    def _clear_call(self, part: PartPut, uids: np.ndarray) -> Call:
        arrays = ArrayWriter()
        body = {"partition": self._batch.partition, "uids": arrays.add(uids)}
        endpoint = self._caller.session.shard(part.rows.slot).endpoint
        return Call(endpoint=endpoint, op=ops.CLEAR, body=body, frames=arrays.frames)

    def _calls(self, op: str, outcomes: Sequence[Outcome]) -> list[Call]:
        """``commit`` or ``abort`` for every part that was reserved, but for an ``abort`` on a shard
        that is gone.

        A shard that an abort does not reach hears of it when it is back; else it gives the space
        back at the deadline of the put, or when this process ends.
        """
        return [call for _, call in self._calls_of_parts(op, outcomes)]

    def _calls_of_parts(self, op: str, outcomes: Sequence[Outcome]) -> list[tuple[PartPut, Call]]:
        calls = []
        for part, outcome in zip(self._parts, outcomes, strict=True):
            is_gone = op == ops.ABORT and not self._caller.session.knows(part.rows.slot)
            if not isinstance(outcome, TransferQueueError) and not is_gone:
                endpoint = self._caller.session.shard(part.rows.slot).endpoint
                body = {"put_id": outcome.body["put_id"]}
                body |= {"by_window": True} if part.by_window else {}
                calls.append((part, Call(endpoint=endpoint, op=op, body=body)))
        return calls


def _new_uids(answer: Message) -> np.ndarray:
    first, num_rows = int(answer.body["first_uid"]), int(answer.body["num_rows"])
    return make_uids(first >> SEQUENCE_BITS, first & SEQUENCE_MASK, num_rows)
