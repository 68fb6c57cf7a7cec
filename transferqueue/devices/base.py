"""The contract between this package and an accelerator. A manual for implementers.

A `Device` is one accelerator **as one process uses it**. It gives out whole blocks of memory, shows
them to other processes, opens what others show, and copies bytes on streams. Everything above it
(arenas, leases, ladders, views) is decided without knowing what the device is, and is tested on
`FakeGpu`, whose memory is files.

Life of a block::

    owner    allocate ──> export ─ ─ handle ─ ─┐            ... copies ...            close (freed)
    reader                                     └─> open ──> ... copies ... ──> close (let go)

* ``allocate`` takes one whole block, once, for an arena. Slots within it are offsets, and are not
  the device's affair: a handle always names the whole block.
* ``export`` makes a `MemoryHandle`: plain values, to be sent. Asking again gives the same one.
* ``open`` maps another process's block. **Once**: while it is open a second ``open`` of the same
  handle is `HandleRefused`, and so is that of this process's own export. Whoever needs it in
  several places keeps it in one (`OpenedBlocks`). What was opened is never exported again.
* The owner outlives its readers, or they are lost: when it has ended, ``open`` is `OwnerLost`, and
  blocks that are open hold anything. Nothing here can notice that in time: readers look whether
  the owner lives *after* they have read (`OpenedBlocks.check`), and only then believe it.
* ``close`` of an own block frees it, of an opened one lets go. Copies that were given to a stream
  and are not done yet must be waited for before.

Streams and events:

* Work on one stream is done in the order in which it was given; the call returns before it is
  done. Host memory that is named in a copy must stay as it is until then. Of memory that is not
  registered an implementation may copy at once, or wait: that is slower and no fault.
* An `Event` marks a place in a stream: it is done when everything given before it is. Events are
  of one process. **None crosses a process boundary**: drivers run out of shared events at about a
  thousand, and none is needed. A writer waits for its stream before it says "committed", a reader
  for one event a lease before it says "released"; the order of those two messages is the order of
  the memory accesses.
* `Stream.synchronize` and `Event.wait` have a deadline: `DeviceStuck`. Bytes that a copy was to
  write are undefined then, and the memory must not be given to anybody else.

A device is named by its ``uuid``, the same in every process and after a restart. The ordinal is of
one process only, since each may see other devices in another order: it is never sent.

One thread at a time uses a stream; several may use a device.

After a failure:

========================  ========================================================================
``allocate`` raised       nothing was taken (`DeviceFull` says how much there was)
``export`` raised         `ExportRefused`: the block is as before, for this process alone
``open`` raised           `HandleRefused` (another device's, own, open already, freed), `OwnerLost`;
                          nothing is mapped
``register`` raised       `PinningRefused`: the memory is usable as it was, at ordinary speed
``enable_peer`` raised    `PeerRefused`; copies between the two raise it too
a copy raised             ``ValueError``: outside of the block; nothing was given to the stream
a copy failed later       `DeviceError` from ``synchronize`` or ``wait``, as the driver reports it
``close``                 of the device: idempotent; later calls raise `Closed`
the process was killed    the driver frees its blocks; a copy that was under way may go on for a
                          moment, so slots of a dead *writer* are kept apart for a while: see
                          `transferqueue.devices.slots`
========================  ========================================================================

What a port needs (ROCm, Ascend, others). All of it is in this one class; nothing above says CUDA.

* **ROCm**: HIP has each call under the same name (``hipIpcGetMemHandle``, ``hipIpcOpenMemHandle``,
  ``hipHostRegister``, ``hipDeviceCanAccessPeer``, ``hipMemcpyAsync``, ``hipEventRecord``), and
  torch calls the device ``cuda``, so another table of names for `transferqueue.devices.cuda_driver`
  is most of it. UUIDs come from ``hipDeviceGetUuid``. Tensors over memory that was opened come from
  ``__cuda_array_interface__`` there too.
* **Ascend**: ACL has ``aclrtMalloc``, ``aclrtMemcpyAsync``, streams and events; between processes
  ``aclrtIpcMemGetExportKey``, ``aclrtIpcMemSetImportPid`` and ``aclrtIpcMemImportByKey``, which
  name the reader's pid in advance: ``export`` is then called once a reader, with the pid that the
  lease request carries, and ``MemoryHandle.token`` holds the key. Host registration is
  ``aclrtHostRegister`` where the driver has it; else raise `PinningRefused`. A device has no UUID
  before some driver version: serial number and slot serve as well. torch_npu has streams and events
  under torch's names (``torch.npu.current_stream``); where there is no way to a tensor over memory
  that was opened, ``tensor_over`` raises `DeviceError`, and `Client.borrow` with it.
* A device **without IPC** raises `ExportRefused`: the ladder then takes host memory.

These are read from documentation; none of it has been run.

`transferqueue.testing.check_device` runs all of this against an implementation. A package makes
its devices known by an entry point that names a function from what follows the colon to a device
(``"npu:0"`` calls it with ``"0"``)::

    [project.entry-points."transferqueue.devices"]
    npu = "mypackage.device:open_device"
"""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from transferqueue.closing import Closing
from transferqueue.errors import DeviceError, Malformed, PeerRefused
from transferqueue.process_id import ProcessId

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

