"""The place where workers live: the roles of one rank, and how a method of theirs is run.

A host is what a thread, a process or a Ray actor has inside; it knows nothing of which it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from transferqueue.dispatch import Bridge, HandlePart, StageReply, Traffic, tell
from transferqueue.dispatch.outputs import is_column
from transferqueue.view import DataProto, DataProtoFuture
from workers.failing import Step, wrapping
from workers.modes import Execute
from workers.pending import Pending
from workers.registration import Registration, registered_methods
from workers.shipped import received_counts, returned_counts
from workers.worker import ServiceAddress, SharedClient, Worker, WorkerContext, WorkerSpec

if TYPE_CHECKING:
    from transferqueue.dispatch.traffic import FieldCounts
    from transferqueue.view.lazy_dataproto import LazyDataProto
    from workers.mesh import Mesh, Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSetup:
    """What a host is made of. Travels to where it is made."""

    rank: int
    world_size: int
    mesh: Mesh | Placement
    roles: Mapping[str, WorkerSpec]
    service: ServiceAddress
    fat: bool = False
    """Run HANDLE methods on batches that were shipped, to compare."""
    local_rank: int = 0
    master_address: str = "127.0.0.1"
    master_port: int = 0

    def context(self, role: str, client: SharedClient) -> WorkerContext:
        return WorkerContext(
            rank=self.rank,
            world_size=self.world_size,
            role=role,
            mesh=self.mesh,
            client=client,
            local_rank=self.local_rank,
            master_address=self.master_address,
            master_port=self.master_port,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """One call of one rank."""

    role: str
    method: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    part: HandlePart | Pending | None = None
    """A part of a handle, of which the method gets a view."""
    place: int | str = 0
    """Where the view goes among the arguments."""

    @property
    def label(self) -> str:
        """As messages name the method."""
        return f"{self.role}.{self.method}"

    @property
    def payload(self) -> tuple[Any, ...]:
        """Everything that is sent with it."""
        return (self.part, *self.args, *self.kwargs.values())

    def mapped(self, change: Callable[[Any], Any]) -> HostCall:
        """With every argument changed, the part too."""
        args = tuple(map(change, self.args))
        kwargs = {name: change(value) for name, value in self.kwargs.items()}
        return replace(self, args=args, kwargs=kwargs, part=change(self.part))

    def resolved(self) -> HostCall:
        """With everything that was to come in it. Waits; raises what a call behind it raised."""
        to_come = (Pending, DataProtoFuture)
        if not any(isinstance(value, to_come) for value in self.payload):
            return self
        return self.mapped(_resolve)

    def arguments(self, view: LazyDataProto) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """With a view where the part goes."""
        place = self.place
        if isinstance(place, str):
            return self.args, {**self.kwargs, place: view}
        return (*self.args[:place], view, *self.args[place:]), self.kwargs


def _resolve(value: Any) -> Any:
    if isinstance(value, Pending):
        return value.resolve()
    return value.get() if isinstance(value, DataProtoFuture) else value


class WorkerHost:
    """The roles of one rank, made at construction, beside one client."""

    def __init__(self, setup: HostSetup) -> None:
        """``WorkerFailed`` names the role whose ``__init__`` raised."""
        self.rank = setup.rank
        self._fat = setup.fat
        self._client = SharedClient(setup.service)
        self._traffic = Traffic()
        self._shipped = Traffic()
        self._workers: dict[str, Worker] = {}
        self._methods: dict[str, dict[str, Registration]] = {}
        self._bridges: dict[tuple[str, str], Bridge] = {}
        for role, spec in setup.roles.items():
            with wrapping(f"{role}.__init__", self.rank):
                self._workers[role] = spec.make(setup.context(role, self._client))
            self._methods[role] = registered_methods(spec.cls)

    def is_async(self, call: HostCall) -> bool:
        """Whether the method is a coroutine function, to be run by `run_async`."""
        return inspect.iscoroutinefunction(getattr(self._workers[call.role], call.method))

    def run(self, call: HostCall) -> Any:
        """The answer of a method. Everything it raises comes as a ``WorkerError`` or
        ``WrongOutput`` that names rank and method."""
        with wrapping(call.label, self.rank, Step.BEFORE) as at:
            running = self._prepare(call)
            at.step = Step.METHOD
            output = running.start()
            at.step = Step.AFTER
            return running.finish(output)

    async def run_async(self, call: HostCall) -> Any:
        """As `run`, for a coroutine function. Columns are moved in a thread, so that other
        coroutines go on meanwhile."""
        with wrapping(call.label, self.rank, Step.BEFORE) as at:
            running = await asyncio.to_thread(self._prepare, call)
            at.step = Step.METHOD
            output = await running.start()
            at.step = Step.AFTER
            return await asyncio.to_thread(running.finish, output)

    def _prepare(self, call: HostCall) -> _Running:
        if call.args or call.kwargs or not isinstance(call.part, HandlePart):
            call = call.resolved()
        method = getattr(self._workers[call.role], call.method)
        registration = self._methods[call.role].get(call.method)
        if isinstance(call.part, HandlePart) and registration is not None:
            return self._opened(call, call.part, registration, method)
        if registration is None:
            return _Running(method=method, args=call.args, kwargs=call.kwargs)
        return _RunningShipped(
            method=method,
            args=call.args,
            kwargs=call.kwargs,
            role=call.role,
            name=call.method,
            traffic=self._shipped,
            received=received_counts(call.payload, registration.declaration),
            as_batch=self._fat and registration.by_handle,
        )

    def _opened(
        self, call: HostCall, part: HandlePart, registration: Registration, method: Any
    ) -> _Running:
        """A HANDLE method, with a view of its part that has the declared columns in it."""
        bridge = self._bridge(call.role, call.method, registration)
        view = bridge.open(part)
        args, kwargs = call.arguments(view)
        return _RunningByHandle(
            method=method, args=args, kwargs=kwargs, bridge=bridge, part=part, view=view
        )

    def _bridge(self, role: str, method: str, registration: Registration) -> Bridge:
        """Of one method, for as long as its worker shares reads with the same ranks."""
        is_alone = registration.execute is Execute.RANK_ZERO
        shared = None if is_alone else self._workers[role]._shared_reads
        bridge = self._bridges.get((role, method))
        if bridge is None or bridge.shared is not shared:
            bridge = self._bridges[role, method] = Bridge(
                client=self._client.get(),
                declaration=registration.declaration,
                role=role,
                method=method,
                rank=self.rank,
                traffic=self._traffic,
                shared=shared,
            )
        return bridge

    def report(self) -> list[dict[str, Any]]:
        """`Traffic.rows` of this rank; the service has heard of those that went through it."""
        rows = self._traffic.rows()
        if rows:
            tell(self._client.get(), self._traffic, at_once=True)
        return rows + self._shipped.rows()

    def place_in(self, role: str, mesh: str) -> tuple[int, bool]:
        """Part and collecting of this rank by a mesh that its worker declared."""
        with wrapping(f"{role}.declare_mesh", self.rank):
            return self._workers[role]._declared_place(mesh)

    def close(self) -> None:
        """Close the workers that have a ``close``, then the client."""
        with contextlib.closing(self._client):
            for role, worker in self._workers.items():
                close = getattr(worker, "close", None)
                if callable(close):
                    with wrapping(f"{role}.close", self.rank):
                        close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """One call between its arguments and its answer."""

    method: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def start(self) -> Any:
        """The output, or the coroutine that gives it."""
        return self.method(*self.args, **self.kwargs)

    def finish(self, output: Any) -> Any:
        """The answer."""
        return output


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningShipped(_Running):
    """A method on batches that were shipped. Columns of a HANDLE method come back as a batch."""

    role: str
    name: str
    traffic: Traffic
    received: Mapping[str, FieldCounts]
    as_batch: bool

    def finish(self, output: Any) -> Any:
        answer = as_batch(output) if self.as_batch else output
        self.traffic.add(self.role, self.name, self.received)
        self.traffic.add(self.role, self.name, returned_counts(answer))
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningByHandle(_Running):
    """A HANDLE method on a view."""

    bridge: Bridge
    part: HandlePart
    view: LazyDataProto

    def finish(self, output: Any) -> StageReply:
        return self.bridge.store(self.part, self.view, output)


def as_batch(output: Any) -> Any:
    """A dict with columns as a DataProto, its other values as ``metrics``."""
    if not isinstance(output, Mapping):
        return output
    columns = {name: value for name, value in output.items() if is_column(value)}
    if not columns:
        return output
    values = {name: value for name, value in output.items() if name not in columns}
    metrics = {**values.pop("metrics", {}), **values}
    return DataProto.from_single_dict(columns, meta_info={"metrics": metrics} if metrics else {})
