"""A GPU of a `FakeMachine`, as one process uses it. Nothing of it needs hardware.

It is strict where drivers are lenient by luck: a copy moves its bytes only when the stream comes to
it, and the stream goes on only while somebody waits for it, so whoever reads without waiting reads
the wrong bytes, every time. With ``stepped`` it goes on by `FakeStream.step` alone, one piece of
work at a time: a test then sees every moment in between, while whoever waits does so on a thread of
its own. While it is `FakeGpu.held` nothing goes on, and whoever waits does wait, as for a device
that is at work.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.devices.base import (
    WAIT_S,
    Device,
    DeviceBlock,
    Event,
    MemoryHandle,
    MemoryRoom,
    Registration,
    Stream,
    refuse_opened,
    this_process,
)
from transferqueue.devices.fake_machine import FakeMachine, Fault
from transferqueue.devices.fake_memory import (
    Counters,
    FakeGpuBlock,
    PinnedMemory,
    TensorMemory,
    part_of,
)
from transferqueue.devices.host import BorrowedBlock, DoneEvent, tensor_of
from transferqueue.errors import (
    Closed,
    DeviceError,
    DeviceMissing,
    DeviceStuck,
    ExportRefused,
    HandleRefused,
    OwnerLost,
    PeerRefused,
    PinningRefused,
)
from transferqueue.memory.copying import as_bytes, copy_into

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

WATCH_S = 0.0005

MAX_EVENTS = 1000
"""Live events of one process: about where drivers run out."""


_opened: set[tuple[int, str, str, str]] = set()
"""What processes have open, by process id, machine, GPU and token: a process opens a block once,
whatever of it does."""


def open_fake(name: str) -> FakeGpu:
    """``"FOLDER:ORDINAL"``, in this process's order, or ``"FOLDER:UUID"``."""
    folder, _, which = name.rpartition(":")
    machine = FakeMachine(folder)
    order = machine.order()
    if which.isdigit() and int(which) < len(order):
        return FakeGpu(machine, order[int(which)])
    if which not in order:
        raise DeviceMissing(f"fake:{name}", f"the machine has {', '.join(machine.uuids)}")
    return FakeGpu(machine, which)


