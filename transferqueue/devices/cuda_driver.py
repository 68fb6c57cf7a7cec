"""The CUDA driver's own calls, by ``ctypes``: no torch, no toolkit, no compiler.

Only calls that are part of the driver's stable ABI, by their versioned names. Every one is made
with the device's *primary* context current, which is the one that torch uses too, so that pointers
mean the same to both.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from transferqueue.errors import DeviceError, DeviceMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = "libcuda.so.1"

OUT_OF_MEMORY: Final = 2
NOT_READY: Final = 600
PEER_ACCESS_ALREADY_ENABLED: Final = 704

STREAM_NON_BLOCKING: Final = 1
EVENT_DISABLE_TIMING: Final = 2
IPC_MEM_LAZY_ENABLE_PEER_ACCESS: Final = 1
MEM_HOST_REGISTER_PORTABLE: Final = 1

IPC_HANDLE_BYTES: Final = 64


class IpcMemHandle(ctypes.Structure):
    """Passed by value, as the driver wants it."""

    _fields_ = (("reserved", ctypes.c_ubyte * IPC_HANDLE_BYTES),)


class CudaFailure(DeviceError):
    """A call returned something else than success. ``args``: the message; ``status`` beside it."""

    status: int = -1


_POINTER, _SIZE, _INT, _UINT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
_DEVICE_POINTER = ctypes.c_uint64

_CALLS: Final = {
    "cuInit": [_UINT],
    "cuGetErrorName": [_INT, _POINTER],
    "cuGetErrorString": [_INT, _POINTER],
    "cuDeviceGetCount": [_POINTER],
    "cuDeviceGet": [_POINTER, _INT],
    "cuDeviceCanAccessPeer": [_POINTER, _INT, _INT],
    "cuDevicePrimaryCtxRetain": [_POINTER, _INT],
    "cuDevicePrimaryCtxRelease_v2": [_INT],
    "cuCtxPushCurrent_v2": [_POINTER],
    "cuCtxPopCurrent_v2": [_POINTER],
    "cuCtxEnablePeerAccess": [_POINTER, _UINT],
    "cuMemGetInfo_v2": [_POINTER, _POINTER],
    "cuMemAlloc_v2": [_POINTER, _SIZE],
    "cuMemFree_v2": [_DEVICE_POINTER],
    "cuIpcGetMemHandle": [_POINTER, _DEVICE_POINTER],
    "cuIpcOpenMemHandle_v2": [_POINTER, IpcMemHandle, _UINT],
    "cuIpcCloseMemHandle": [_DEVICE_POINTER],
    "cuMemHostRegister_v2": [_POINTER, _SIZE, _UINT],
    "cuMemHostUnregister": [_POINTER],
    "cuMemcpyHtoDAsync_v2": [_DEVICE_POINTER, _POINTER, _SIZE, _POINTER],
    "cuMemcpyDtoHAsync_v2": [_POINTER, _DEVICE_POINTER, _SIZE, _POINTER],
    "cuMemcpyAsync": [_DEVICE_POINTER, _DEVICE_POINTER, _SIZE, _POINTER],
    "cuStreamCreate": [_POINTER, _UINT],
    "cuStreamDestroy_v2": [_POINTER],
    "cuStreamWaitEvent": [_POINTER, _POINTER, _UINT],
    "cuEventCreate": [_POINTER, _UINT],
    "cuEventRecord": [_POINTER, _POINTER],
    "cuEventQuery": [_POINTER],
    "cuEventDestroy_v2": [_POINTER],
}
"""Names and arguments; every one returns a status."""

_UUID: Final = ("cuDeviceGetUuid_v2", "cuDeviceGetUuid")
"""The newer one tells slices of one GPU (MIG) apart, between which nothing is shown."""


class CudaDriver:
    """The library, initialized."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._get_uuid = next((name for name in _UUID if hasattr(library, name)), _UUID[-1])
        for name, arguments in {**_CALLS, self._get_uuid: [_POINTER, _INT]}.items():
            function = getattr(library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """`CudaFailure` unless it succeeds."""
        status = self.status(name, *arguments)
        if status:
            raise self.failure(name, status)

    def status(self, name: str, *arguments: object) -> int:
        """What it returns: 0 for success."""
        return int(getattr(self._library, name)(*arguments))

    def failure(self, name: str, status: int) -> CudaFailure:
        told = CudaFailure(f"{name}: {self._text('cuGetErrorName', status)} "
                           f"({self._text('cuGetErrorString', status)})")  # fmt: skip
        told.status = status
        return told

    def _text(self, name: str, status: int) -> str:
        text = ctypes.c_char_p()
        known = self.status(name, status, ctypes.byref(text)) == 0
        return text.value.decode() if known and text.value else f"error {status}"

    def uuids(self) -> list[str]:
        """Of the devices that this process sees, in its order; as ``nvidia-smi -L`` shows them."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self._uuid(self.device(ordinal)) for ordinal in range(count.value)]

    def device(self, ordinal: int) -> int:
        found = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(found), ordinal)
        return found.value

    def _uuid(self, device: int) -> str:
        raw = (ctypes.c_ubyte * 16)()
        self.call(self._get_uuid, ctypes.byref(raw), device)
        text = bytes(raw).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    @contextmanager
    def current(self, context: ctypes.c_void_p) -> Iterator[None]:
        """This thread's calls in the block are for the device of that context."""
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.status("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@lru_cache(maxsize=1)
def cuda_driver() -> CudaDriver:
    """`DeviceMissing` where there is no driver, or no device that it drives."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceMissing("cuda", f"there is no CUDA driver here: {error}") from error
    try:
        return CudaDriver(library)
    except (CudaFailure, AttributeError) as error:
        raise DeviceMissing("cuda", f"the CUDA driver cannot be used: {error}") from error
