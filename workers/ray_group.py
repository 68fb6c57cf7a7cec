"""`RayWorkerGroup`: ranks as Ray actors at the places of a `ResourcePool`."""

from __future__ import annotations

import contextlib
import inspect
import time
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from transferqueue.errors import ConfigError, TransferQueueError
from workers.errors import CallTimedOut, WorkerDied, WorkerError, WorkerFailed
from workers.futures import FAILURE_GRACE_S, Answers, CallFuture, raise_first
from workers.group import (
    DEFAULT_CALL_TIMEOUT_S,
    AnyService,
    GroupConfig,
    Roles,
    WorkerGroup,
)
from workers.host import HostCall, HostSetup
from workers.mesh import Mesh, Placement
from workers.ray_pool import ResourcePool
from workers.ray_worker import AsyncRayRank, RayRank, pack_call
from workers.registration import registered_methods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


CLOSE_TIMEOUT_S = 10.0


class RayAnswers(Answers):
    """Answers as object refs. Any process of the cluster can wait for them."""

    def __init__(self, method: str, refs: Sequence[Any]) -> None:
        self._method = method
        self._refs = list(refs)

    def values(self, timeout_s: float) -> list[Any]:
        started_s = time.monotonic()
        try:
            return list(ray.get(self._refs, timeout=timeout_s))
        except GetTimeoutError:
            _, late = ray.wait(self._refs, num_returns=len(self._refs), timeout=0)
            ranks = [rank for rank, ref in enumerate(self._refs) if ref in late]
            raise CallTimedOut(self._method, ranks, time.monotonic() - started_s) from None
        except RayError:
            pass  # one rank at least has failed; see what became of all
        finished, late = ray.wait(
            self._refs, num_returns=len(self._refs), timeout=FAILURE_GRACE_S, fetch_local=False
        )
        failures = [
            (rank, self._failure(rank)) for rank, ref in enumerate(self._refs) if ref in finished
        ]
        raise_first(
            failures, still_at_it=[rank for rank, ref in enumerate(self._refs) if ref in late]
        )
        raise AssertionError("a rank had failed and then had not")

    def _failure(self, rank: int) -> BaseException | None:
        try:
            ray.get(self._refs[rank])
        except RayActorError as error:
            return WorkerDied(self._method, rank, _first_line(error))
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, TransferQueueError):
                return cause
            return WorkerFailed(self._method, rank, f"before it ran: {cause or error}", "")
        except RayError as error:
            return WorkerFailed(self._method, rank, f"Ray lost what it returned: {error}", "")
        return None

    def is_done(self) -> bool:
        finished, _ = ray.wait(self._refs, num_returns=len(self._refs), timeout=0)
        return len(finished) == len(self._refs)

    @property
    def refs(self) -> list[Any]:
        return self._refs


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:300]


