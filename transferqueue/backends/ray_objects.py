"""Slabs as objects of Ray's object store, read where they lie.

The process of the shard connects to the Ray cluster of its host as a driver of its own and owns the
objects, so they live with it, and Ray spills them to its disk when its store is full. Reads are
views of the store's shared memory. Ray is imported here, and nowhere else in a shard: one that has
no such backend starts without.

What it needs: ``pip install 'transferqueue-dataplane[ray]'`` and a Ray that runs on this host:
``ray start --head``, or ``ray start --address=HEAD:6379`` to join one. Ray ends a process whose
raylet has died, so the shard ends with it.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from transferqueue.backends.deadline_calls import DeadlineCalls
from transferqueue.backends.object_backend import ObjectBackend
from transferqueue.errors import BytesDamaged, ConfigError, ServiceFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from transferqueue.backends.base import BackendConfig
    from transferqueue.backends.object_backend import Piece

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

T = TypeVar("T")

CALL_S = 10.0
"""How long Ray has to answer a call. It may read an object from its disk first."""

START_S = 30.0
FAREWELL_S = 2.0

_CONNECTING = threading.Lock()
"""Ray finds out after a minute that a cluster has no node on this host, and takes no second call
meanwhile: the next one waits for its end."""

SHARED_FROM_BYTES = 128 << 10
"""Smaller objects Ray keeps in the process that owns them, and copies them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """``backend_options`` of this backend."""

    address: str = "auto"
    """Of the cluster, as ``ray.init`` takes it; by default the one that runs on this host."""
    timeout_s: float = CALL_S

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """`ConfigError` for options that there are not."""
        try:
            return cls(**options)
        except TypeError as error:
            raise ConfigError(f"backend 'ray': {error}") from error


class RayBackend(ObjectBackend):
    """Options: `RayOptions`. Where this process is connected to a Ray already, it uses that."""

    def __init__(self, ray: Any, budget_bytes: int, options: RayOptions) -> None:
        """``open`` is the way to get one. ``ray``: the module."""
        super().__init__(budget_bytes, f"ray at {options.address}")
        self._ray = ray
        self._options = options
        self._calls = DeadlineCalls(self._name, options.timeout_s)

    @classmethod
    def how_to_start(cls, config: BackendConfig) -> str:
        return _how_to_start(RayOptions.of(config.options).address)

    @classmethod
    def open(cls, config: BackendConfig) -> Self:
        """`ConfigError` that names the package or the command when one of them is not there."""
        options = RayOptions.of(config.options)
        backend = cls(_library(), config.budget_bytes, options)
        try:
            backend._connect()
        except BaseException:
            backend.close()
            raise
        return backend

    def _connect(self) -> None:
        address = self._options.address

        def connect() -> None:
            with _CONNECTING:
                if not self._ray.is_initialized():
                    _probe(address)
                    self._ray.init(address=address, log_to_driver=False, logging_level="warning")

        try:
            self._calls.make(connect, START_S)
        except (ServiceFailed, OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"backend 'ray': no Ray at {address!r} ({error}); {_how_to_start(address)}"
            ) from error

    # -- objects --------------------------------------------------------------------------------

    def _store(self, data: Bytes) -> Any:
        return self._make(lambda: self._ray.put(data))

    def _load(self, pieces: Sequence[Piece], out: Bytes) -> Sequence[int]:
        whole = self._get([piece.stored for piece in pieces])
        came = []
        for piece, stored in zip(pieces, whole, strict=True):
            block = stored[piece.offset : piece.offset + piece.nbytes]
            out[piece.at : piece.at + len(block)] = block
            came.append(len(block))
        return came

    def readable(self, address: int, nbytes: int) -> memoryview:
        """Where it lies in the store, which keeps it there as long as the view lives."""
        self._refuse_closed()
        if not nbytes:
            return memoryview(b"")
        piece = self._piece(address, nbytes, 0)
        (whole,) = self._get([piece.stored])
        return whole[piece.offset : piece.offset + nbytes].data.toreadonly()

    def lies_in_memory(self, addresses: Int64s) -> bool:
        slabs = (self._slabs.find(address, 1)[1] for address in addresses.tolist())
        return all(slab.nbytes >= SHARED_FROM_BYTES for slab in slabs)

    def _get(self, references: list[Any]) -> list[Bytes]:
        timeout_s = self._options.timeout_s
        found: list[Bytes] = self._make(lambda: self._ray.get(references, timeout=timeout_s))
        return found

    def _drop(self, stored: Sequence[Any]) -> None:
        """The references were all that kept them."""

    def _make(self, call: Callable[[], T]) -> T:
        """Ray's errors are ours from here on."""
        errors = self._ray.exceptions
        try:
            return self._calls.make(call)
        except errors.ObjectLostError as error:
            raise BytesDamaged(self._name, 0, f"Ray has lost the object: {error}") from error
        except errors.RayError as error:
            raise ServiceFailed(self._name, f"{type(error).__name__}: {error}") from error

    # -- the rest -------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """``address`` of the cluster, ``objects``."""
        return {"address": self._options.address, "objects": len(self._slabs)}

    def close(self, *, keep: bool = False) -> None:
        """The connection to Ray stays until this process ends: what was read may still be looked
        at, and lies in memory that goes with it."""
        if self._closed:
            return
        super().close(keep=keep)
        self._forget_slabs()
        self._calls.close(FAREWELL_S)


def _how_to_start(address: str) -> str:
    return (
        f"start one on this host with: ray start --head --port=6379, or name its address in the "
        f"options (now {address!r})"
    )


def _probe(address: str) -> None:
    """``OSError`` at once, where Ray would try for half a minute."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=START_S / 6).close()


def _library() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"backend 'ray' needs the package ray (pip install 'transferqueue-dataplane[ray]'): "
            f"{error}"
        ) from error
    return ray