WAIT_S = 30.0
"""How long copies may take before the device is said to be stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHandle:
    """What names a block of device memory in another process. Plain values."""

    uuid: str
    """Of the device that the block is on."""
    nbytes: int
    owner: ProcessId
    token: str
    """The driver's own handle, as hex or text."""

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """`Malformed` when the values are not a handle's."""
        try:
            owner = ProcessId(**plain["owner"])
            return cls(**{**plain, "owner": owner})
        except (TypeError, KeyError) as error:
            raise Malformed(f"not a handle of device memory: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """How much memory a device has, of all processes."""

    free_bytes: int
    total_bytes: int


class DeviceBlock(Closing):
    """One block of device memory. ``close`` frees it, or lets go of what was opened."""

    uuid: str
    """Of its device."""
    nbytes: int
    is_own: bool
    """Allocated here, rather than opened."""

    @property
    @abstractmethod
    def address(self) -> int:
        """Where it begins, as a pointer of this process. `Closed` after ``close``."""

    def check(self, offset: int, nbytes: int) -> None:
        """``ValueError`` for bytes outside of it."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"[{offset}, {offset + nbytes}) is outside [0, {self.nbytes})")


class Event:
    """A place in a stream that was reached, or will be. Of one process."""

    @abstractmethod
    def is_done(self) -> bool:
        """Without waiting."""

    @abstractmethod
    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Until it is done. `DeviceStuck` when it takes longer."""


class Stream(Closing):
    """Copies in order. Each call returns before the bytes have moved. ``close`` waits for them."""

    device: Device

    @abstractmethod
    def copy_in(self, block: DeviceBlock, offset: int, source: memoryview) -> None:
        """Host memory, contiguous, to the block from ``offset`` on."""

    @abstractmethod
    def copy_out(self, block: DeviceBlock, offset: int, out: memoryview) -> None:
        """The block from ``offset`` on to host memory, contiguous and writable."""

    def copy_across(
        self,
        target: DeviceBlock,
        target_offset: int,
        source: DeviceBlock,
        source_offset: int,
        nbytes: int,
    ) -> None:
        """From block to block. They may be on two devices: `PeerRefused` unless ``enable_peer``
        was called, on the device of this stream, for the one that is not its own."""
        target.check(target_offset, nbytes)
        source.check(source_offset, nbytes)
        for uuid in (target.uuid, source.uuid):
            if uuid not in self.device.peers:
                raise PeerRefused(self.device.name, uuid, "enable_peer was not called")
        self._copy_across(target, target_offset, source, source_offset, nbytes)

    @abstractmethod
    def _copy_across(
        self,
        target: DeviceBlock,
        target_offset: int,
        source: DeviceBlock,
        source_offset: int,
        nbytes: int,
    ) -> None:
        """`copy_across`, when both ends were checked."""

    @abstractmethod
    def record(self) -> Event:
        """An event that is done when all given so far is."""

    @abstractmethod
    def wait_for(self, event: Event) -> None:
        """What is given from now on begins after the event, also that of another stream."""

    @abstractmethod
    def synchronize(self, timeout_s: float = WAIT_S) -> None:
        """Wait until all given so far is done. `DeviceStuck`; `DeviceError` when it failed."""


class Registration(Closing):
    """Host memory that is page-locked until ``close``. Keeps the memory alive."""


class Device(Closing):
    """One accelerator of this process. See the module's text for what must hold when."""

    name: str
    """By which `find_device` finds it in any process of this host: kind and UUID."""
    uuid: str
    ordinal: int
    """Of this process alone."""
    peers: set[str]
    """UUIDs of the devices whose memory its streams copy from and to: its own, and those that
    ``enable_peer`` was called for."""

    @property
    @abstractmethod
    def room(self) -> MemoryRoom:
        """Of the device, now."""

    @abstractmethod
    def allocate(self, nbytes: int) -> DeviceBlock:
        """One block; its content is undefined. `DeviceFull`."""

    @abstractmethod
    def export(self, block: DeviceBlock) -> MemoryHandle:
        """The same handle each time. `ExportRefused`; ``ValueError`` for an opened block."""

    @abstractmethod
    def open(self, handle: MemoryHandle) -> DeviceBlock:
        """Map another process's block. `HandleRefused`, `OwnerLost`."""

    @abstractmethod
    def stream(self) -> Stream:
        """A new one, independent of all others."""

    @abstractmethod
    def can_reach(self, uuid: str) -> bool:
        """Whether ``enable_peer`` of that device may succeed. Its own: yes."""

    @abstractmethod
    def enable_peer(self, peer: Device) -> None:
        """Reach the memory of another device of this process. Idempotent. `PeerRefused`."""

    @abstractmethod
    def register(self, memory: memoryview) -> Registration:
        """Page-lock host memory, contiguous and writable. `PinningRefused`."""

    @abstractmethod
    def new_tensor(self, nbytes: int) -> tuple[torch.Tensor, DeviceBlock]:
        """A uint8 tensor ``[nbytes]`` in the memory that torch has on this device, and where that
        is. `DeviceFull`. The block is valid as long as the tensor, which alone frees it. What torch
        was given before may work on that memory yet: a stream that copies there waits for
        ``after_torch`` first, asked for on the thread that made the tensor. Imports torch: for
        clients."""

    @abstractmethod
    def tensor_block(self, tensor: torch.Tensor) -> DeviceBlock | None:
        """Where the bytes of a contiguous tensor are, if they are on this device. Valid as long as
        the tensor, which alone frees it."""

    @abstractmethod
    def tensor_over(
        self, block: DeviceBlock, offset: int, nbytes: int, keep: object
    ) -> torch.Tensor:
        """A uint8 tensor ``[nbytes]`` that *is* memory of a block of this device, also one that was
        opened, and of use while that is open. ``keep`` lives as long as it and every tensor made
        from it."""

    @abstractmethod
    def after_torch(self) -> Event:
        """Done when all is that this thread has had torch do on this device so far: a stream that
        waits for it finds the tensors that were made before as they are to be."""


def refuse_opened(block: DeviceBlock) -> None:
    """``ValueError``: only the process that allocated a block can show it to others."""
    if not block.is_own:
        raise ValueError("memory that was opened from another process is not exported again")


def this_process() -> ProcessId:
    """As owners of memory are named."""
    process = ProcessId.of(os.getpid())
    if process is None:
        raise DeviceError("this process does not find itself in /proc")
    return process
