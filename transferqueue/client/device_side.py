"""A device of this process, as a client uses it: what it reaches, and copies into its tensors."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.client.device_access import DeviceAccess
from transferqueue.client.device_lanes import DeviceLanes
from transferqueue.client.locked_arena import LockedArena
from transferqueue.client.postponed import Postponed
from transferqueue.closing import Closing
from transferqueue.devices.ladder import Choice, ClientSide, Rung, ShardSide, choose, require
from transferqueue.devices.opened import OpenedBlocks
from transferqueue.devices.registry import find_device
from transferqueue.errors import (
    DeviceMissing,
    HandleRefused,
    OwnerLost,
    PeerRefused,
    PinningRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

    from transferqueue.backends.arena_address import ArenaAddress
    from transferqueue.client.device_bytes import DeviceBytes, Ranges
    from transferqueue.client.device_copies import Lent
    from transferqueue.client.device_layout import Copies
    from transferqueue.client.session import ShardAddress
    from transferqueue.devices.base import Device, DeviceBlock, MemoryHandle
    from transferqueue.devices.staging import Staging
    from transferqueue.net.calls import Call

BATCH = 1000
"""Copies that a device is given before the first of them is waited for."""

_log = logging.getLogger(__name__)


class DeviceSide(Closing):
    """One device, which it closes in the end. Safe to use from several threads, and whoever holds
    its lock never waits for the device."""

    def __init__(self, device: Device, required: Rung | None = None) -> None:
        """``required``: the worst way that will do."""
        self.device = device
        self._required = required
        self._lock = threading.Lock()
        self.lanes = DeviceLanes(self.device)
        self._postponed = Postponed()
        self._arenas: dict[int, LockedArena] = {}  # by slot
        self._why_not_locked = ""
        self._opened = OpenedBlocks()
        self._devices: dict[str, Device | None] = {self.device.uuid: self.device}
        self._why_not_peer: dict[str, str] = {}
        self._blocks: dict[str, DeviceBlock] = {}  # by token
        self._accesses: dict[str, DeviceAccess] = {}  # of those
        self._lost: list[tuple[MemoryHandle, Callable[[], bool]]] = []
        """Of owners that have ended: let go of when no copy from there can be under way."""
        self._looked_at: dict[MemoryHandle, list[weakref.ref[object]]] = {}
        """By whom memory is looked at where it is."""
        self._failed: dict[str, str] = {}  # token of a block -> why it could not be opened

    # -- ways -----------------------------------------------------------------------------------

    def way_to(self, shard: ShardAddress) -> Choice:
        """The best way for bytes from there to this device, and why not a better one.
        `RungRefused` when it is not as good as required."""
        here = self._client_side(shard.device)
        there = shard_side(shard, shard.device, self._failed)
        return (
            choose(here, there) if self._required is None else require(self._required, here, there)
        )

    def way_beside(self, shard: ShardAddress, access: DeviceAccess) -> Choice:
        """As `way_to`, for what the shard keeps on a device beside its own memory. Whatever is
        required: that is of the shard's own memory."""
        return choose(self._client_side(access), shard_side(shard, access, self._failed))

    def opened(self, shard: ShardAddress) -> dict[int, DeviceAccess]:
        """The device memory of the shard that bytes are copied from and to, by number."""
        return {n: access for n, access in shard.devices.items() if self._opens(shard, access)}

    def _opens(self, shard: ShardAddress, access: DeviceAccess) -> bool:
        is_own = access.number == 0
        way = self.way_to(shard) if is_own else self.way_beside(shard, access)
        return way.rung in (Rung.SAME_GPU, Rung.PEER)

    def _client_side(self, access: DeviceAccess | None) -> ClientSide:
        if access is not None and access.handle is not None:
            self._meet(access)
        return ClientSide(
            device_uuid=self.device.uuid,
            visible=frozenset(uuid for uuid, found in self._devices.items() if found is not None),
            peers=self._why_not_peer,
            why_not_arena_pinned=self._why_not_locked,
            why_not_pinned=self.lanes.why_not_pinned,
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
            known = self._arenas[slot] = LockedArena(arena, self.device)
        return known

    # -- puts -----------------------------------------------------------------------------------

    def copy_out(self, source: DeviceBytes, ranges: Ranges, out: np.ndarray) -> None:
        """Ranges of a tensor, offsets and sizes, one after the other into memory of the host."""
        with self.lanes.lane(keep=source) as lane:
            lane.wait_for(source.ready)
            lane.copy_ranges_out(source.block, ranges, out.data)

    def copy_each_out(self, copies: Sequence[tuple[DeviceBytes, np.ndarray]]) -> None:
        """Whole tensors, each to memory of the host of its own."""
        with self.lanes.lane(keep=copies) as lane:
            for source, _ in copies:
                lane.wait_for(source.ready)
            lane.copy_each_out((source.block, 0, out) for source, out in copies)

    def pieces_out(
        self, source: DeviceBytes, pieces: Sequence[Ranges]
    ) -> Iterator[np.ndarray | None]:
        """As `Staging.pieces_out`."""
        with self.lanes.lane(keep=source) as lane:
            lane.wait_for(source.ready)
            yield from lane.pieces_out(source.block, pieces)

    def lent_out(self, source: DeviceBytes, pieces: Sequence[Ranges]) -> Iterator[np.ndarray]:
        """As `Staging.lent_out`."""
        with self.lanes.lane(keep=source) as lane:
            lane.wait_for(source.ready)
            yield from lane.lent_out(source.block, pieces)

    def postpones(self, abort: Call) -> bool:
        """A put was given up in one of `device_fills`. Whether copies of it may come yet, and its
        abort is postponed until they are done."""
        is_over = self.lanes.end_of_copies()
        if is_over():
            return False
        self.postpone(abort, is_over)
        return True

    def postpone(self, call: Call, when: Callable[[], bool]) -> None:
        """See `Postponed`."""
        with self._lock:
            self._postponed.add(call, when)

    def has_postponed(self) -> bool:
        return bool(len(self._postponed))

    def due(self) -> list[Call]:
        """Of those that were postponed: to be sent."""
        if not len(self._postponed) and not self._blocks and not self._lost:
            return []
        with self._lock:
            for access in list(self._accesses.values()):
                assert access.handle is not None
                if access.handle.owner.is_alive() is False:  # whose successor needs the room
                    self._let_go(access)
            self._let_go_of_lost()
            return self._postponed.take_due()

    # -- gets -----------------------------------------------------------------------------------

    def copy_all(
        self,
        lane: Staging,
        target: DeviceBlock,
        sources: Sequence[Lent | None],
        copies: Iterable[Copies],
    ) -> None:
        """Have the device copy to a tensor of its own. ``sources``: of each part the memory, if it
        copies from there. `OwnerLost`, `HandleRefused`.

        A driver takes about a thousand copies ahead, and then makes whoever gives it another one
        wait, without a deadline. So they are waited for in batches.
        """
        given = 0
        for of_part in copies:
            source = sources[of_part.part]
            assert source is not None
            for start, at, nbytes in zip(*map(np.ndarray.tolist, of_part[1:]), strict=True):
                given += self._copy(lane, target, source, start, at, nbytes)
                if given >= BATCH:
                    lane.flush()
                    given = 0

    def _copy(
        self, lane: Staging, target: DeviceBlock, source: Lent, start: int, at: int, nbytes: int
    ) -> int:
        """Returns how many copies it takes."""
        if isinstance(source, DeviceAccess):
            lane.stream.copy_across(target, at, self.block(source), start, nbytes)
            return 1
        num_copies = 0
        for piece in source.pieces(start, nbytes):
            lane.stream.copy_in(target, at, piece)
            at += piece.nbytes
            num_copies += 1
        return num_copies

    def viewed(self, access: DeviceAccess, start: int, nbytes: int, keep: object) -> torch.Tensor:
        """A uint8 tensor ``[nbytes]`` that is memory of a shard on this very device, under a lease.
        It and all made from it hold ``keep``. `HandleRefused`, `OwnerLost`."""
        block = self.block(access)
        assert access.handle is not None
        with self._lock:
            self._looked_at.setdefault(access.handle, []).append(weakref.ref(keep))
        return self.device.tensor_over(block, start, nbytes, keep)

    def block(self, access: DeviceAccess) -> DeviceBlock:
        """Opened at its first use, and kept open until `close`, or the owner's end."""
        with self._lock:
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
                self._accesses[access.token] = access
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
        """Not at once: a copy from memory that is unmapped is an error after which nothing of this
        process can use the device any more."""
        self._accesses.pop(access.token, None)
        if self._blocks.pop(access.token, None) is not None:
            assert access.handle is not None
            self._lost.append((access.handle, self.lanes.end_of_work()))
        self._let_go_of_lost()

    def _let_go_of_lost(self) -> None:
        """Memory that was looked at is kept to the end: a kernel that was given to the device may
        read it after its last tensor has gone."""
        lost, self._lost = self._lost, []
        for handle, is_over in lost:
            if handle in self._looked_at or not is_over():
                self._lost.append((handle, is_over))
            else:
                self._opened.let_go(handle)

    def close(self) -> None:
        """Tensors that were made stay valid, and what borrowed ones look at stays open. What is
        postponed shards take back themselves when this process ends."""
        self.lanes.close()
        with self._lock:
            self._postponed = Postponed()
            for arena in self._arenas.values():
                arena.close()
            self._opened.close(but=self._seen())
            for device in self._devices.values():
                if device is not None:
                    self._opened.close_device(device)
            self._devices.clear()

    def _seen(self) -> set[MemoryHandle]:
        """What some tensor looks at still."""
        found = self._looked_at.items()
        return {handle for handle, by in found if any(one() is not None for one in by)}


def shard_side(
    shard: ShardAddress, access: DeviceAccess | None, failed: Mapping[str, str]
) -> ShardSide:
    """``access``: the device memory in question; ``None``: it is the shard's memory of the host.
    ``failed``: by token, why a block could not be opened although its shard shows it."""
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
