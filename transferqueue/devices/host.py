"""The host as a device: what a backend of devices runs on where there is none.

Its blocks are anonymous shared memory (``memfd``), which goes with the last process that has it,
and is shown to other processes of this user by ``/proc``. Copies are done when the call returns.
"""

from __future__ import annotations

import mmap
import os
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
from transferqueue.errors import (
    Closed,
    DeviceFull,
    DeviceMissing,
    HandleRefused,
    OwnerLost,
    PeerRefused,
)
from transferqueue.memory.copying import as_bytes, copy_into
from transferqueue.process_id import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


def open_host(name: str) -> HostDevice:
    """``"host"``: there is one."""
    if name not in ("", HostDevice.uuid_here()):
        raise DeviceMissing(f"host:{name}", "it is another host's")
    return HostDevice()


class HostBlock(DeviceBlock):
    """A mapping of one anonymous file."""

    def __init__(
        self, uuid: str, fd: int, nbytes: int, *, is_own: bool, on_close: Callable[[], None]
    ) -> None:
        self.uuid, self.nbytes, self.is_own = uuid, nbytes, is_own
        self.fd = fd if is_own else -1  # of an opened one the mapping has a copy
        self._on_close = on_close
        self._bytes: Bytes | None = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
        if not is_own:
            os.close(fd)

    @property
    def bytes(self) -> Bytes:
        """All of it, uint8[nbytes]."""
        if self._bytes is None:
            raise Closed("this block of device memory")
        return self._bytes

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    def part(self, offset: int, nbytes: int) -> Bytes:
        self.check(offset, nbytes)
        return self.bytes[offset : offset + nbytes]

    def close(self) -> None:
        if self._bytes is not None:
            self._bytes = None
            if self.is_own:
                os.close(self.fd)
            self._on_close()


class BorrowedBlock(DeviceBlock):
    """Ordinary memory that somebody else frees."""

    def __init__(self, uuid: str, memory: Bytes) -> None:
        self.uuid, self.nbytes, self.is_own = uuid, memory.nbytes, False
        self._memory = memory

    @property
    def address(self) -> int:
        return int(self._memory.ctypes.data)

    def part(self, offset: int, nbytes: int) -> Bytes:
        self.check(offset, nbytes)
        return self._memory[offset : offset + nbytes]

    def close(self) -> None:
        pass


