"""`Worker`: the class that users derive their roles from, and what it knows of its place."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from transferqueue.errors import ConfigError
from workers.mesh import Mesh, Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.client.sync_client import Client
    from transferqueue.dispatch.shared_reads import SharedReads
    from transferqueue.net.keys import ClientKeys


class RunningService(Protocol):
    """What `transferqueue.serve` and ``serve_ray`` give."""

    @property
    def address(self) -> str: ...
    @property
    def client_keys(self) -> ClientKeys: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """How a worker connects to the data plane."""

    address: str | None = None
    """``None``: as ``tq.connect()`` finds it."""
    keys: ClientKeys | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """More of ``tq.connect``: ``transport``, ``objects``, ``timeout_s``."""


class SharedClient:
    """The client of all roles of one rank, connected at the first use."""

    def __init__(self, service: ServiceAddress) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._client: Client | None = None

    def get(self) -> Client:
        """``NoService`` when there is none to be found, ``ServiceUnreachable``."""
        with self._lock:
            if self._client is None:
                import transferqueue as tq

                self._client = tq.connect(
                    self._service.address, keys=self._service.keys, **self._service.options
                )
            return self._client

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a worker is told before its ``__init__`` runs."""

    rank: int
    world_size: int
    role: str
    mesh: Mesh | Placement
    client: SharedClient
    local_rank: int = 0
    """Rank among the workers of this node."""
    master_address: str = "127.0.0.1"
    master_port: int = 0
    """A port of rank zero's host that was free when the group was made, for rendezvous."""


class Worker:
    """One rank of one role.

    ``__init__`` takes what the group was given for it, and may use every property: they are set
    before. A method that a group is to call is decorated with `workers.register`.
    """

    _context: WorkerContext

    def _enter(self, context: WorkerContext) -> None:
        self._context = context
        self._placements: dict[str, tuple[int, bool]] = {}
        self._shared_reads: SharedReads | None = None

    @property
    def rank(self) -> int:
        """From 0 to ``world_size - 1``."""
        return self._place().rank

    @property
    def world_size(self) -> int:
        return self._place().world_size

    @property
    def local_rank(self) -> int:
        """Rank among the workers of this node."""
        return self._place().local_rank

    @property
    def role(self) -> str:
        """The name under which the group has this worker."""
        return self._place().role

    @property
    def mesh(self) -> Mesh | Placement:
        """How the ranks of the group share a batch."""
        return self._place().mesh

    @property
    def placement(self) -> Placement:
        """Which part each rank gets, by the group's own mesh."""
        mesh = self.mesh
        return mesh.placement if isinstance(mesh, Mesh) else mesh

    @property
    def master_address(self) -> str:
        """Where rank zero is, for ``torch.distributed`` and the like."""
        return self._place().master_address

    @property
    def master_port(self) -> int:
        return self._place().master_port

    @property
    def client(self) -> Client:
        """A client of the data plane, shared by all roles of this rank; connects at first use.

        ``NoService`` when the group was given no service and none is found.
        """
        return self._place().client.get()

    def declare_mesh(self, name: str, *, part: int, collects: bool) -> None:
        """Say which part of a batch this rank gets by the mesh ``name``, and whether it answers
        for it; for layouts that are known only once a model is built. Every rank must."""
        if name in self._placements:
            raise ConfigError(f"mesh {name!r} was declared before by {self.role}")
        self._placements[name] = (part, collects)

    def share_reads(self, group: Any) -> None:
        """Let one rank of a ``torch.distributed`` group (over Gloo) fetch the declared reads of
        HANDLE methods and send them to the others, which must be the ranks that get the same
        part. For ranks on a host without a shard; elsewhere each maps the shard's memory."""
        from transferqueue.dispatch.shared_reads import SharedReads

        self._shared_reads = SharedReads(group)

    def _declared_place(self, name: str) -> tuple[int, bool]:
        if name not in self._placements:
            raise ConfigError(
                f"no mesh {name!r}: neither the group nor {self.role} on rank {self.rank} declares "
                f"it; pass meshes={{{name!r}: Mesh.of(…)}} or call declare_mesh()"
            )
        return self._placements[name]

    def _place(self) -> WorkerContext:
        context = self.__dict__.get("_context")
        if context is None:
            raise ConfigError(
                f"this {type(self).__name__} is in no group; make it with LocalWorkerGroup or "
                f"RayWorkerGroup"
            )
        assert isinstance(context, WorkerContext)
        return context


class WorkerSpec:
    """A worker class with the arguments of its ``__init__``; made on every rank."""

    def __init__(self, cls: type[Worker], *args: Any, **kwargs: Any) -> None:
        if not (isinstance(cls, type) and issubclass(cls, Worker)):
            raise ConfigError(f"a worker is a class derived from workers.Worker, got {cls!r:.80}")
        self.cls = cls
        self.args = args
        self.kwargs = kwargs

    @classmethod
    def of(cls, worker: WorkerSpec | type[Worker]) -> WorkerSpec:
        """A class alone needs no arguments."""
        return worker if isinstance(worker, WorkerSpec) else cls(worker)

    def make(self, context: WorkerContext) -> Worker:
        """The worker of one rank."""
        worker = object.__new__(self.cls)
        worker._enter(context)
        worker.__init__(*self.args, **self.kwargs)  # type: ignore[misc]
        return worker
