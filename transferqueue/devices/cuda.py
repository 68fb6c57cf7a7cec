"""A CUDA device, by its driver.

Written from NVIDIA's documentation of the driver API, and checked against a stand-in for the
library: **it has not yet run on hardware**. ``pytest -m gpu`` runs the contract, and ``tests/gpu``
the rest, where there is a device.

What the documentation says that shaped it:

* a handle names a whole ``cuMemAlloc`` allocation, and cannot be had of memory from pools or of
  virtual memory (which torch's expandable segments are), hence one plain allocation an arena;
* freeing memory that another process has open is undefined: the arena is freed when its shard ends;
* small allocations share pages of 2 MiB, and a handle is of the pages: what is exported takes its
  pages alone, so that its handle names nothing else;
* a context may open a handle again and gets the same pointer, counted: the contract's "once" is
  kept here, so that closing is never counted wrong.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

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
from transferqueue.devices.cuda_driver import (
    EVENT_DISABLE_TIMING,
    IPC_HANDLE_BYTES,
    IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
    MEM_HOST_REGISTER_PORTABLE,
    NOT_READY,
    OUT_OF_MEMORY,
    PEER_ACCESS_ALREADY_ENABLED,
    STREAM_NON_BLOCKING,
    CudaDriver,
    IpcMemHandle,
    cuda_driver,
)
from transferqueue.devices.cuda_memory import CudaArray, CudaBlock, CudaRegistration, TensorBlock
from transferqueue.errors import (
    Closed,
    DeviceFull,
    DeviceMissing,
    DeviceStuck,
    ExportRefused,
    HandleRefused,
    OwnerLost,
    PeerRefused,
    PinningRefused,
)
from transferqueue.memory.copying import as_bytes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch

SHARED_PAGE_BYTES = 2 << 20

POLL_S = 20e-6
"""Between looks at an event that is not done. The driver's own wait has no deadline."""


def open_cuda(name: str) -> CudaDevice:
    """``"0"``, as this process (and its torch) numbers them, or ``"GPU-…"``."""
    driver = cuda_driver()
    uuids = driver.uuids()
    which = name or "0"
    if which.isdigit() and int(which) < len(uuids):
        return CudaDevice(driver, int(which), uuids[int(which)])
    if which not in uuids:
        seen = ", ".join(uuids) or "none"
        raise DeviceMissing(f"cuda:{name}", f"this process sees {seen} ($CUDA_VISIBLE_DEVICES)")
    return CudaDevice(driver, uuids.index(which), which)


