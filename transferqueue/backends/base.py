"""The contract between a shard and the place where its bytes live. A manual for implementers.

A backend gives out **ranges of an address space of its own**. An address is an int64 that names a
byte; ``address + k`` names the k-th byte after it within the same range. What an address means is
the backend's affair: an offset into an arena of shared memory, or a number that a table turns into
an object and an offset. The shard keeps the address of each slab and asks for any bytes within. It
may have several backends and tells them apart by the bits from the 56th on, so addresses are below
2**56.

Life of a slab::

    reserve ──> write / writable ──> seal ──> read_into / readable ... ──> free, in any pieces
       └───────────────> free (the put was given up) <──────┘

* ``reserve`` sets room aside for all slabs of a put, or for none. Reserved bytes count as used.
* ``write``, or filling ``writable``, puts bytes in, in any pieces and any order.
* ``seal`` says that these bytes are complete. They never change again, and only now may be read.
* ``free`` returns any part of reserved or sealed ranges; the rest stays as it was. The shard frees
  only what no reader looks at. ``used_bytes`` falls by exactly the bytes freed (an object store
  that can only drop whole objects keeps them, and must count them, until the last byte is freed:
  ``whole_slabs``).

One thread, that of the shard, makes all calls. A call returns within milliseconds; one that waits
for a device or a network keeps the shard's other requests waiting for as long.

What to write. ``open``, the seven steps of a slab's life (``reserve``, ``writable``, ``write``,
``seal``, ``read_into``, ``readable``, ``free``), the sums (``capacity_bytes``, ``used_bytes``,
``largest_free``, ``extents``) and ``close``. `AllocatingBackend` has ``reserve``, ``free`` and the
sums for an address space of fixed size; `ArenaBackend` has all but ``open`` and ``close`` for bytes
in ordinary memory; `ObjectBackend` turns each slab into an object of a store. The rest has a
default: say more only where the backend can do more.

After a failure:

============================  ====================================================================
``open`` raised               nothing is left: no file, no descriptor, no thread
``reserve`` raised, or gave   nothing is reserved. ``None`` is "no space now", also when it is what
``None``                      lies under the backend that is full: the put waits and tries again
``write``, ``seal`` raised    the range is still reserved, its content is undefined; the shard frees
                              it and fails the put. Other ranges are as they were
``read_into`` raised          ``out`` holds anything; the range is as before
an address was never given    ``ValueError``, and nothing was read or written
``free`` raised               nothing was freed (``ValueError``: bytes that are not in use, or are
                              named twice)
``adopt`` raised              nothing was adopted (``ValueError``: ranges overlap or lie outside)
bytes came back changed,      `BytesDamaged` for reads of those bytes alone, from every backend that
or too few                    gives its bytes out of hand: to a disk, a network, another process.
                              Never a wrong value. One that says ``leaves_process`` need not look:
                              the shard remembers a digest of each page and compares
the process was killed        nothing is owed unless ``outlives_process``. Then ``open`` with
                              ``recover=True`` finds every sealed byte; ``adopt`` says which of them
                              are still wanted, and the room of all others is free again. A range
                              that was not sealed is never among those
``close``                     views that were given out stay valid; later calls raise `Closed`
============================  ====================================================================

A shard that is started again does not wait for a store that is away: what did not outlive its
process is opened on a thread, again and again until that succeeds, and serves from then on
(`AwayBackend`).

Foreign errors become ours here: a missing library, server or setting is a `ConfigError` from
``open`` that names the package, the command or the port; a store that stops answering, or a device
that cannot write, raises `ServiceFailed`. Never a hang: whatever waits has a deadline.

`transferqueue.testing.check_backend` runs all of this against an implementation, with a process
that is killed among it; `Faults` tells it how to fill up or damage what lies under the backend.
``examples/own_backend.py`` is a whole one. A package makes its backend known by an entry point::

    [project.entry-points."transferqueue.backends"]
    mystore = "mypackage.backend:MyBackend"
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from transferqueue.closing import Closing
from transferqueue.errors import ConfigError
from transferqueue.memory.gather import merge_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from transferqueue.devices.slots import SlotTable

    Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """What a shard tells its backend at start."""

    service_id: str
    slot: int
    """The shard's slot; unique in the service."""
    budget_bytes: int
    """Room to offer. A backend may offer a little more, never less."""
    directory: str | None = None
    """Where files go, for backends that keep files; ``None``: the backend's default."""
    directory_setting: str = "arena_dir"
    """What whoever started the service calls that folder."""
    epoch: int = 0
    """How many processes of this slot there have been before."""
    recover: bool = False
    """Take over what an earlier process of this service and slot left, if there is anything."""
    guardian_pid: int | None = None
    """A process that restarts this shard if it dies. While it lives, nobody clears away what a
    dead shard left; ``None``: nobody will restart it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of one backend alone, by name."""

    def __post_init__(self) -> None:
        if self.budget_bytes < 1:
            raise ConfigError(f"budget_bytes must be positive, got {self.budget_bytes}")
        if self.slot < 0:
            raise ConfigError(f"slot must be >= 0, got {self.slot}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do beyond the contract."""

    mappable: bool = False
    """Clients on the same host can map ranges themselves, by what ``client_access`` says."""
    device: str = "cpu"
    """Where the bytes are: ``"cpu"`` or a torch device name."""
    outlives_process: bool = False
    """Sealed bytes survive a kill of this process, and ``recover=True`` finds them."""
    keeps_unsealed: bool = True
    """Of what ``outlives_process``: bytes that were written and not sealed are there too, so that
    a put may go on at a successor. Else it is given up there, and its client begins again."""
    durable: bool = False
    """Sealed bytes survive a reboot of the host."""
    shared_between_hosts: bool = False
    """Another host's backend of the same kind can read what was sealed here."""
    needs_registration: bool = False
    """Memory must be registered with the transport before it can be read from or written to."""
    leaves_process: bool = False
    """Sealed bytes go to a process or machine that is not ours, and nobody checks what comes back:
    then the shard does (`CheckedBackend`). Not together with ``outlives_process``."""
    whole_slabs: bool = False
    """The room of a slab comes back when its last byte is freed, and not before."""


class Backend(Closing):
    """Holds the bytes of one shard. See the module's text for what must hold when."""

    capabilities: Capabilities

    @classmethod
    @abstractmethod
    def open(cls, config: BackendConfig) -> Self:
        """Start, ready for ``reserve``. `ConfigError` or `ServiceFailed` when that cannot be."""

    @classmethod
    def how_to_start(cls, config: BackendConfig) -> str:
        """For who reads that the store is away: where it was looked for, and what starts it."""
        del config
        return ""

    @property
    @abstractmethod
    def capacity_bytes(self) -> int:
        """Room in all, at least the budget."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """Bytes reserved and not freed, padding included."""

    @property
    @abstractmethod
    def largest_free(self) -> int:
        """The largest single slab that ``reserve`` has room for now."""

    @abstractmethod
    def reserve(self, nbytes: Sequence[int]) -> Int64s | None:
        """An address for each size, or ``None`` and no change when they do not all fit now.

        Ranges are disjoint. A zero size gets an address that is never read, written or freed with
        a size other than zero.
        """

    @abstractmethod
    def extents(self, nbytes: Sequence[int]) -> Int64s:
        """How many bytes ``reserve`` takes for each size: the size and its padding after it."""

    def extents_at(self, addresses: Int64s, nbytes: Sequence[int]) -> Int64s:
        """As ``extents``, of ranges that were reserved at these addresses. The same, unless one
        backend is made of several."""
        del addresses
        return self.extents(nbytes)

    @abstractmethod
    def writable(self, address: int, nbytes: int) -> memoryview:
        """The reserved bytes, to be filled in place: format ``B``, writable.

        Final memory where the backend has it, else a staging buffer that ``seal`` takes. The
        memory stays valid as long as the view lives, even after ``close``.
        """

    @abstractmethod
    def write(self, address: int, data: memoryview) -> None:
        """Copy ``data`` (contiguous) to the reserved bytes from ``address`` on."""

    @abstractmethod
    def seal(self, addresses: Int64s, nbytes: Int64s) -> None:
        """These bytes are complete: durable backends have stored them when this returns."""

    @abstractmethod
    def read_into(self, address: int, out: memoryview) -> None:
        """Fill ``out`` (contiguous, writable) with sealed bytes from ``address`` on."""

    def read_ranges(self, addresses: Int64s, nbytes: Int64s) -> NDArray[np.uint8]:
        """Sealed bytes of ranges, one after the other: uint8[sum(nbytes)], the caller's own.

        Ranges that follow one another are read at once. A backend that has the bytes at hand can
        do better than one `read_into` a run.
        """
        starts, sizes = merge_runs(addresses, nbytes)
        out = np.empty(int(sizes.sum()), dtype=np.uint8)
        position = 0
        for address, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            self.read_into(address, out[position : position + size].data)
            position += size
        return out

    @abstractmethod
    def readable(self, address: int, nbytes: int) -> memoryview:
        """Sealed bytes, read-only; a view of where they lie if the backend can, else a copy.

        Valid as long as the view lives, even after ``close``; unchanged until they are freed.
        """

    def lies_in_memory(self, addresses: Int64s) -> bool:
        """Whether ``readable`` of ranges that begin here costs no copy: they lie in memory of
        this process. Only such ranges are mapped by clients, of a backend that is ``mappable``."""
        del addresses
        return False

    @abstractmethod
    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        """Return ranges, in any order and any pieces. Elements of size zero mean nothing.

        ``ValueError``, and no change, when some of the bytes are not in use.
        """

    def tick(self, now_s: float) -> float | None:
        """Do what nobody waits for, in some milliseconds. Called at each turn of the shard's loop,
        and when it said that it is due; ``None``: there is nothing to do until something is freed.
        ``now_s`` never goes back."""
        del now_s
        return None

    def client_access(self) -> dict[str, Any] | None:
        """Plain values by which a client on this host reaches the bytes; ``None`` if it cannot."""
        return None

    def file_access(self) -> dict[str, Any] | None:
        """Plain values by which a process of this host reads sealed bytes from a file itself, and
        checks them: see `checked_file`. An address is then an offset in the file. ``None``: it
        cannot. Ranges that a lease holds are not freed meanwhile."""
        return None

    @property
    def slots(self) -> SlotTable | None:
        """Who was lent what of device memory; ``None`` of a backend that is on no device."""
        return None

    def lies_on_device(self, addresses: Int64s) -> bool:
        """Whether ranges that begin here are in device memory that other processes can open."""
        del addresses
        return False

    def device_access(self) -> dict[str, Any] | None:
        """Plain values by which a process of this host that has the same device reaches the bytes
        there; ``None`` of a backend that is on no device. ``token`` names this very memory;
        ``name`` and ``uuid`` the device; ``handle`` the block, or ``why_not_shown`` says why there
        is none."""
        return None

    def facts(self) -> dict[str, Any]:
        """Plain values for an operator: where the bytes are, and what may be slow about it."""
        return {}

    @property
    def journal_path(self) -> str | None:
        """A file beside the bytes, that lives as long as they do, where the shard writes down what
        they are; ``None`` where nothing outlives the process. ``close`` without ``keep`` removes
        it."""
        return None

    @property
    def recovered(self) -> bool:
        """Whether ``recover=True`` found the bytes of an earlier process."""
        return False

    def adopt(self, addresses: Int64s, nbytes: Int64s) -> None:
        """After a recovery and before the first ``reserve``: exactly these ranges are in use.

        ``ValueError``, and no change, if they overlap or reach outside.
        """
        raise NotImplementedError(f"{type(self).__name__} does not outlive its process")

    @abstractmethod
    def close(self, *, keep: bool = False) -> None:
        """Let go of everything; twice is as good as once.

        ``keep``: leave what outlives the process for a later ``open`` with ``recover=True``;
        otherwise nothing of it remains.
        """
