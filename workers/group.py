"""`WorkerGroup`: ranks that are called together.

What is the same for threads, processes and Ray actors: finding the methods, splitting a call,
waiting, joining the answers, counting bytes. A subclass makes the ranks and hands them calls.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transferqueue.client.own_services import running_service
from transferqueue.closing import Closing
from transferqueue.dispatch import TrafficReport
from transferqueue.errors import Closed, ConfigError, WrongOutput, near_names
from workers.batches import payload_bytes
from workers.calls import CallSite, Dispatched
from workers.errors import WorkerError
from workers.futures import CallFuture, HandleFuture
from workers.host import HostCall
from workers.mesh import Mesh, Placement
from workers.modes import Execute, Handle, fat_mode
from workers.registration import Registration, registered_methods
from workers.worker import RunningService, ServiceAddress, Worker, WorkerSpec

if TYPE_CHECKING:
    from workers.futures import Answers

Roles = WorkerSpec | type[Worker] | Mapping[str, WorkerSpec | type[Worker]]
"""A worker class, with arguments or without, or several by the name of their role."""

AnyService = RunningService | ServiceAddress | str
"""What a group's workers may be told to connect to."""

DEFAULT_CALL_TIMEOUT_S = 3600.0
"""A training step may take long; a group that waits for ever hides that a rank hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """What every kind of group is told."""

    mesh: Mesh | Placement
    meshes: Mapping[str, Mesh | Placement]
    service: ServiceAddress
    fat: bool
    call_timeout_s: float
    roles: Mapping[str, WorkerSpec]
    is_single: bool
    """Whether the group was given one worker, so that its methods are the group's own."""

    @classmethod
    def of(
        cls,
        worker: Roles,
        *,
        mesh: Mesh | Placement,
        meshes: Mapping[str, Mesh | Placement] | None,
        service: AnyService | None,
        fat: bool,
        call_timeout_s: float,
    ) -> GroupConfig:
        is_single = not isinstance(worker, Mapping)
        roles = _by_role(worker)
        meshes = dict(meshes or {})
        for name, one in meshes.items():
            if one.world_size != mesh.world_size:
                raise ConfigError(
                    f"mesh {name!r} is of {one.world_size} ranks, the group has {mesh.world_size}"
                )
        if call_timeout_s <= 0:
            raise ConfigError(f"call_timeout_s must be positive, got {call_timeout_s}")
        return cls(
            mesh=mesh,
            meshes=meshes,
            service=service_address(service),
            fat=fat,
            call_timeout_s=call_timeout_s,
            roles=roles,
            is_single=is_single,
        )


def _by_role(worker: Roles) -> dict[str, WorkerSpec]:
    if isinstance(worker, Mapping):
        if not worker:
            raise ConfigError("a group needs at least one role")
        return {name: WorkerSpec.of(spec) for name, spec in worker.items()}
    spec = WorkerSpec.of(worker)
    return {spec.cls.__name__: spec}


def service_address(service: AnyService | None) -> ServiceAddress:
    """What workers connect to: a service, an address, or for ``None`` what ``tq.connect()`` finds
    here, if it is a service of this process, and else what it finds from where they are."""
    if isinstance(service, ServiceAddress):
        return service
    if service is None:
        service = running_service()
    if service is None or isinstance(service, str):
        return ServiceAddress(address=service)
    return ServiceAddress(address=service.address, keys=service.client_keys)


