"""Getting columns: ask the home shards, join what they have, decode."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.assembly import JoinedColumn, expand_rows
from transferqueue.client.column_bytes import ColumnBytes
from transferqueue.client.deadline import Deadline
from transferqueue.client.device_columns import DeviceColumn, DeviceColumnBytes
from transferqueue.client.landings import HostTarget, Landings, Target
from transferqueue.client.part_gets import PartGet
from transferqueue.client.placement import split_by_home
from transferqueue.client.silent_shards import Turn
from transferqueue.client.touch_ahead import touched_ahead
from transferqueue.client.windows import WindowTries
from transferqueue.errors import (
    ArenaReplaced,
    HandleRefused,
    NoSecondCopy,
    OwnerLost,
    RowsLost,
    ServiceUnreachable,
    TransferExpired,
    TransferQueueError,
    TransportFailed,
)
from transferqueue.fields import FieldKind
from transferqueue.net.calls import raise_first
from transferqueue.wire.columns import decode_column, decode_on_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from transferqueue.client.assembly import GotPart
    from transferqueue.client.borrowed import Borrowed
    from transferqueue.client.caller import Caller
    from transferqueue.client.counted_copies import Moved
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.net.calls import Call
    from transferqueue.wire.columns import ObjectPolicy


Column = ColumnBytes | DeviceColumnBytes


_TRIED_AGAIN = (
    TransferExpired,
    HandleRefused,
    ArenaReplaced,
    OwnerLost,
    ServiceUnreachable,
    NoSecondCopy,
    TransportFailed,
)
"""Failures after which another attempt may do: a link was down for too long, or a shard was started
again, or does not answer and somebody else has its rows; device memory that cannot be opened its
side has noted, and takes another way. After a transport that is required has failed it is known
where the shard listens now."""


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
        side: DeviceSide | None = None,
        borrowed: Borrowed | None = None,
    ) -> None:
        """``side``: the device that tensors land on. ``borrowed``: takes what they look at there,
        and is to give it back; ``None``: all of them are copies."""
        self._side, self._borrowed = side, borrowed
        self._caller = caller
        self._partition = partition
        self._fields = list(fields)
        self._optional = list(optional)
        self._deadline = Deadline(timeout_s)
        self._uids, self._inverse = _distinct(uids)
        self._rows = split_by_home(self._uids, caller.session.homes)
        self._at_guard: set[int] = set()
        """Slots whose rows are got from their second copy."""
        self._window_tries = WindowTries()
        self._landings: Landings | None = None
        self._probed: set[int] = set()
        """Slots that were silent, and are tried again."""

    async def run(self) -> dict[str, Column]:
        """The columns as bytes. RowsGone, FieldsMissing, FieldSpecMismatch; from device memory
        StaleGeneration, OwnerLost, DeviceStuck."""
        if self._side is not None:
            await self._caller.tell(self._side.due())
        slots = [part.slot for part in self._rows]
        await self._caller.know(slots, timeout_s=self._deadline.left_s())
        self._pass_over_silent(slots)
        while True:
            try:
                return await self._fetch()
            except RowsLost:
                self._caller.check_known(self._rows)
                raise
            except _TRIED_AGAIN as error:
                if not await self._is_ready_again(error):
                    raise

    async def _is_ready_again(self, error: TransferQueueError) -> bool:
        """Get ready for another attempt after a failure. ``False`` where that is of no use."""
        has_time = bool(self._deadline.left_s())
        if isinstance(error, ServiceUnreachable | NoSecondCopy):
            has_turned = has_time and self._turned_to(error)
            if not has_turned or isinstance(error, NoSecondCopy):  # who has its place by now?
                await self._caller.check_there(self._rows)
            return has_turned
        if not has_time or (isinstance(error, OwnerLost) and not self._comes_back(error)):
            return False
        if isinstance(error, TransportFailed):
            return self._window_tries.failed()
        if isinstance(error, ArenaReplaced | OwnerLost):
            await self._caller.look_again(timeout_s=self._deadline.left_s())
        return True

    def _comes_back(self, error: OwnerLost) -> bool:
        """Whether what was in device memory is to be had once more, if its shard has ended: from
        the second copy, or from the shard's own copy in memory of the host when it is back."""
        session = self._caller.session
        of_rows = [session.shard(part.slot) for part in self._rows if session.knows(part.slot)]
        lost = [shard for shard in of_rows if any(d.is_of(error) for d in shard.devices.values())]
        guarded = {shard.slot for shard in lost if session.guard_of(shard.slot) is not None}
        self._at_guard |= guarded
        rest = [d for one in lost if one.slot not in guarded for d in one.devices.values()]
        return bool(lost) and all(device.is_kept for device in rest if device.is_of(error))

    def _pass_over_silent(self, slots: Sequence[int]) -> None:
        """Those that were silent lately, and have a second copy elsewhere."""
        session, now_s = self._caller.session, time.monotonic()
        for slot in slots:
            if session.guard_of(slot) is None:
                continue
            turn = session.silent.turn(slot, now_s)
            if turn is Turn.PASS_OVER:
                self._at_guard.add(slot)
            elif turn is Turn.PROBE:
                self._probed.add(slot)

    def _turned_to(self, error: TransferQueueError) -> bool:
        """Whether there is another copy to ask: that of the guard after its home was silent, and
        the other way round. A slot that is not the one that failed is asked where it was."""
        slots = {part.slot for part in self._rows if self._is_of(part.slot, error)}
        if isinstance(error, ServiceUnreachable):
            for slot in slots - self._at_guard:
                self._caller.session.silent.was_silent(slot, time.monotonic())
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

    async def _fetch(self) -> dict[str, Column]:
        if self._side is not None:
            self._landings = Landings(self._side, self._deadline.last_step_s())
        parts = [
            PartGet(
                rows,
                self._caller,
                at_guard=rows.slot in self._at_guard,
                is_probe=rows.slot in self._probed,
                side=self._side,
            )
            for rows in self._rows
        ]
        calls = [self._call(part) for part in parts]
        outcomes = await self._caller.outcomes(calls, timeout_s=self._deadline.left_s())
        joined: dict[str, JoinedColumn | DeviceColumn] = {}
        lanes = ExitStack()
        try:
            for part, outcome in zip(parts, outcomes, strict=True):
                if not isinstance(outcome, TransferQueueError):
                    part.take(outcome)
                    part.note_answer()
            raise_first(outcomes)
            joined.update(self._join(parts))
            with lanes:
                await self._stream(parts, lanes)
                if self._borrowed is not None:
                    self._borrowed.begin()
                await self._land(parts, joined.values())
            columns = {field: self._finish(column) for field, column in joined.items()}
            if self._borrowed is None:
                await self._give_back(parts)
            else:
                self._borrowed.keep(parts)
        except BaseException:
            # The error keeps this frame, and that would keep what was mapped.
            joined.clear()
            for part in parts:
                part.let_go()
            await self._caller.tell([part.done() for part in parts if part.is_streamed])
            await self._caller.tell([part.give_back() for part in parts if part.has_loan])
            raise
        return columns

    async def _give_back(self, parts: Sequence[PartGet]) -> None:
        """End the loans of device memory, and only then believe what was copied from it."""
        lent = [part for part in parts if part.has_loan]
        for access in [access for part in lent for access in part.lent_of]:
            assert self._side is not None
            self._side.check(access)
        if lent:
            calls = [part.give_back() for part in lent]
            await self._caller.shards(calls, timeout_s=self._deadline.last_step_s())

    def _call(self, part: PartGet) -> Call:
        return part.call(
            partition=self._partition,
            uids=self._uids,
            fields=self._fields,
            optional=self._optional,
            timeout_s=self._deadline.left_s(),
            borrow_s=None if self._borrowed is None else self._borrowed.lease_s,
        )

    def _join(self, parts: Sequence[PartGet]) -> dict[str, JoinedColumn | DeviceColumn]:
        if not self._caller.is_counting:
            return self._joined(parts, None)
        with self._caller.counting("get", sum(part.num_mapped for part in parts)) as moved:
            return self._joined(parts, moved)

    def _joined(
        self, parts: Sequence[PartGet], moved: Moved | None
    ) -> dict[str, JoinedColumn | DeviceColumn]:
        joined: dict[str, JoinedColumn | DeviceColumn] = {}
        for field in (*self._fields, *self._optional):
            having = [part for part in parts if field in part.columns]
            if having:
                got = [part.got(field, moved) for part in having]
                joined[field] = column = self._column(field, got)
                for number, part in enumerate(having):
                    if got[number].is_to_come:
                        part.targets[field] = _target(column, number)
        return joined

    def _column(self, field: str, got: Sequence[GotPart]) -> JoinedColumn | DeviceColumn:
        is_tensor = got[0].column.specs[0].kind is FieldKind.TENSOR
        if self._landings is None or not is_tensor:
            return JoinedColumn(field, len(self._uids), got)
        return DeviceColumn(
            field,
            len(self._uids),
            got,
            self._inverse,
            landings=self._landings,
            borrowed=self._borrowed,
        )

    async def _stream(self, parts: Sequence[PartGet], lanes: ExitStack) -> None:
        """Fetch what comes in chunks. TransferExpired when a shard did not hold it to the end."""
        streamed = [part for part in parts if part.is_streamed]
        if not streamed:
            return
        if self._landings is not None:
            self._landings.get_ready()
        fresh = [memory for part in streamed for memory in part.host_memory()]
        with touched_ahead(fresh):
            await self._fill(streamed, lanes)

    async def _fill(self, streamed: Sequence[PartGet], lanes: ExitStack) -> None:
        in_files = [(part, columns) for part in streamed if (columns := part.in_files())]
        read = await self._caller.from_files([columns for _, columns in in_files])
        for (part, _), is_read in zip(in_files, read, strict=True):
            if is_read:
                part.were_read()
        moves = [(part, move) for part in streamed if (move := part.move()) is not None]
        self._window_tries.note(move for _, move in moves)
        through = await self._caller.through_windows(
            [move for _, move in moves], timeout_s=self._deadline.last_step_s()
        )
        done = [part for (part, _), is_done in zip(moves, through, strict=True) if is_done]
        left = [part for part in streamed if part not in done]
        flows = [flow for part in left if (flow := part.flow(lanes)) is not None]
        if flows:
            await self._caller.flow(flows, timeout_s=self._deadline.last_step_s())
        calls = [part.done() for part in streamed]
        for part, answer in zip(
            streamed,
            await self._caller.shards(calls, timeout_s=self._deadline.last_step_s()),
            strict=True,
        ):
            part.check_held(answer)

    async def _land(
        self, parts: Sequence[PartGet], joined: Iterable[JoinedColumn | DeviceColumn]
    ) -> None:
        """Wait until all of the columns that are wanted there are on the device."""
        columns = [column for column in joined if isinstance(column, DeviceColumn)]
        if self._landings is None or not columns:
            return
        try:
            for column in columns:
                column.get_ready()
            self._landings.get_ready()
            timeout_s = self._deadline.last_step_s()
            copy = partial(_copy_there, self._landings, parts, columns, timeout_s)
            await self._caller.to_its_end(copy)
            ordered = [column.put_in_order() for column in columns]
            if any(ordered):  # a caller may go on with them on any stream
                done = self._landings.side.device.after_torch()
                timeout_s = self._deadline.last_step_s()
                await self._caller.to_its_end(partial(done.wait, timeout_s))
        finally:
            columns.clear()  # an error keeps this frame, and that would keep what was mapped

    def _finish(self, joined: JoinedColumn | DeviceColumn) -> Column:
        if isinstance(joined, DeviceColumn):
            return joined.finished()
        column = joined.finish()
        if self._inverse is None:
            return column
        return expand_rows(column, self._inverse, len(self._uids))


