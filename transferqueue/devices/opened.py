"""The device memory of other processes that this one has open: each block once.

Drivers map a handle once a process, and only whole blocks, so whoever reads slots of one takes it
from here. A block stays open while anybody holds it, and is let go of when nobody does.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.closing import Closing
from transferqueue.errors import Closed, HandleRefused, OwnerLost

if TYPE_CHECKING:
    from transferqueue.devices.base import Device, DeviceBlock, MemoryHandle


@dataclass(slots=True)
class _Open:
    block: DeviceBlock
    holders: int


class OpenedBlocks(Closing):
    """Of the devices of one process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._open: dict[MemoryHandle, _Open] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def hold(self, device: Device, handle: MemoryHandle) -> DeviceBlock:
        """The block, opened if it is not yet; to be given back by ``let_go``.

        `OwnerLost` when its owner has ended, also while it is open here. `HandleRefused` unless
        ``device`` is the one that it is memory of: ordinals differ between processes.
        """
        self.check(handle)
        if handle.uuid != device.uuid:
            raise HandleRefused(device.name, f"it is memory of {handle.uuid}")
        with self._lock:
            if self._is_closed:
                raise Closed("the device memory of this client")
            known = self._open.get(handle)
            if known is None:
                known = self._open[handle] = _Open(device.open(handle), 0)
            known.holders += 1
            return known.block

    def let_go(self, handle: MemoryHandle) -> None:
        """Once for each ``hold``."""
        with self._lock:
            known = self._open.get(handle)
            if known is None:
                return
            known.holders -= 1
            if not known.holders:
                del self._open[handle]
                known.block.close()

    def check(self, handle: MemoryHandle) -> None:
        """To be asked *after* the bytes were copied: `OwnerLost` when they may be anybody's."""
        if handle.owner.is_alive() is False:
            raise OwnerLost(handle.uuid, str(handle.owner))

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._is_closed = True
            opened, self._open = self._open, {}
        for known in opened.values():
            known.block.close()
