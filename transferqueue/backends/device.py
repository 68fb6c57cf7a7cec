"""An arena in the memory of a device: one block, allocated once, that readers of this host open.

The allocator, the leases and the budget are those of every backend. What is different:

* Bytes that come through the shard go in and out by a ring of page-locked chunks (`Staging`), which
  overlaps copies with what fills them. ``seal`` waits for the device once for a whole put.
* The block is shown to processes of this host that have the same GPU. They copy from it, or to what
  they have reserved, on their own device; who may look where is kept by `SlotTable`. Where the
  driver refuses to show it, everything goes through the shard, and ``facts`` says why.
* Nothing outlives the process: the driver frees the block with it. A successor begins empty, and
  what was here alone is `RowsLost`. With the option ``host_copies`` it is not here alone: see
  `HostCopies`.

No torch: the driver is asked directly, so that a shard stays small and starts at once.
"""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.backends.allocating import AllocatingBackend
from transferqueue.backends.base import Backend, BackendConfig, Capabilities
from transferqueue.backends.host_copies import HostCopies
from transferqueue.devices.registry import find_device
from transferqueue.devices.slots import QUARANTINE_S, SlotTable
from transferqueue.devices.staging import Staging
from transferqueue.errors import (
    ConfigError,
    DeviceError,
    DeviceFull,
    DeviceStuck,
    ExportRefused,
    ServiceFailed,
)
from transferqueue.memory.allocator import PAGE_BYTES
from transferqueue.memory.copying import as_bytes
from transferqueue.memory.gather import gather, merge_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from transferqueue.devices.base import Device, DeviceBlock, MemoryHandle

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

SHORT_RUN_BYTES = 64 << 10
"""A copy from a device costs about 10 µs of calls, as much as moving this many bytes: where runs
are shorter on average, the stretch that they lie in is fetched and sorted out on the host."""

SUCCESSOR_WAIT_S = 8.0
"""How long the successor of a process that was killed waits for that one's memory: a driver takes a
while to take it down, and readers that have it open let go of it at their next put or get."""

_OPTIONS = {"device", "quarantine_s", "show", "required", "host_copies"}

_log = logging.getLogger(__name__)