class RayWorkerGroup(WorkerGroup):
    """Ranks as Ray actors. Ray carries calls, handles and values; columns only in the fat modes.

    Co-located roles are in one actor a rank and share its client and its GPU.
    """

    def __init__(
        self,
        resource_pool: ResourcePool | Sequence[int] | int,
        worker: Roles,
        *,
        mesh: Mesh | Placement | None = None,
        meshes: Mapping[str, Mesh | Placement] | None = None,
        service: AnyService | None = None,
        fat: bool = False,
        name: str | None = None,
        actor_options: Mapping[str, Any] | None = None,
        call_timeout_s: float = DEFAULT_CALL_TIMEOUT_S,
        start_timeout_s: float = 120.0,
    ) -> None:
        """``resource_pool``: where the ranks go; ``4`` or ``[2, 2]`` reserves ranks by node, for
        this group alone. ``worker``: a class, a `WorkerSpec`, or several by the name of their
        role. ``service``: left out, workers find it with ``tq.connect()``, which knows a service
        that ``tq.serve_ray`` started. ``name``: actors are called ``<name>-<rank>``.
        ``actor_options``: of ``ray.remote``, such as ``runtime_env`` or ``max_restarts``; a rank
        that Ray restarts is a new one without its workers, and says so when it is called.

        Returns when every ``__init__`` is done; raises what one raised, with nothing left running.
        """
        self._owns_pool = not isinstance(resource_pool, ResourcePool)
        self._pool = _pool_of(resource_pool)
        self._actors: list[Any] = []
        self._methods: list[Any] = []
        self._num_calls = [0] * self._pool.world_size
        mesh = Mesh.of(dp=self._pool.world_size) if mesh is None else mesh
        if mesh.world_size != self._pool.world_size:
            raise ConfigError(
                f"the mesh has {mesh.world_size} ranks, the pool {self._pool.world_size}"
            )
        super().__init__(
            GroupConfig.of(
                worker,
                mesh=mesh,
                meshes=meshes,
                service=service,
                fat=fat,
                call_timeout_s=call_timeout_s,
            )
        )
        try:
            self._start(name, actor_options or {}, start_timeout_s)
        except BaseException:
            self.close()
            raise

    def _start(
        self, name: str | None, actor_options: Mapping[str, Any], start_timeout_s: float
    ) -> None:
        config, places = self._config, self._pool.places()
        actor_class = ray.remote(_body_of(config.roles.values()))
        self._actors = [
            actor_class.options(
                scheduling_strategy=place.strategy,
                name=None if name is None else f"{name}-{rank}",
                **{**self._pool.actor_options, **actor_options},
            ).remote()
            for rank, place in enumerate(places)
        ]
        first = RayAnswers("free_address", [self._actors[0].free_address.remote()])
        ((address, port),) = first.values(start_timeout_s)
        local_ranks = [place.bundle for place in places]
        made = [
            actor.make.remote(
                HostSetup(
                    rank=rank,
                    world_size=len(self._actors),
                    mesh=config.mesh,
                    roles=config.roles,
                    service=config.service,
                    fat=config.fat,
                    local_rank=local_ranks[rank],
                    master_address=address,
                    master_port=port,
                )
            )
            for rank, actor in enumerate(self._actors)
        ]
        RayAnswers("__init__", made).values(start_timeout_s)
        self._methods = [actor.call for actor in self._actors]  # else made at every call

    @property
    def actors(self) -> list[Any]:
        """The Ray actor handles, by rank."""
        return list(self._actors)

    def _receivable(self, values: Sequence[Any]) -> list[Any]:
        """A future that only this process can wait for is waited for here."""
        return [
            value.get() if isinstance(value, CallFuture) and not value.is_portable else value
            for value in values
        ]

    def _submit(self, calls: Sequence[HostCall]) -> Answers:
        # All packed first: what Ray does for one rank it finds in the caches for the next.
        packed = [
            pack_call(call, number) for call, number in zip(calls, self._num_calls, strict=False)
        ]
        refs = []
        for rank, (head, args) in enumerate(packed):
            refs.append(self._methods[rank].remote(head, *args, **calls[rank].kwargs))
            self._num_calls[rank] += 1
        self._count_payload([head for head, _ in packed])
        for call in calls:
            if call.args or call.kwargs:
                self._count_payload((*call.args, *call.kwargs.values()))
        return RayAnswers(calls[0].label, refs)

    def _submit_query(self, method: str, args: Sequence[Any] = ()) -> Answers:
        return RayAnswers(method, [actor.query.remote(method, args) for actor in self._actors])

    def _end(self) -> None:
        """Let workers close, then end their processes whether they have or not."""
        if self._actors:  # without a connected Ray there are none, and `ray.get` would start one
            farewells = [actor.close.remote() for actor in self._actors]
            # What is dead already, or does not answer, is killed next.
            with contextlib.suppress(WorkerError, RayError):
                RayAnswers("close", farewells).values(CLOSE_TIMEOUT_S)
        for actor in self._actors:
            ray.kill(actor)
        if self._owns_pool:
            self._pool.close()


def _pool_of(pool: ResourcePool | Sequence[int] | int) -> ResourcePool:
    if isinstance(pool, ResourcePool):
        return pool
    return ResourcePool([pool] if isinstance(pool, int) else list(pool))


def _body_of(specs: Any) -> type:
    """A worker with coroutine methods needs an actor with an event loop."""
    methods = [
        inspect.getattr_static(spec.cls, name)
        for spec in specs
        for name in registered_methods(spec.cls)
    ]
    return AsyncRayRank if any(map(inspect.iscoroutinefunction, methods)) else RayRank
