"""A device of this process, as a client uses it: what it reaches, and copies into its tensors."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from transferqueue.client.device_access import DeviceAccess
from transferqueue.closing import Closing
from transferqueue.devices.ladder import Choice, ClientSide, Rung, ShardSide, choose, require
from transferqueue.devices.opened import OpenedBlocks
from transferqueue.devices.registry import find_device
from transferqueue.devices.staging import Staging
from transferqueue.errors import ConfigError, DeviceMissing, HandleRefused, OwnerLost, PeerRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from transferqueue.client.device_copies import Copy, Source
    from transferqueue.client.session import ShardAddress
    from transferqueue.devices.base import Device, DeviceBlock

ARENA_IS_NOT_LOCKED = (
    "arenas are not page-locked: copies go through a ring of page-locked memory instead"
)


class DeviceSide(Closing):
    """One device, opened when it is first asked for. Safe to use from several threads."""

    def __init__(self, name: str, required: Rung | None = None) -> None:
        """``required``: the worst way that will do. `DeviceMissing`."""
        self.device = find_device(name)
        self._required = required
        self._lock = threading.Lock()
        self._stream = self.device.stream()
        self._staging = Staging(self.device)
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
        """Whether bytes are copied from the shard's own device memory."""
        return shard.device is not None and self.way_to(shard).rung in (Rung.SAME_GPU, Rung.PEER)

    def _client_side(self, access: DeviceAccess | None) -> ClientSide:
        if access is not None and access.handle is not None:
            self._meet(access)
        return ClientSide(
            device_uuid=self.device.uuid,
            visible=frozenset(uuid for uuid, found in self._devices.items() if found is not None),
            peers=self._why_not_peer,
            why_not_arena_pinned=ARENA_IS_NOT_LOCKED,
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

    # -- copies ---------------------------------------------------------------------------------

    def filled(
        self, nbytes: int, sources: Sequence[Source], copies: Sequence[Copy]
    ) -> torch.Tensor:
        """A new uint8 tensor ``[nbytes]`` on the device, when all copies into it are done.

        One event is waited for, however many copies there are. `OwnerLost`, `HandleRefused`.
        """
        tensor, target = self.device.new_tensor(nbytes)
        with self._lock:
            for copy in copies:
                source = sources[copy.source]
                if isinstance(source, DeviceAccess):
                    block = self._block(source)
                    self._stream.copy_across(target, copy.target, block, copy.start, copy.nbytes)
                else:
                    data = source[copy.start : copy.start + copy.nbytes]
                    self._staging.copy_in(target, copy.target, data.data)
            self._staging.flush()
            self._stream.record().wait()
        return tensor

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
        assert access.handle is not None
        try:
            self._opened.check(access.handle)
        except OwnerLost:
            with self._lock:
                if self._blocks.pop(access.token, None) is not None:
                    self._opened.let_go(access.handle)
            raise

    def close(self) -> None:
        """Tensors that were made stay valid."""
        with self._lock:
            self._staging.close()
            self._stream.close()
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


class DeviceSides(Closing):
    """The devices that a client's gets land on, by name."""

    def __init__(self, default: str | None, required: str | None) -> None:
        """``required``: the worst way to the default device. `ConfigError` for one there is not."""
        self._default = default
        self._required = _rung(required)
        self._sides: dict[str, DeviceSide] = {}
        self._lock = threading.Lock()

    def side(self, device: object = None) -> DeviceSide | None:
        """``device``: a name or ``torch.device``, ``None`` for the default one. ``None``: the
        bytes are wanted in memory of the host. `DeviceMissing`."""
        name = self._default if device is None else str(device)
        if name is None or name == "cpu":
            return None
        if name == "cuda":
            name = f"cuda:{_current_cuda()}"
        required = self._required if name == self._default else None
        with self._lock:
            if name not in self._sides:
                self._sides[name] = DeviceSide(name, required)
            return self._sides[name]

    def check(self, shards: Iterable[ShardAddress]) -> None:
        """At the start: `DeviceMissing`, `RungRefused`, and `ConfigError` for a way to a device
        when there is none."""
        side = self.side()
        for shard in shards:
            if side is not None:
                side.way_to(shard)
            elif self._required is not None:
                require(self._required, ClientSide(), shard_side(shard, {}))

    def close(self) -> None:
        with self._lock:
            sides, self._sides = self._sides, {}
        for side in sides.values():
            side.close()


def _rung(name: str | None) -> Rung | None:
    try:
        return None if name is None else Rung(name)
    except ValueError:
        known = [rung.value for rung in Rung]
        raise ConfigError(f"required must be one of {known}, got {name!r}") from None


def _current_cuda() -> int:
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() else 0
