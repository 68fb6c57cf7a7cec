"""A device of this process, as a client uses it: what it reaches, and copies into its tensors."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transferqueue.client.device_access import DeviceAccess
from transferqueue.client.device_puts import DeviceRows
from transferqueue.client.locked_arena import LockedArena
from transferqueue.client.postponed import Postponed
from transferqueue.closing import Closing
from transferqueue.devices.base import WAIT_S
from transferqueue.devices.ladder import Choice, ClientSide, Rung, ShardSide, choose, require
from transferqueue.devices.opened import OpenedBlocks
from transferqueue.devices.registry import find_device
from transferqueue.devices.staging import CHUNK_BYTES, Staging
from transferqueue.errors import (
    DeviceError,
    DeviceMissing,
    DeviceStuck,
    HandleRefused,
    OwnerLost,
    PeerRefused,
    PinningRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import torch

    from transferqueue.backends.arena_address import ArenaAddress
    from transferqueue.client.assembly import ColumnRows
    from transferqueue.client.device_copies import Copy, Source
    from transferqueue.client.device_puts import DeviceBytes, Ranges
    from transferqueue.client.session import ShardAddress
    from transferqueue.devices.base import Device, DeviceBlock
    from transferqueue.net.calls import Call

_log = logging.getLogger(__name__)


class DeviceSide(Closing):
    """One device, which it closes in the end. Safe to use from several threads."""

    def __init__(self, device: Device, required: Rung | None = None) -> None:
        """``required``: the worst way that will do."""
        self.device = device
        self._required = required
        self._lock = threading.Lock()
        self._stream = self.device.stream()
        self._staging = Staging(self.device)
        self._idle: list[Staging] = []
        """Rings of puts that have ended, for the next ones. No lock: a thread that has `_lock` of
        one device may want a ring of another."""
        self._stuck: list[Staging] = []
        """Kept, since the device may still write to them."""
        self._postponed = Postponed()
        self._unfinished: list[tuple[torch.Tensor, Callable[[], bool]]] = []
        """Tensors of gets that were given up, and when nothing is copied into them any more."""
        self._arenas: dict[int, LockedArena] = {}  # by slot
        self._why_not_locked = ""
        self._opened = OpenedBlocks()
        self._devices: dict[str, Device | None] = {self.device.uuid: self.device}
        self._why_not_peer: dict[str, str] = {}
        self._blocks: dict[str, DeviceBlock] = {}  # by token
        self._failed: dict[str, str] = {}  # token of a block -> why it could not be opened

    # -- ways -----------------------------------------------------------------------------------

    def way_to(self, shard: ShardAddress) -> Choice:
        """The best way for bytes from there to this device, and why not a better one.
        `RungRefused` when it is not as good as required."""
        here, there = self._client_side(shard.device), shard_side(shard, self._failed)
        return (
            choose(here, there) if self._required is None else require(self._required, here, there)
        )

    def opens(self, shard: ShardAddress) -> bool:
        """Whether bytes are copied from, or to, the shard's own device memory."""
        return shard.device is not None and self.way_to(shard).rung in (Rung.SAME_GPU, Rung.PEER)

    def _client_side(self, access: DeviceAccess | None) -> ClientSide:
        if access is not None and access.handle is not None:
            self._meet(access)
        return ClientSide(
            device_uuid=self.device.uuid,
            visible=frozenset(uuid for uuid, found in self._devices.items() if found is not None),
            peers=self._why_not_peer,
            why_not_arena_pinned=self._why_not_locked,
            why_not_pinned=self._staging.why_not_pinned,
        )

    def _meet(self, access: DeviceAccess) -> None:
        """Find the shard's device in this process, and reach its memory."""
        with self._lock:
            if access.uuid in self._devices:
                return
            try:
                peer = self._devices[access.uuid] = find_device(access.name)
                self.device.enable_peer(peer)
                self._why_not_peer[access.uuid] = ""
            except DeviceMissing:
                self._devices[access.uuid] = None
            except PeerRefused as refused:
                self._why_not_peer[access.uuid] = str(refused)

    def locked(self, shard: ShardAddress, ranges: Ranges) -> LockedArena | None:
        """The shared memory of a shard, for the device to copy from and to in these ranges, which
        are addresses and sizes of slabs. ``None`` where another way is taken; that it cannot be
        page-locked is said once, and shown by `Client.links`. `RungRefused` where it must be."""
        if shard.arena is None or self.way_to(shard).rung is not Rung.PINNED_SHM:
            return None
        try:
            with self._lock:
                found = self._arena(shard.slot, shard.arena)
                found.lock(ranges)
                return found
        except (PinningRefused, OSError) as refused:
            why = self._why_not_locked = str(refused)
        # The text: a record of the log that had the error would keep its frames, and tensors there.
        _log.warning("%s: memory of shards is not page-locked: %s", self.device.name, why)
        self.way_to(shard)
        return None

    def _arena(self, slot: int, arena: ArenaAddress) -> LockedArena:
        known = self._arenas.get(slot)
        if known is None or known.arena.token != arena.token:
            if known is not None:
                known.close()
            known = self._arenas[slot] = LockedArena(arena, self.device)
        return known

    # -- puts -----------------------------------------------------------------------------------

    def copy_out(self, source: DeviceBytes, ranges: Ranges, out: np.ndarray) -> None:
        """Ranges of a tensor, offsets and sizes, one after the other into memory of the host."""
        with self._ring() as ring:
            ring.wait_for(source.ready)
            ring.copy_ranges_out(source.block, ranges, out.data)

    def pieces_out(self, source: DeviceBytes, pieces: Sequence[Ranges]) -> Iterator[np.ndarray]:
        """As `Staging.pieces_out`."""
        with self._ring() as ring:
            ring.wait_for(source.ready)
            yield from ring.pieces_out(source.block, pieces)

    @contextmanager
    def _ring(self) -> Iterator[Staging]:
        """One of its own for each put that is under way: what is in it is waited for one put at a
        time. One that is stuck is not used again."""
        try:
            ring = self._idle.pop()
        except IndexError:
            ring = Staging(self.device)
        rings = self._idle
        try:
            yield ring
        except DeviceStuck:
            rings = self._stuck
            raise
        finally:
            rings.append(ring)

    def fill(
        self,
        access: DeviceAccess,
        columns: Sequence[tuple[int, ColumnRows]],
        timeout_s: float = WAIT_S,
    ) -> None:
        """Copy rows to the addresses that a shard has reserved for them in its device memory.

        The device has made all of the copies when this returns. `OwnerLost`, `HandleRefused`;
        after any other error some copies may come still: see `Postponed`.
        """
        with self._lock:
            block = self._block(access)
            self.check_owner(access)
            for event in {c.source.ready for _, c in columns if isinstance(c, DeviceRows)}:
                self._stream.wait_for(event)
            for address, column in columns:
                if isinstance(column, DeviceRows) and column.side is self:
                    self._copy_rows(block, address, column)
                else:
                    self._stage_rows(block, address, column)
            self._finish(timeout_s)
        self.check(access)

    def postpones(self, abort: Call) -> bool:
        """A put was given up in a `fill` or `place`. Whether copies of it may come yet, and its
        abort is postponed until they are done."""
        with self._lock:
            is_over = self._end_of_copies()
            if is_over():
                return False
            self._postponed.add(abort, is_over)
            return True

    def _end_of_copies(self) -> Callable[[], bool]:
        """Whether all that the device was given until now is done; never, if it cannot say."""
        try:
            marks = [self._staging.record(), self._stream.record()]
        except DeviceError:
            return lambda: False

        def is_over() -> bool:
            try:
                return all(mark.is_done() for mark in marks)
            except DeviceError:
                return False

        return is_over

    def postpone(self, call: Call, when: Callable[[], bool]) -> None:
        """See `Postponed`."""
        with self._lock:
            self._postponed.add(call, when)

    def has_postponed(self) -> bool:
        return bool(len(self._postponed))

    def due(self) -> list[Call]:
        """Of those that were postponed: to be sent. None while something is copied, which whoever
        asks is not to wait for."""
        if not len(self._postponed) or not self._lock.acquire(blocking=False):
            return []
        try:
            return self._postponed.take_due()
        finally:
            self._lock.release()

    def _finish(self, timeout_s: float) -> None:
        """Wait until the device has made all copies, by whichever of the two streams."""
        start_s = time.monotonic()
        self._staging.flush(timeout_s)
        self._stream.record().wait(max(0.0, timeout_s - (time.monotonic() - start_s)))

    def place(
        self,
        arena: LockedArena,
        columns: Sequence[tuple[int, DeviceRows]],
        timeout_s: float = WAIT_S,
    ) -> None:
        """As `fill`, to page-locked shared memory of a shard."""
        with self._lock:
            for event in {column.source.ready for _, column in columns}:
                self._stream.wait_for(event)
            for address, column in columns:
                self._place_rows(arena, address, column)
            self._stream.record().wait(timeout_s)

    def _place_rows(self, arena: LockedArena, address: int, rows: DeviceRows) -> None:
        for start, nbytes in rows.ranges(0, rows.num_bytes):
            at = start
            for piece in arena.pieces(address, nbytes):
                self._stream.copy_out(rows.source.block, at, piece)
                at += piece.nbytes
            address += nbytes

    def _copy_rows(self, block: DeviceBlock, address: int, rows: DeviceRows) -> None:
        for start, nbytes in rows.ranges(0, rows.num_bytes):
            self._stream.copy_across(block, address, rows.source.block, start, nbytes)
            address += nbytes

    def _stage_rows(self, block: DeviceBlock, address: int, rows: ColumnRows) -> None:
        """Of the host, or of another device."""
        lows = range(0, rows.num_bytes, CHUNK_BYTES)
        pieces = [(low, min(CHUNK_BYTES, rows.num_bytes - low)) for low in lows]
        for low, data in zip(lows, rows.cuts(pieces), strict=True):
            self._staging.copy_in(block, address + low, data.data)

    # -- gets -----------------------------------------------------------------------------------

    def filled(
        self,
        nbytes: int,
        sources: Sequence[Source],
        copies: Sequence[Copy],
        timeout_s: float = WAIT_S,
    ) -> torch.Tensor:
        """A new uint8 tensor ``[nbytes]`` on the device, when all copies into it are done.

        One event is waited for, however many copies there are. `OwnerLost`, `HandleRefused`.
        After an error the tensor is kept for as long as copies may come still.
        """
        tensor, target = self.device.new_tensor(nbytes)
        with self._lock:
            self._unfinished = [one for one in self._unfinished if not one[1]()]
            try:
                self._copy_all(target, sources, copies)
                self._finish(timeout_s)
            except BaseException:
                self._unfinished.append((tensor, self._end_of_copies()))
                raise
        return tensor

    def _copy_all(
        self, target: DeviceBlock, sources: Sequence[Source], copies: Sequence[Copy]
    ) -> None:
        for copy in copies:
            source = sources[copy.source]
            if isinstance(source, DeviceAccess):
                block = self._block(source)
                self._stream.copy_across(target, copy.target, block, copy.start, copy.nbytes)
            elif isinstance(source, LockedArena):
                at = copy.target
                for piece in source.pieces(copy.start, copy.nbytes):
                    self._stream.copy_in(target, at, piece)
                    at += piece.nbytes
            else:
                data = source[copy.start : copy.start + copy.nbytes]
                self._staging.copy_in(target, copy.target, data.data)

    def viewed(self, access: DeviceAccess, start: int, nbytes: int, keep: object) -> torch.Tensor:
        """A uint8 tensor ``[nbytes]`` that is memory of a shard on this very device, under a lease.
        It and all made from it hold ``keep``. `HandleRefused`, `OwnerLost`."""
        with self._lock:
            return self.device.tensor_over(self._block(access), start, nbytes, keep)

    def _block(self, access: DeviceAccess) -> DeviceBlock:
        """Opened at its first use, and kept open until `close`, or the owner's end."""
        known = self._blocks.get(access.token)
        if known is None:
            device = self._devices[access.uuid]
            assert device is not None
            assert access.handle is not None
            try:
                known = self._blocks[access.token] = self._opened.hold(device, access.handle)
            except HandleRefused as refused:
                self._failed[access.token] = str(refused)  # from now on there is another way
                raise
        return known

    def check(self, access: DeviceAccess) -> None:
        """`OwnerLost` when what was copied from there may be anything."""
        try:
            self.check_owner(access)
        except OwnerLost:
            with self._lock:
                self._let_go(access)
            raise

    def check_owner(self, access: DeviceAccess) -> None:
        """`OwnerLost` when the process whose memory it is has ended."""
        assert access.handle is not None
        self._opened.check(access.handle)

    def _let_go(self, access: DeviceAccess) -> None:
        if self._blocks.pop(access.token, None) is not None:
            assert access.handle is not None
            self._opened.let_go(access.handle)

    def close(self) -> None:
        """Tensors that were made stay valid. What is postponed shards take back themselves when
        this process ends."""
        with self._lock:
            self._postponed = Postponed()
            for ring in (self._staging, *self._idle, *self._stuck):
                ring.close()
            self._stream.close()
            for arena in self._arenas.values():
                arena.close()
            self._opened.close()
            for device in self._devices.values():
                if device is not None:
                    device.close()
            self._devices.clear()


def shard_side(shard: ShardAddress, failed: Mapping[str, str]) -> ShardSide:
    """``failed``: by token, why a block could not be opened although its shard shows it."""
    access = shard.device
    why_not_shown = ""
    if access is not None:
        why_not_shown = access.why_not_shown or failed.get(access.token, "")
    return ShardSide(
        slot=shard.slot,
        same_host=shard.same_host,
        why_not_watched=shard.why_not_watched,
        device_uuid=None if access is None else access.uuid,
        why_not_shown=why_not_shown,
        why_not_mapped=shard.why_not_mapped,
    )
