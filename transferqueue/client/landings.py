"""Bytes of a get that land on a device as they come, while others are on their way.

What has come goes into a chunk of a page-locked ring, and from there the device takes it while the
socket brings the next. Nothing of the size of a column is ever in memory of the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.devices.staging import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import ExitStack

    import torch

    from transferqueue.client.device_side import DeviceSide
    from transferqueue.devices.base import DeviceBlock, Event
    from transferqueue.devices.staging import Staging
    from transferqueue.wire.chunks import Runs

Ranges = list[tuple[int, int]]


class Landings:
    """The tensors of one get on its device."""

    def __init__(self, side: DeviceSide, timeout_s: float) -> None:
        """``timeout_s``: for each wait for the device."""
        self.side, self.timeout_s = side, timeout_s
        self._tensors: list[torch.Tensor] = []
        self._kept: list[object] = [self._tensors]
        self._ready: Event | None = None

    def new_tensor(self, nbytes: int) -> tuple[torch.Tensor, DeviceBlock]:
        """As of `Device`, on the caller's thread: torch gives it to the stream that is current
        there. Kept for as long as copies to it may come, whatever becomes of the get."""
        tensor, block = self.side.device.new_tensor(nbytes)
        self._tensors.append(tensor)
        self._ready = None
        return tensor, block

    def keep(self, memory: object) -> None:
        """What copies are from, for as long as some may come."""
        self._kept.append(memory)

    def get_ready(self) -> None:
        """What is copied from now on comes after what torch had to do with the memory of the
        tensors. On the caller's thread; one event for all of them."""
        if self._tensors and self._ready is None:
            self._ready = self.side.device.after_torch()

    @contextmanager
    def lane(self) -> Iterator[Staging]:
        """To copy to the tensors, when they are ready."""
        with self.side.lanes.lane(self.timeout_s, keep=self._kept) as lane:
            if self._ready is not None:
                lane.wait_for(self._ready)
            yield lane


class Inflow:
    """What has come from one shard, on its way through a ring. Never waits before `finish`.

    What the ring has no room for is kept until it has, and meanwhile nothing more is asked for, so
    that is never more than was under way.
    """

    def __init__(self, lane: Staging, device: str) -> None:
        self.device = device
        self._lane = lane
        self._kept: deque[tuple[DeviceBlock, Ranges, memoryview]] = deque()

    def give(self, block: DeviceBlock, ranges: Ranges, data: memoryview) -> None:
        """At most a chunk of the ring, which stays as it is."""
        self._kept.append((block, ranges, data))
        self.settle()

    def settle(self) -> bool:
        """Whether the device has been given all that has come."""
        while self._kept and self._lane.has_room:
            self._lane.copy_ranges_in(*self._kept.popleft())
        return not self._kept

    def finish(self, timeout_s: float) -> None:
        """Wait until the device has it all. `DeviceStuck`."""
        self._lane.timeout_s = timeout_s
        while self._kept:
            self._lane.copy_ranges_in(*self._kept.popleft())
        self._lane.flush()


class Target(ABC):
    """Where the bytes of one part of a column are to come."""

    nbytes: int

    @abstractmethod
    def take(self, offset: int, data: memoryview) -> None:
        """Some of them have come."""

    @abstractmethod
    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Offsets and memory to be filled, each until the next is asked for."""


class HostTarget(Target):
    """Memory of the host."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory  # uint8[bytes]
        self.nbytes = len(memory)

    def take(self, offset: int, data: memoryview) -> None:
        self.memory[offset : offset + data.nbytes] = np.frombuffer(data, np.uint8)

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        if self.nbytes:
            yield 0, self.memory.data


class DeviceTarget(Target):
    """Places in a tensor on a device."""

    def __init__(self, landings: Landings, block: DeviceBlock, runs: Runs) -> None:
        """``runs``: where in the block the bytes go, in the order in which they come."""
        self.landings = landings
        self.nbytes = runs.total_bytes
        self.inflow: Inflow | None = None
        """What it takes goes through; set before anything comes."""
        self._block, self._runs = block, runs

    def take(self, offset: int, data: memoryview) -> None:
        assert self.inflow is not None
        self.inflow.give(self._block, self._ranges(offset, data.nbytes), data)

    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Memory of a ring, from which the device copies when the next is asked for. At the end of
        this all of it is there."""
        if not self.nbytes:
            return
        with self.landings.lane() as lane:
            for low in range(0, self.nbytes, CHUNK_BYTES):
                size = min(CHUNK_BYTES, self.nbytes - low)
                with lane.chunk(size) as memory:
                    yield low, memory.data
                    lane.copy_chunk_in(self._block, self._ranges(low, size), memory)
            lane.flush()

    def _ranges(self, offset: int, nbytes: int) -> Ranges:
        starts, sizes = self._runs.cut(offset, nbytes)
        return list(zip(starts.tolist(), sizes.tolist(), strict=True))


def inflow_to(targets: Iterable[Target], lanes: ExitStack) -> Inflow | None:
    """What those of the targets that are on a device take goes through, if there are any. All of
    them are of one get; ``lanes`` has its lane until it is closed."""
    there = [target for target in targets if isinstance(target, DeviceTarget) and target.nbytes]
    if not there:
        return None
    landings = there[0].landings
    inflow = Inflow(lanes.enter_context(landings.lane()), landings.side.device.name)
    for target in there:
        target.inflow = inflow
    return inflow
