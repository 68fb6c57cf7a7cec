"""What the checks of the device contract are written with, a second process among it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.closing import Closing
from transferqueue.devices.base import Device, MemoryHandle
from transferqueue.testing.broken import ContractBroken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from transferqueue.devices.base import DeviceBlock, Stream

    Bytes = NDArray[np.uint8]

DeviceMaker = Callable[[], Device]
DeviceCheck = Callable[[DeviceMaker], None]

BLOCK_BYTES = 1 << 20

_SERVED_BY = "transferqueue.testing.device_process"


def pattern(seed: int, nbytes: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@contextlib.contextmanager
def block_of(maker: DeviceMaker) -> Iterator[tuple[Device, DeviceBlock, Stream]]:
    """A device with a block of `BLOCK_BYTES` and a stream."""
    with maker() as device, device.allocate(BLOCK_BYTES) as block, device.stream() as stream:
        yield device, block, stream


def write(stream: Stream, block: DeviceBlock, offset: int, data: Bytes) -> None:
    stream.copy_in(block, offset, data.data)
    stream.synchronize()


def read(stream: Stream, block: DeviceBlock, offset: int, nbytes: int) -> Bytes:
    out = np.zeros(nbytes, np.uint8)
    stream.copy_out(block, offset, out.data)
    stream.synchronize()
    return out


class OtherProcess(Closing):
    """The same device in a process of its own, that does one thing after the other.

    Started rather than forked: drivers do not survive a fork.
    """

    def __init__(self, device: Device) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", _SERVED_BY, device.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str, **arguments: Any) -> Any:
        """``allocate``, ``open``, ``read``, ``write``. Raises what it raised there, by name."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ContractBroken(f"the other process ended at {what}")
        answer = json.loads(line)
        if "error" in answer:
            raise OtherFailed(answer["error"], answer["message"])
        return answer["found"]

    def allocate(self, seed: int, nbytes: int) -> MemoryHandle:
        """A block of the other process, filled with ``pattern(seed, nbytes)``."""
        return MemoryHandle.from_plain(self.ask("allocate", seed=seed, nbytes=nbytes))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


class OtherFailed(Exception):
    """What was asked raised. ``args``: name of the class, message."""

    @property
    def error(self) -> str:
        return str(self.args[0])