class DeviceBackend(AllocatingBackend):
    """Options: ``device``, a name as `find_device` takes it; ``quarantine_s``, for which the slots
    of a dead process are kept apart; ``show`` (a bool): whether other processes may open it, and
    ``required`` (a bool): whether a driver that refuses that fails the start; ``host_copies`` (a
    bool): whether what is sealed is kept in memory of the host too, for a successor."""

    default_device = ""

    def __init__(
        self,
        device: Device,
        block: DeviceBlock,
        config: BackendConfig,
        copies: HostCopies | None = None,
    ) -> None:
        """``open`` is the way to get one."""
        super().__init__(block.nbytes)
        self.device = device
        self.capabilities = Capabilities(
            device=device.name, outlives_process=copies is not None, keeps_unsealed=copies is None
        )
        self._block = block
        self._copies = copies
        self._staging = Staging(device)
        self._staged: dict[int, Bytes] = {}
        self._config = config
        self._slots = self._new_slots()
        self._token = secrets.token_hex(8)
        self.handle, self.why_not_shown = _shown(device, block, config.options)

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        """`DeviceMissing`, `DeviceFull`; `ConfigError` for options that there are not."""
        options = _checked(config.options)
        device = find_device(str(options.get("device", cls.default_device)))
        try:
            block = _allocated(
                device,
                -(-config.budget_bytes // PAGE_BYTES) * PAGE_BYTES,
                wait_s=SUCCESSOR_WAIT_S if config.epoch else 0.0,
            )
            copies: HostCopies | None = None
            try:
                copies = HostCopies.open(config) if options.get("host_copies") else None
                return cls(device, block, config, copies)
            except BaseException:
                block.close()
                if copies is not None:
                    copies.close(keep=copies.recovered)
                raise
        except BaseException:
            device.close()
            raise

    def _new_slots(self) -> SlotTable:
        return SlotTable(
            self._allocator,
            pool=f"{self._config.service_id}-{self._config.slot}",
            epoch=self._config.epoch,
            quarantine_s=float(self._config.options.get("quarantine_s", QUARANTINE_S)),
        )

    # -- room -----------------------------------------------------------------------------------

    def _back(self, addresses: Int64s, extents: Int64s) -> bool:
        if self._copies is not None and not self._copies.back(self._allocator.frontier):
            return False
        self._slots.enter(addresses, np.asarray(extents, np.int64))
        return True

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        self._slots.free(addresses, nbytes)
        if self._staged:
            self._unstage(np.asarray(addresses, np.int64), np.asarray(nbytes, np.int64))

    def adopt(self, addresses: Int64s, nbytes: Int64s) -> None:
        if self._copies is None:
            Backend.adopt(self, addresses, nbytes)
            return
        super().adopt(addresses, nbytes)
        self._slots = self._new_slots()
        starts, sizes = merge_runs(addresses, nbytes)
        self._slots.enter(starts, sizes)
        with self._failing("written"):
            self._copies.restore(self._staging, self._block, starts, sizes)
        self._slots.seal(starts)

    @property
    def journal_path(self) -> str | None:
        return None if self._copies is None else self._copies.journal_path

    @property
    def recovered(self) -> bool:
        return self._copies is not None and self._copies.recovered

    # -- writing --------------------------------------------------------------------------------

    def writable(self, address: int, nbytes: int) -> memoryview:
        """A staging buffer: the device is written at ``seal``."""
        self._check(address, nbytes)
        self._unstage(np.array([address]), np.array([nbytes]), write=True)
        staged = np.zeros(nbytes, np.uint8)
        self._copy_out([(address, nbytes)], staged)
        self._staged[address] = staged
        return staged.data

    def write(self, address: int, data: memoryview) -> None:
        self._check(address, data.nbytes)
        with self._failing("written"):
            self._staging.copy_in(self._block, address, as_bytes(data).data)

    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        self._refuse_closed()
        if self._staged:
            self._unstage(addresses, nbytes, write=True)
        with self._failing("written"):
            self._staging.flush()
            if self._copies is not None:
                self._copies.keep(self._staging, self._block, addresses, nbytes)
        self._slots.seal(addresses)

    def _unstage(self, addresses: Int64s, nbytes: Int64s, *, write: bool = False) -> None:
        """Drop staging buffers of these ranges, written or not."""
        for at in list(self._staged):
            is_in = (addresses < at + len(self._staged[at])) & (at < addresses + nbytes)
            if bool(is_in.any()):
                staged = self._staged.pop(at)
                if write:
                    self.write(at, staged.data)

    # -- reading --------------------------------------------------------------------------------

    def read_into(self, address: int, out: memoryview) -> None:
        self._check(address, out.nbytes)
        self._copy_out([(address, out.nbytes)], as_bytes(out))

    def readable(self, address: int, nbytes: int) -> memoryview:
        out = np.empty(nbytes, np.uint8)
        self.read_into(address, out.data)
        return out.data.toreadonly()

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> Bytes:
        self._refuse_closed()
        starts, sizes = merge_runs(addresses, nbytes)
        if not len(starts):
            return np.empty(0, np.uint8)
        low, high, total = int(starts.min()), int((starts + sizes).max()), int(sizes.sum())
        self._check(low, high - low)
        if len(starts) * SHORT_RUN_BYTES > total and high - low <= 2 * total + SHORT_RUN_BYTES:
            stretch = np.empty(high - low, np.uint8)
            self._copy_out([(low, high - low)], stretch)
            return gather(stretch, starts - low, sizes)
        out = np.empty(total, np.uint8)
        self._copy_out(zip(starts.tolist(), sizes.tolist(), strict=True), out)
        return out

    def _copy_out(self, ranges: Any, out: Bytes) -> None:
        with self._failing("read"):
            self._staging.copy_ranges_out(self._block, ranges, out.data)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (DeviceError, DeviceStuck) as error:
            raise ServiceFailed(self.device.name, f"cannot be {what}: {error}") from error

    # -- other processes ------------------------------------------------------------------------

    @property
    def slots(self) -> SlotTable:
        return self._slots

    def lies_on_device(self, addresses: Int64s) -> bool:
        return self.handle is not None

    def device_access(self) -> dict[str, Any]:
        return {
            "token": self._token,
            "name": self.device.name,
            "uuid": self.device.uuid,
            "handle": None if self.handle is None else self.handle.to_plain(),
            "why_not_shown": self.why_not_shown,
            "is_kept": self._copies is not None,
        }

    # -- the rest -------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """``device``; ``shown``, whether processes of this host can open its memory, and
        ``why_not_shown``; ``pinned``, whether copies through the shard are from page-locked memory;
        ``lent_bytes`` to readers, and ``quarantined_bytes`` of dead ones; ``host_copies``, the
        folder where all of it is once more, "" when it is not."""
        return {
            "device": self.device.name,
            "shown": self.handle is not None,
            "why_not_shown": self.why_not_shown,
            "pinned": self._staging.is_pinned,
            "lent_bytes": sum(self._slots.of_readers().values()),
            "quarantined_bytes": self._slots.quarantined_bytes,
            "host_copies": "" if self._copies is None else self._copies.directory,
        }

    def close(self, *, keep: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        self._staged.clear()
        try:
            self._staging.close()
        except (DeviceError, DeviceStuck) as error:
            _log.warning("%s: closed while it was copying: %s", self.device.name, error)
        self._block.close()
        self.device.close()
        if self._copies is not None:
            self._copies.close(keep=keep)


class CudaBackend(DeviceBackend):
    """On a CUDA device, the first unless ``device`` names another."""

    default_device = "cuda:0"


def _allocated(device: Device, nbytes: int, *, wait_s: float) -> DeviceBlock:
    """`DeviceFull` when there is no room for so long."""
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return device.allocate(nbytes)
        except DeviceFull:
            if time.monotonic() >= end_s:
                raise
        time.sleep(0.1)


def _shown(
    device: Device, block: DeviceBlock, options: Mapping[str, Any]
) -> tuple[MemoryHandle | None, str]:
    """The handle for other processes, or why there is none."""
    if not options.get("show", True):
        return None, "show=False"
    try:
        handle = device.export(block)
    except ExportRefused as refused:
        if options.get("required"):
            raise ConfigError(f"required=True, and {refused}") from refused
        _log.warning("%s: it is read through the shard: %s", device.name, refused)
        return None, str(refused)
    if handle.uuid != device.uuid:
        _log.warning("%s: the driver exports it as %s; it is not shown", device.name, handle.uuid)
        return None, f"the driver exports memory of {device.uuid} as of {handle.uuid}"
    return handle, ""


def _checked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = set(options) - _OPTIONS
    if unknown:
        raise ConfigError(f"a backend on a device has no options {sorted(unknown)}")
    return options