class CudaDevice(Device):
    """Holds a reference to the device's primary context."""

    def __init__(self, driver: CudaDriver, ordinal: int, uuid: str) -> None:
        self.driver, self.ordinal, self.uuid = driver, ordinal, uuid
        self.name = f"cuda:{uuid}"
        self.peers = {uuid}
        self.number = driver.device(ordinal)
        self._opened: set[str] = set()
        self._events: set[int] = set()
        context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.number)
        self._context: ctypes.c_void_p | None = context

    @property
    def context(self) -> ctypes.c_void_p:
        if self._context is None:
            raise Closed(f"device {self.name}")
        return self._context

    def current(self) -> AbstractContextManager[None]:
        return self.driver.current(self.context)

    @property
    def room(self) -> MemoryRoom:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self.current():
            self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return MemoryRoom(free_bytes=free.value, total_bytes=total.value)

    def allocate(self, nbytes: int) -> CudaBlock:
        if nbytes < 1:
            raise ValueError(f"nbytes must be positive, got {nbytes}")
        pointer = ctypes.c_uint64()
        taken = -(-nbytes // SHARED_PAGE_BYTES) * SHARED_PAGE_BYTES
        with self.current():
            status = self.driver.status("cuMemAlloc_v2", ctypes.byref(pointer), taken)
        if status == OUT_OF_MEMORY:
            raise DeviceFull(self.name, nbytes, self.room.free_bytes)
        if status:
            raise self.driver.failure("cuMemAlloc_v2", status)
        return CudaBlock(self.uuid, pointer.value, nbytes, None, self._let_go)

    def _let_go(self, pointer: int, token: str | None) -> None:
        """Free memory, or close what was opened. After the device was closed the driver has."""
        if self._context is None:
            return
        with self.current():
            if token is None:
                self.driver.call("cuMemFree_v2", pointer)
            else:
                self._opened.discard(token)
                self.driver.call("cuIpcCloseMemHandle", pointer)

    def export(self, block: DeviceBlock) -> MemoryHandle:
        refuse_opened(block)
        handle = IpcMemHandle()
        with self.current():
            status = self.driver.status("cuIpcGetMemHandle", ctypes.byref(handle), block.address)
        if status:
            failure = self.driver.failure("cuIpcGetMemHandle", status)
            raise ExportRefused(self.name, str(failure))
        token = bytes(handle.reserved).hex()
        return MemoryHandle(uuid=self.uuid, nbytes=block.nbytes, owner=this_process(), token=token)

    def open(self, handle: MemoryHandle) -> CudaBlock:
        self._refuse(handle)
        plain, pointer = IpcMemHandle(), ctypes.c_uint64()
        ctypes.memmove(ctypes.byref(plain), bytes.fromhex(handle.token), IPC_HANDLE_BYTES)
        with self.current():
            status = self.driver.status(
                "cuIpcOpenMemHandle_v2",
                ctypes.byref(pointer),
                plain,
                IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
            )
        if status:
            if not handle.owner.is_alive():
                raise OwnerLost(self.name, str(handle.owner))
            failure = self.driver.failure("cuIpcOpenMemHandle_v2", status)
            raise HandleRefused(self.name, str(failure))
        self._opened.add(handle.token)
        return CudaBlock(self.uuid, pointer.value, handle.nbytes, handle.token, self._let_go)

    def _refuse(self, handle: MemoryHandle) -> None:
        if handle.uuid != self.uuid:
            raise HandleRefused(self.name, f"it is memory of {handle.uuid}")
        if handle.owner == this_process():
            raise HandleRefused(self.name, "it is this process's own")
        if handle.owner.is_alive() is False:
            raise OwnerLost(self.name, str(handle.owner))
        if handle.token in self._opened:
            raise HandleRefused(self.name, "it is open already")
        if len(handle.token) != 2 * IPC_HANDLE_BYTES:
            raise HandleRefused(self.name, f"{handle.token[:20]!r} is not a handle of CUDA's")

    def stream(self) -> CudaStream:
        return CudaStream(self)

    def can_reach(self, uuid: str) -> bool:
        uuids = self.driver.uuids()
        if uuid == self.uuid or uuid not in uuids:
            return uuid == self.uuid
        can = ctypes.c_int()
        peer = self.driver.device(uuids.index(uuid))
        self.driver.call("cuDeviceCanAccessPeer", ctypes.byref(can), self.number, peer)
        return bool(can.value)

    def enable_peer(self, peer: Device) -> None:
        if peer.uuid in self.peers:
            return
        if not isinstance(peer, CudaDevice) or not self.can_reach(peer.uuid):
            raise PeerRefused(self.name, peer.name, "the driver says that it cannot")
        with self.current():
            status = self.driver.status("cuCtxEnablePeerAccess", peer.context, 0)
        if status not in (0, PEER_ACCESS_ALREADY_ENABLED):
            failure = self.driver.failure("cuCtxEnablePeerAccess", status)
            raise PeerRefused(self.name, peer.name, str(failure))
        self.peers.add(peer.uuid)

    def register(self, memory: memoryview) -> Registration:
        pages = as_bytes(memory)
        with self.current():
            status = self.driver.status(
                "cuMemHostRegister_v2", pages.ctypes.data, pages.nbytes, MEM_HOST_REGISTER_PORTABLE
            )
        if status:
            failure = self.driver.failure("cuMemHostRegister_v2", status)
            raise PinningRefused(pages.nbytes, str(failure))
        return CudaRegistration(memory, self._unlock)

    def _unlock(self, address: int) -> None:
        with self.current():
            self.driver.call("cuMemHostUnregister", address)

    def new_tensor(self, nbytes: int) -> tuple[torch.Tensor, DeviceBlock]:
        """torch's allocator gives out memory that the stream which is current may still be working
        on, and no other."""
        import torch

        try:
            tensor = torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{self.ordinal}")
        except torch.cuda.OutOfMemoryError as error:
            raise DeviceFull(self.name, nbytes, self.room.free_bytes) from error
        return tensor, TensorBlock(self.uuid, tensor.data_ptr(), nbytes)

    def tensor_block(self, tensor: torch.Tensor) -> DeviceBlock | None:
        if tensor.device.type != "cuda" or tensor.device.index != self.ordinal:
            return None
        return TensorBlock(self.uuid, tensor.data_ptr(), tensor.nbytes)

    def tensor_over(
        self, block: DeviceBlock, offset: int, nbytes: int, keep: object
    ) -> torch.Tensor:
        import torch

        block.check(offset, nbytes)
        on_device = torch.device("cuda", self.ordinal)
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8, device=on_device)
        return torch.as_tensor(CudaArray(block.address + offset, nbytes, keep), device=on_device)

    def after_torch(self) -> CudaEvent:
        import torch

        stream = torch.cuda.current_stream(torch.device("cuda", self.ordinal))
        return CudaEvent(self, ctypes.c_void_p(stream.cuda_stream))

    def new_event(self) -> int:
        """Destroyed by ``drop_event``, or with the device."""
        pointer = ctypes.c_void_p()
        with self.current():
            self.driver.call("cuEventCreate", ctypes.byref(pointer), EVENT_DISABLE_TIMING)
        assert pointer.value is not None
        self._events.add(pointer.value)
        return pointer.value

    def drop_event(self, pointer: int) -> None:
        """Of a device that was closed there is none left."""
        if pointer in self._events:
            self._events.discard(pointer)
            with self.current():
                self.driver.status("cuEventDestroy_v2", pointer)

    def close(self) -> None:
        """Blocks that are still open end with the last reference to the context, which may be
        torch's; events do not wait for that."""
        for event in list(self._events):
            self.drop_event(event)
        context, self._context = self._context, None
        if context is not None:
            self.driver.call("cuDevicePrimaryCtxRelease_v2", self.number)