class WorkerGroup(Closing):
    """Ranks of one or several co-located roles. A context manager; `close` ends the ranks.

    A registered method of a single worker is a method of the group. Of several roles,
    ``group["actor"].update(…)``. A blocking call returns the answer; it raises ``WorkerFailed``
    (with traceback and rank), ``WorkerDied``, ``WrongOutput`` or ``CallTimedOut`` when the other
    ranks have finished or a grace period is over, and the group can be called again.
    """

    def __init__(self, config: GroupConfig) -> None:
        self._config = config
        self._closed = False
        self._controller_bytes = 0
        self._submitting = threading.Lock()
        self._declared: dict[tuple[str, str], Placement] = {}
        self._sites: dict[tuple[str, str], CallSite] = {}
        self._roles = {name: RoleView(self, name, spec) for name, spec in config.roles.items()}
        if config.is_single:
            (only,) = self._roles.values()
            for name in dir(only):
                if hasattr(type(self), name):
                    raise ConfigError(
                        f"the worker's method {name!r} has the name of a method of the group; "
                        f"rename it, or give the role a name: {{'role': worker}}"
                    )
                setattr(self, name, getattr(only, name))

    # -- what a kind of group does ---------------------------------------------------------------

    @abstractmethod
    def _submit(self, calls: Sequence[HostCall]) -> Answers:
        """Hand ranks 0 to ``len(calls) - 1`` a call each, without waiting."""

    @abstractmethod
    def _submit_query(self, method: str, args: Sequence[Any] = ()) -> Answers:
        """Ask the host of every rank, not a worker on it: `WorkerHost.report` and the like."""

    @abstractmethod
    def _end(self) -> None:
        """End the ranks. Called once."""

    # -- what all have ---------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._config.mesh.world_size

    @property
    def mesh(self) -> Mesh | Placement:
        """How the ranks share a batch, unless a method names another mesh."""
        return self._config.mesh

    @property
    def roles(self) -> Mapping[str, RoleView]:
        """The co-located roles by name."""
        return dict(self._roles)

    def __getitem__(self, role: str) -> RoleView:
        if role not in self._roles:
            raise KeyError(f"no role {role!r}; there are {sorted(self._roles)}")
        return self._roles[role]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = [method for role in self._roles.values() for method in dir(role)]
        near = near_names(name, known)
        raise AttributeError(
            f"no method {name!r}; "
            + (f"did you mean {' or '.join(near)}?" if near else f"registered are {known}")
            + ("" if self._config.is_single else f" (of the roles {sorted(self._roles)})")
        )

    def placement(self, mesh: str | None = None, role: str | None = None) -> Placement:
        """Which part each rank gets, by the group's own mesh or a named one. A mesh that the
        group was not given is asked from the workers of ``role`` once."""
        if mesh is None or mesh in self._config.meshes:
            chosen = self._config.mesh if mesh is None else self._config.meshes[mesh]
            return chosen.placement if isinstance(chosen, Mesh) else chosen
        key = (role or next(iter(self._roles)), mesh)
        if key not in self._declared:
            answers = self._submit_query("place_in", key)
            places = answers.values(self._config.call_timeout_s)
            self._declared[key] = Placement(
                part_of_rank=tuple(part for part, _ in places),
                collects=tuple(collects for _, collects in places),
            )
        return self._declared[key]

    def report(self) -> TrafficReport:
        """Bytes read and written by (role, method, field), what was fetched and never looked at,
        and what went through this process.

        Of batches that were shipped whole (``fat``, or another mode than HANDLE), what each rank
        got counts as read and what it gave back as written."""
        rows = self._submit_query("report").values(self._config.call_timeout_s)
        return TrafficReport.of(
            rows, controller_bytes=self._controller_bytes, is_fat=self._config.fat
        )

    def close(self) -> None:
        """End the ranks; calls under way are cut off. Idempotent."""
        if not self._closed:
            self._closed = True
            self._end()

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<{type(self).__name__} {self.world_size} ranks of {sorted(self._roles)}{state}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be sent to another process")

    # -- a call ----------------------------------------------------------------------------------

    def _call(
        self,
        role: str,
        method: str,
        registration: Registration,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if self._closed:
            raise Closed(repr(self))
        dispatched = self._dispatch(role, method, registration, args, kwargs)
        calls = [
            HostCall(
                role=role,
                method=method,
                args=call.args,
                kwargs=call.kwargs,
                part=call.part,
                place=call.place,
            )
            for call in dispatched.calls
        ]
        # Two callers at once must not reach the ranks in two orders: a collective would hang.
        with self._submitting:
            answers = self._submit(calls)
        timeout_s = self._config.call_timeout_s
        if registration.blocking:
            received = answers.values(timeout_s)
            self._count_payload(received)
            return dispatched.collect(received)
        stores = dispatched.handle is not None and registration.declaration.writes
        kind = HandleFuture if stores else CallFuture
        return kind(answers, dispatched, timeout_s)

    def _count_payload(self, values: Iterable[Any]) -> None:
        """Add what passes through this process."""
        self._controller_bytes += sum(
            [len(value) if type(value) is bytes else payload_bytes(value) for value in values]
        )

    def _dispatch(
        self,
        role: str,
        method: str,
        registration: Registration,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Dispatched:
        mode = registration.mode
        if self._config.fat and isinstance(mode, Handle):
            mode = fat_mode(mode)
        site = self._sites.get((role, method))
        if site is None:
            site = self._sites[role, method] = self._site(role, method, registration, mode.mesh)
        values = self._receivable([*args, *kwargs.values()])
        kwargs = dict(zip(kwargs, values[len(args) :], strict=True))
        return mode.dispatch(site, values[: len(args)], kwargs)

    def _site(
        self, role: str, method: str, registration: Registration, mesh: str | None
    ) -> CallSite:
        """Of one method, the same at every call."""
        rank_zero_only = registration.execute is Execute.RANK_ZERO
        placement = Placement.flat(1) if rank_zero_only else self.placement(mesh, role)
        return CallSite(
            method=f"{role}.{method}",
            world_size=placement.world_size,
            placement=placement,
            declaration=registration.declaration,
            rank_zero_only=rank_zero_only,
            group=self,
        )

    def _receivable(self, values: Sequence[Any]) -> list[Any]:
        """Arguments that the ranks can take; a kind of group may have to wait for some here."""
        return list(values)


class RoleView:
    """One of the roles of a group: its registered methods, to be called."""

    def __init__(self, group: WorkerGroup, name: str, spec: WorkerSpec) -> None:
        self._name = name
        self._class_name = spec.cls.__name__
        self._methods = {
            method: BoundMethod(group, name, method, registration)
            for method, registration in registered_methods(spec.cls).items()
        }

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__.get("_methods", {})
        if name in methods:
            return methods[name]
        near = near_names(name, methods)
        raise AttributeError(
            f"role {self._name!r} registers no method {name!r}"
            + (f"; did you mean {' or '.join(near)}?" if near else "")
        )

    def __dir__(self) -> list[str]:
        return list(self._methods)

    def __repr__(self) -> str:
        return f"<role {self._name} ({self._class_name}): {', '.join(self._methods)}>"


class BoundMethod:
    """A registered method of all ranks."""

    def __init__(
        self, group: WorkerGroup, role: str, method: str, registration: Registration
    ) -> None:
        self._group = group
        self._role = role
        self._method = method
        self.registration = registration
        self.__name__ = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._group._call(self._role, self._method, self.registration, args, kwargs)
        except (WorkerError, WrongOutput) as failed:
            # Less how it came here, which is the same every time.
            raise failed.with_traceback(None) from failed.__cause__

    def __repr__(self) -> str:
        return f"<{self._role}.{self._method} of {self._group!r}>"
