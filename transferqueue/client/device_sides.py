"""The devices of this process that one client uses."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from transferqueue.client.device_access import DeviceAccess
from transferqueue.client.device_side import DeviceSide, shard_side
from transferqueue.closing import Closing
from transferqueue.devices.ladder import ClientSide, Rung, require
from transferqueue.devices.registry import find_device
from transferqueue.errors import ConfigError, DeviceMissing

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from transferqueue.client.session import ShardAddress
    from transferqueue.devices.base import DeviceBlock, Event

Ways = dict[int, tuple[DeviceSide, DeviceAccess]]
"""To device memory of a shard, by number: the device that copies there."""

_log = logging.getLogger(__name__)


class DeviceSides(Closing):
    """The devices that a client's gets land on, and its puts come from, by name."""

    def __init__(self, default: str | None, required: str | None) -> None:
        """``required``: the worst way to the default device. `ConfigError` for one there is not."""
        self._default = default
        self._required = _rung(required)
        self._sides: dict[str, DeviceSide] = {}
        self._undriven: set[str] = set()
        self._lock = threading.Lock()

    def side(self, device: object = None) -> DeviceSide | None:
        """``device``: a name or ``torch.device``, ``None`` for the default one. ``None``: the
        bytes are wanted in memory of the host. `DeviceMissing`."""
        name = self._default if device is None else str(device)
        if name is None or name == "cpu":
            return None
        if name == "cuda":
            name = f"cuda:{_current_cuda()}"
        with self._lock:
            if name not in self._sides:
                self._sides[name] = self._opened(name)
            return self._sides[name]

    def _opened(self, name: str) -> DeviceSide:
        """One a device, by whatever names it goes: a process opens memory of others once."""
        device = find_device(name)
        for known in self._sides.values():
            if known.device.uuid == device.uuid:
                device.close()
                return known
        return DeviceSide(device, self._required if name == self._default else None)

    @property
    def are_open(self) -> bool:
        """Whether there is any."""
        return bool(self._sides)

    def of_tensors(self, device: torch.device) -> DeviceSide | None:
        """The side of a device of torch's; ``None``, said once, for one that nothing here drives:
        its tensors are put from memory of the host. `DeviceMissing` where a way is required."""
        name = str(device)
        if name in self._undriven:
            return None
        try:
            return self.side(device)
        except DeviceMissing as missing:
            if self._required is not None:
                raise
            self._undriven.add(name)
            _log.warning("tensors on %s are put by way of the host: %s", name, missing)
            return None

    def holding(self, tensor: torch.Tensor) -> tuple[DeviceSide, DeviceBlock] | None:
        """The side in whose device's memory the bytes of a tensor are, of those that are open."""
        for side in dict.fromkeys(self._sides.values()):
            block = side.device.tensor_block(tensor)
            if block is not None:
                return side, block
        return None

    def before_reading(self, tensors: Iterable[torch.Tensor]) -> list[Event]:
        """After which the host can read these tensors without waiting; one a device.
        `DeviceMissing` where a way is required."""
        sides = dict.fromkeys(map(self._side_of, tensors))
        return [side.device.after_torch() for side in sides if side is not None]

    def _side_of(self, tensor: torch.Tensor) -> DeviceSide | None:
        if tensor.device.type != "cpu":
            return self.of_tensors(tensor.device)
        found = self.holding(tensor) if self.are_open else None
        return None if found is None else found[0]

    def opening(self, shard: ShardAddress, first: DeviceSide | None = None) -> Ways:
        """By which of the devices that are open bytes are copied to each device memory of the
        shard, ``first`` before others. None is opened for it: that takes seconds, and memory of
        the device."""
        found: Ways = {}
        sides = [*(() if first is None else (first,)), *self._sides.values()]
        for side in dict.fromkeys(sides) if shard.devices else ():
            found = {n: (side, access) for n, access in side.opened(shard).items()} | found
        return found

    def check(self, shards: Iterable[ShardAddress]) -> None:
        """At the start: `DeviceMissing`, `RungRefused`, and `ConfigError` for a way to a device
        when there is none."""
        side = self.side()
        for shard in shards:
            if side is not None:
                side.way_to(shard)
            elif self._required is not None:
                require(self._required, ClientSide(), shard_side(shard, shard.device, {}))

    def close(self) -> None:
        with self._lock:
            sides, self._sides = self._sides, {}
        for side in set(sides.values()):
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