class CudaStream(Stream):
    """A stream that does not wait for the default one."""

    device: CudaDevice

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._stream: ctypes.c_void_p | None = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(self._stream), STREAM_NON_BLOCKING)

    @property
    def pointer(self) -> ctypes.c_void_p:
        if self._stream is None:
            raise Closed(f"a stream of {self.device.name}")
        return self._stream

    def copy_in(self, block: DeviceBlock, offset: int, source: memoryview) -> None:
        block.check(offset, source.nbytes)
        host = as_bytes(source)
        self._call(
            "cuMemcpyHtoDAsync_v2",
            block.address + offset,
            host.ctypes.data,
            host.nbytes,
            self.pointer,
        )

    def copy_out(self, block: DeviceBlock, offset: int, out: memoryview) -> None:
        block.check(offset, out.nbytes)
        if out.readonly:
            raise ValueError("the memory to copy to is read-only")
        host = as_bytes(out)
        self._call(
            "cuMemcpyDtoHAsync_v2",
            host.ctypes.data,
            block.address + offset,
            host.nbytes,
            self.pointer,
        )

    def _copy_across(
        self,
        target: DeviceBlock,
        target_offset: int,
        source: DeviceBlock,
        source_offset: int,
        nbytes: int,
    ) -> None:
        self._call(
            "cuMemcpyAsync",
            target.address + target_offset,
            source.address + source_offset,
            nbytes,
            self.pointer,
        )

    def record(self) -> CudaEvent:
        return CudaEvent(self.device, self.pointer)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self._call("cuStreamWaitEvent", self.pointer, event.pointer, 0)

    def synchronize(self, timeout_s: float = WAIT_S) -> None:
        self.record().wait(timeout_s)

    def close(self) -> None:
        if self._stream is None:
            return
        try:
            self.synchronize()
        finally:
            stream, self._stream = self._stream, None
            self._call("cuStreamDestroy_v2", stream)

    def _call(self, name: str, *arguments: object) -> None:
        with self.device.current():
            self.device.driver.call(name, *arguments)


class CudaEvent(Event):
    """Recorded when it is made, destroyed with its last reference."""

    def __init__(self, device: CudaDevice, stream: ctypes.c_void_p) -> None:
        """``stream``: as the driver knows it; 0 is the default one."""
        self._device = device
        self.pointer = device.new_event()
        with device.current():
            device.driver.call("cuEventRecord", self.pointer, stream)

    def is_done(self) -> bool:
        """Raises what the driver reports of any copy before it."""
        with self._device.current():
            status = self._device.driver.status("cuEventQuery", self.pointer)
        if status not in (0, NOT_READY):
            raise self._device.driver.failure("cuEventQuery", status)
        return status == 0

    def wait(self, timeout_s: float = WAIT_S) -> None:
        start_s = time.monotonic()
        while not self.is_done():
            waited_s = time.monotonic() - start_s
            if waited_s > timeout_s:
                raise DeviceStuck(self._device.name, waited_s)
            time.sleep(POLL_S)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._device.drop_event(self.pointer)
