"""The other process of the device contract: does what it is told, a line of JSON at a time."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from transferqueue.devices.base import MemoryHandle
from transferqueue.devices.registry import find_device
from transferqueue.errors import TransferQueueError
from transferqueue.testing.device_probe import pattern, read, write

if TYPE_CHECKING:
    from transferqueue.devices.base import Device, DeviceBlock


class _Served:
    """What the other process holds."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = device.stream()
        self._blocks: list[DeviceBlock] = []

    def allocate(self, seed: int, nbytes: int) -> Any:
        self._blocks.append(self._device.allocate(nbytes))
        write(self._stream, self._blocks[-1], 0, pattern(seed, nbytes))
        return self._device.export(self._blocks[-1]).to_plain()

    def open(self, handle: dict[str, Any]) -> int:
        self._blocks.append(self._device.open(MemoryHandle.from_plain(handle)))
        return self._blocks[-1].nbytes

    def export(self) -> Any:
        """Of what was opened last."""
        return self._device.export(self._blocks[-1]).to_plain()

    def read(self, offset: int, nbytes: int) -> str:
        return read(self._stream, self._blocks[-1], offset, nbytes).tobytes().hex()

    def write(self, offset: int, seed: int, nbytes: int) -> None:
        write(self._stream, self._blocks[-1], offset, pattern(seed, nbytes))

    def let_go(self) -> None:
        self._blocks.pop().close()


def _serve(name: str) -> None:
    served = _Served(find_device(name))
    for line in sys.stdin:
        what, arguments = json.loads(line)
        try:
            answer = {"found": getattr(served, what)(**arguments)}
        except (TransferQueueError, ValueError) as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