def _target(column: JoinedColumn | DeviceColumn, number: int) -> Target:
    found = column.target(number)
    return found if isinstance(found, Target) else HostTarget(found)


def _copy_there(
    landings: Landings,
    parts: Sequence[PartGet],
    columns: Sequence[DeviceColumn],
    timeout_s: float,
) -> None:
    """One wait for what came to each lane, and one for the rest of all columns."""
    end_s = time.monotonic() + timeout_s
    for part in parts:
        part.land(max(0.0, end_s - time.monotonic()))
    with landings.lane() as lane:
        for column in columns:
            lane.timeout_s = max(0.0, end_s - time.monotonic())
            column.copy_rest(lane)
        lane.flush(max(0.0, end_s - time.monotonic()))


def _distinct(uids: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The uids each once, and how to get the asked for rows from them (``None``: they are it)."""
    if len(uids) < 2 or (np.diff(uids) > 0).all():
        return uids, None
    distinct, inverse = np.unique(uids, return_inverse=True)
    return (uids, None) if len(distinct) == len(uids) else (distinct, inverse)


def decode_columns(
    columns: Mapping[str, Column], num_rows: int, *, objects: ObjectPolicy
) -> dict[str, Any]:
    """Tensors and arrays over the bytes; a mask beside each column that is only partly there."""
    decoded: dict[str, Any] = {}
    for field, column in columns.items():
        if isinstance(column, DeviceColumnBytes):
            decoded[field] = decode_on_device(column.spec, column.payload, column.lengths, num_rows)
        else:
            decoded[field] = decode_column(
                column.spec, column.payload, column.lengths, num_rows, field=field, objects=objects
            )
        if column.present is not None:
            decoded[present_name(field)] = column.present
    return decoded