class FakeGpu(Device):
    """See the module's text. ``counters`` tells what was done."""

    def __init__(self, machine: FakeMachine, uuid: str, *, stepped: bool = False) -> None:
        self.machine, self.uuid, self.stepped = machine, uuid, stepped
        self.name = machine.name_of(uuid)
        self.ordinal = machine.order().index(uuid)
        self.counters = Counters()
        self.peers = {uuid}
        self.torch: FakeStream | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()
        with machine.memory_path(uuid).open("r+b") as memory:
            self._memory: Bytes | None = np.frombuffer(mmap.mmap(memory.fileno(), 0), np.uint8)

    def _mapped(self) -> Bytes:
        if self._memory is None:
            raise Closed(f"device {self.name}")
        return self._memory

    @contextmanager
    def held(self) -> Iterator[None]:
        """Its streams stand still until the block ends."""
        self.goes_on.clear()
        try:
            yield
        finally:
            self.goes_on.set()

    @property
    def room(self) -> MemoryRoom:
        self._mapped()
        return MemoryRoom(
            free_bytes=self.machine.free_bytes(self.uuid), total_bytes=self.machine.memory_bytes
        )

    def allocate(self, nbytes: int) -> FakeGpuBlock:
        memory = self._mapped()
        if nbytes < 1:
            raise ValueError(f"nbytes must be positive, got {nbytes}")
        found = self.machine.take(self.uuid, nbytes, this_process())
        give_back = lambda: self.machine.give_back(self.uuid, found.serial)  # noqa: E731
        return FakeGpuBlock(memory, self.uuid, found, nbytes, give_back)

    def export(self, block: DeviceBlock) -> MemoryHandle:
        self._mapped()
        refuse_opened(block)
        assert isinstance(block, FakeGpuBlock)
        if self.machine.has(Fault.REFUSE_EXPORT):
            raise ExportRefused(self.name, "the driver says no")
        uuid = "FAKE-none" if self.machine.has(Fault.WRONG_UUID) else self.uuid
        return MemoryHandle(
            uuid=uuid, nbytes=block.nbytes, owner=this_process(), token=str(block.serial)
        )

    def open(self, handle: MemoryHandle) -> FakeGpuBlock:
        memory = self._mapped()
        if handle.uuid != self.uuid:
            raise HandleRefused(self.name, f"it is memory of {handle.uuid}")
        if handle.owner == this_process():
            raise HandleRefused(self.name, "it is this process's own")
        if not handle.owner.is_alive():
            raise OwnerLost(self.name, str(handle.owner))
        opened = (os.getpid(), str(self.machine.folder), self.uuid, handle.token)
        if opened in _opened:
            raise HandleRefused(self.name, "it is open already")
        found = self.machine.find(self.uuid, int(handle.token))
        if found is None:
            raise HandleRefused(self.name, "it was freed")
        _opened.add(opened)
        self.counters.opens += 1
        forget = lambda: _opened.discard(opened)  # noqa: E731
        return FakeGpuBlock(memory, self.uuid, found, handle.nbytes, forget)

    def stream(self) -> FakeStream:
        self._mapped()
        return FakeStream(self)

    def can_reach(self, uuid: str) -> bool:
        return uuid == self.uuid or self.machine.are_peers([self.uuid, uuid])

    def enable_peer(self, peer: Device) -> None:
        if not self.can_reach(peer.uuid):
            raise PeerRefused(self.name, peer.name, "there is no link between them")
        if peer.uuid != self.uuid and self.machine.has(Fault.REFUSE_PEER):
            raise PeerRefused(self.name, peer.name, "the driver says no")
        self.peers.add(peer.uuid)

    def register(self, memory: memoryview) -> Registration:
        self._mapped()
        if self.machine.has(Fault.REFUSE_PINNING):
            raise PinningRefused(memory.nbytes, "the driver says no")
        return PinnedMemory(memory, self.counters)

    def new_tensor(self, nbytes: int) -> tuple[torch.Tensor, DeviceBlock]:
        """To torch it is a tensor of the CPU; `holds` knows it. Freed with its last user."""
        import torch

        block = self.allocate(max(1, nbytes))
        memory = np.asarray(TensorMemory(block))[:nbytes]
        return torch.from_numpy(memory), BorrowedBlock(self.uuid, memory)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of this GPU."""
        memory = self._mapped()
        at = tensor.data_ptr() - int(memory.ctypes.data)
        return tensor.device.type == "cpu" and 0 <= at < len(memory)

    def tensor_block(self, tensor: torch.Tensor) -> DeviceBlock | None:
        if not self.holds(tensor):
            return None
        at = tensor.data_ptr() - int(self._mapped().ctypes.data)
        return BorrowedBlock(self.uuid, self._mapped()[at : at + tensor.nbytes])

    def tensor_over(
        self, block: DeviceBlock, offset: int, nbytes: int, keep: object
    ) -> torch.Tensor:
        block.check(offset, nbytes)
        return tensor_of(part_of(block, offset, nbytes), keep)

    def after_torch(self) -> Event:
        """To torch it is all memory of the CPU, where it does things at once, unless a test says
        what it is at work on."""
        return DoneEvent() if self.torch is None else self.torch.record()

    def close(self) -> None:
        self._memory = None


class FakeStream(Stream):
    """A queue of work."""

    device: FakeGpu

    def __init__(self, device: FakeGpu) -> None:
        self.device = device
        self._queue: deque[Callable[[], bool]] = deque()
        self._lock = threading.Lock()

    @property
    def num_left(self) -> int:
        """Pieces of work that were given and are not done."""
        return len(self._queue)

    def step(self) -> bool:
        """Do the next piece of work. ``False``: there is none, or it waits for another stream."""
        if not self.device.goes_on.is_set() or self.device.machine.has(Fault.STUCK):
            return False
        with self._lock:
            if not self._queue:
                return False
            work = self._queue.popleft()
            if work():
                return True
            self._queue.appendleft(work)
            return False

    def go_on(self, timeout_s: float) -> None:
        """The next piece of work, when the device is held no more. `DeviceStuck` when that takes
        longer, and at once where nothing would ever go on."""
        if not self.device.goes_on.wait(timeout_s) or not self.step():
            raise DeviceStuck(self.device.name, timeout_s)

    def watch(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        """Wait while somebody else steps. `DeviceStuck`."""
        end_s = time.monotonic() + timeout_s
        while not is_over():
            if time.monotonic() > end_s:
                raise DeviceStuck(self.device.name, timeout_s)
            time.sleep(WATCH_S)

    def copy_in(self, block: DeviceBlock, offset: int, source: memoryview) -> None:
        block.check(offset, source.nbytes)
        host = as_bytes(source)
        self._give(lambda: self._copy_host(part_of(block, offset, host.nbytes), host, host))

    def copy_out(self, block: DeviceBlock, offset: int, out: memoryview) -> None:
        block.check(offset, out.nbytes)
        if out.readonly:
            raise ValueError("the memory to copy to is read-only")
        host = as_bytes(out)
        self._give(lambda: self._copy_host(host, part_of(block, offset, host.nbytes), host))

    def _copy_across(
        self,
        target: DeviceBlock,
        target_offset: int,
        source: DeviceBlock,
        source_offset: int,
        nbytes: int,
    ) -> None:
        def copy() -> None:
            found = part_of(source, source_offset, nbytes)
            copy_into(part_of(target, target_offset, nbytes), found)
            self.device.counters.bytes_across += nbytes

        self._give(copy)

    def record(self) -> FakeEvent:
        event = FakeEvent(self)
        self._give(event.reach)
        return event

    def wait_for(self, event: Event) -> None:
        if not isinstance(event, DoneEvent):
            assert isinstance(event, FakeEvent)
            self._queue.append(event.has_come)

    def synchronize(self, timeout_s: float = WAIT_S) -> None:
        if self.device.stepped:
            self.watch(lambda: not self._queue, timeout_s)
        while self._queue:
            self.go_on(timeout_s)

    def close(self) -> None:
        try:
            if not self.device.stepped:
                self.synchronize()
        finally:
            self._queue.clear()

    def _give(self, work: Callable[[], None]) -> None:
        def do() -> bool:
            work()
            return True

        self._queue.append(do)

    def _copy_host(self, target: Bytes, source: Bytes, host: Bytes) -> None:
        copy_into(target, source)
        self.device.counters.count_host(host)


class FakeEvent(Event):
    """Reached when its stream comes to it."""

    def __init__(self, stream: FakeStream) -> None:
        counters = stream.device.counters
        if counters.events_live >= MAX_EVENTS:
            raise DeviceError(f"{stream.device.name}: out of events ({MAX_EVENTS} are live)")
        counters.events_live += 1
        self._stream = stream
        self._is_reached = False

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self._stream.device.counters.events_live -= 1

    def reach(self) -> None:
        self._is_reached = True

    def has_come(self) -> bool:
        """For another stream that waits for it, and drives this one unless that is stepped."""
        if not self._stream.device.stepped:
            self.wait()
        return self._is_reached

    def is_done(self) -> bool:
        """Time passes on the device while somebody looks: one piece of work a look."""
        if not self._is_reached and not self._stream.device.stepped:
            self._stream.step()
        return self._is_reached

    def wait(self, timeout_s: float = WAIT_S) -> None:
        if self._stream.device.stepped:
            self._stream.watch(lambda: self._is_reached, timeout_s)
        while not self._is_reached:
            self._stream.go_on(timeout_s)
