"""The device memory of other processes that this one has open: each block once.

Drivers map a handle once a process, and only whole blocks, so whoever reads slots of one takes it
from here, whichever client it is for. A block stays open while anybody holds it, and is let go of
when nobody does.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.closing import Closing
from transferqueue.errors import Closed, HandleRefused, OwnerLost

if TYPE_CHECKING:
    from collections.abc import Collection

    from transferqueue.devices.base import Device, DeviceBlock, MemoryHandle


@dataclass(slots=True)
class _Open:
    block: DeviceBlock
    device: Device
    """That opened it."""
    holders: int = 0


class _OfProcess:
    """What all clients of a process have open together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._open: dict[MemoryHandle, _Open] = {}
        self._ending: list[Device] = []
        """To be closed when nothing that they have opened is held any more."""

    def hold(self, device: Device, handle: MemoryHandle) -> DeviceBlock:
        known = self._open.get(handle)
        if known is None:
            known = self._open[handle] = _Open(device.open(handle), device)
        known.holders += 1
        return known.block

    def let_go(self, handle: MemoryHandle) -> None:
        known = self._open[handle]
        known.holders -= 1
        if not known.holders:
            del self._open[handle]
            known.block.close()
            if known.device in self._ending:
                self.end(known.device)

    def end(self, device: Device) -> None:
        """Close a device, now or later."""
        if device in self._ending:
            self._ending.remove(device)
        if any(known.device is device for known in self._open.values()):
            self._ending.append(device)
        else:
            device.close()


_of_process: dict[int, _OfProcess] = {}
"""By process id: a forked child has nothing open."""


class OpenedBlocks(Closing):
    """Of one device side. Safe to use from several threads."""

    def __init__(self) -> None:
        self._all = _of_process.setdefault(os.getpid(), _OfProcess())
        self._held: Counter[MemoryHandle] = Counter()
        self._is_closed = False

    def hold(self, device: Device, handle: MemoryHandle) -> DeviceBlock:
        """The block, opened if it is not yet; to be given back by ``let_go``.

        `OwnerLost` when its owner has ended, also while it is open here. `HandleRefused` unless
        ``device`` is the one that it is memory of: ordinals differ between processes.
        """
        self.check(handle)
        if handle.uuid != device.uuid:
            raise HandleRefused(device.name, f"it is memory of {handle.uuid}")
        with self._all.lock:
            if self._is_closed:
                raise Closed("the device memory of this client")
            block = self._all.hold(device, handle)
            self._held[handle] += 1
            return block

    def let_go(self, handle: MemoryHandle) -> None:
        """Once for each ``hold``."""
        with self._all.lock:
            if self._held[handle]:
                self._held[handle] -= 1
                self._all.let_go(handle)

    def check(self, handle: MemoryHandle) -> None:
        """To be asked *after* the bytes were copied: `OwnerLost` when they may be anybody's."""
        if handle.owner.is_alive() is False:
            raise OwnerLost(handle.uuid, str(handle.owner))

    def close_device(self, device: Device) -> None:
        """When nothing that it has opened is held any more, also for other clients."""
        with self._all.lock:
            self._all.end(device)

    def close(self, *, but: Collection[MemoryHandle] = ()) -> None:
        """Let go of everything, ``but`` what is in use for as long as this process is there."""
        with self._all.lock:
            self._is_closed = True
            held, self._held = self._held, Counter()
            for handle in held.elements():
                if handle not in but:
                    self._all.let_go(handle)