class HostDevice(Device):
    """One a host, of ordinary memory."""

    def __init__(self) -> None:
        self.uuid = self.uuid_here()
        self.name = f"host:{self.uuid}"
        self.ordinal = 0
        self.peers = {self.uuid}
        self._opened: set[str] = set()
        self._is_closed = False

    @staticmethod
    def uuid_here() -> str:
        return f"HOST-{boot_id()}"

    @property
    def room(self) -> MemoryRoom:
        self._refuse_closed()
        page = os.sysconf("SC_PAGE_SIZE")
        return MemoryRoom(
            free_bytes=os.sysconf("SC_AVPHYS_PAGES") * page,
            total_bytes=os.sysconf("SC_PHYS_PAGES") * page,
        )

    def allocate(self, nbytes: int) -> HostBlock:
        room = self.room
        if nbytes < 1:
            raise ValueError(f"nbytes must be positive, got {nbytes}")
        if nbytes > room.total_bytes:
            raise DeviceFull(self.name, nbytes, room.free_bytes)
        fd = os.memfd_create("transferqueue-host-block", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes)
            return HostBlock(self.uuid, fd, nbytes, is_own=True, on_close=lambda: None)
        except BaseException:
            os.close(fd)
            raise

    def export(self, block: DeviceBlock) -> MemoryHandle:
        self._refuse_closed()
        refuse_opened(block)
        assert isinstance(block, HostBlock)
        return MemoryHandle(
            uuid=self.uuid,
            nbytes=block.nbytes,
            owner=this_process(),
            token=f"{block.fd}:{os.fstat(block.fd).st_ino}",
        )

    def open(self, handle: MemoryHandle) -> HostBlock:
        self._refuse_closed()
        self._refuse(handle)
        number, _, inode = handle.token.partition(":")
        try:
            fd = os.open(f"/proc/{handle.owner.pid}/fd/{int(number)}", os.O_RDWR | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            if not handle.owner.is_alive():
                raise OwnerLost(self.name, str(handle.owner)) from error
            raise HandleRefused(self.name, str(error)) from error
        found = os.fstat(fd)
        if str(found.st_ino) != inode or found.st_size != handle.nbytes:
            os.close(fd)
            raise HandleRefused(self.name, "it was freed")
        self._opened.add(handle.token)
        forget = lambda: self._opened.discard(handle.token)  # noqa: E731
        return HostBlock(self.uuid, fd, handle.nbytes, is_own=False, on_close=forget)

    def _refuse(self, handle: MemoryHandle) -> None:
        if handle.uuid != self.uuid:
            raise HandleRefused(self.name, f"it is memory of {handle.uuid}")
        if handle.owner == this_process():
            raise HandleRefused(self.name, "it is this process's own")
        if not handle.owner.is_alive():
            raise OwnerLost(self.name, str(handle.owner))
        if handle.token in self._opened:
            raise HandleRefused(self.name, "it is open already")

    def stream(self) -> HostStream:
        self._refuse_closed()
        return HostStream(self)

    def can_reach(self, uuid: str) -> bool:
        return uuid == self.uuid

    def enable_peer(self, peer: Device) -> None:
        if not self.can_reach(peer.uuid):
            raise PeerRefused(self.name, peer.name, "the host has no peers")

    def register(self, memory: memoryview) -> Registration:
        """Nothing is locked: no device reads it."""
        self._refuse_closed()
        return KeptMemory(memory)

    def new_tensor(self, nbytes: int) -> tuple[torch.Tensor, DeviceBlock]:
        import torch

        self._refuse_closed()
        tensor = torch.empty(nbytes, dtype=torch.uint8)
        return tensor, BorrowedBlock(self.uuid, tensor.numpy())

    def tensor_block(self, tensor: torch.Tensor) -> DeviceBlock | None:
        import torch

        if tensor.device.type != "cpu":
            return None
        memory: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
        return BorrowedBlock(self.uuid, memory)

    def tensor_over(
        self, block: DeviceBlock, offset: int, nbytes: int, keep: object
    ) -> torch.Tensor:
        block.check(offset, nbytes)
        return tensor_of(_part(block, offset, nbytes), keep)

    def after_torch(self) -> Event:
        return DoneEvent()

    def close(self) -> None:
        self._is_closed = True

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise Closed(f"device {self.name}")


class HostStream(Stream):
    """Does everything at once."""

    def __init__(self, device: HostDevice) -> None:
        self.device = device

    def copy_in(self, block: DeviceBlock, offset: int, source: memoryview) -> None:
        copy_into(_part(block, offset, source.nbytes), source)

    def copy_out(self, block: DeviceBlock, offset: int, out: memoryview) -> None:
        copy_into(out, _part(block, offset, out.nbytes))

    def _copy_across(
        self,
        target: DeviceBlock,
        target_offset: int,
        source: DeviceBlock,
        source_offset: int,
        nbytes: int,
    ) -> None:
        copy_into(_part(target, target_offset, nbytes), _part(source, source_offset, nbytes))

    def record(self) -> Event:
        return DoneEvent()

    def wait_for(self, event: Event) -> None:
        event.wait()

    def synchronize(self, timeout_s: float = WAIT_S) -> None:
        pass

    def close(self) -> None:
        pass


class KeepingArray:
    """Memory as numpy takes it, and what is to live as long."""

    def __init__(self, memory: Bytes, keep: object) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._kept = memory, keep


def tensor_of(memory: Bytes, keep: object) -> torch.Tensor:
    """A tensor of the CPU that is that memory, and holds ``keep``."""
    import torch

    return torch.from_numpy(np.asarray(KeepingArray(memory, keep)))


class DoneEvent(Event):
    """Of work that was done when it was given."""

    def is_done(self) -> bool:
        return True

    def wait(self, timeout_s: float = WAIT_S) -> None:
        pass


class KeptMemory(Registration):
    """Host memory that is kept alive and no more."""

    def __init__(self, memory: memoryview) -> None:
        self.memory: memoryview | None = as_bytes(memory).data

    def close(self) -> None:
        self.memory = None


def _part(block: DeviceBlock, offset: int, nbytes: int) -> Bytes:
    assert isinstance(block, HostBlock | BorrowedBlock)
    return block.part(offset, nbytes)
