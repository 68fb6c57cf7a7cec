"""A service as Ray actors: `serve_ray`.

Each actor supervises one process, the same that `serve` starts as a child: the coordinator, or a
shard, which lies on the node that it was put on and nowhere else. Ray starts, places and restarts
them and hands the client key to whoever may call an actor; data goes from worker to shard by shared
memory or encrypted TCP, never through Ray.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from transferqueue.checkpoint.restore_plan import RestorePlan, plan_restore
from transferqueue.closing import Closing
from transferqueue.config import ServiceConfig
from transferqueue.coordinator.samplers.registry import path_of
from transferqueue.errors import ConfigError, TransferQueueError
from transferqueue.net.keys import ClientKeys, ServiceKeys
from transferqueue.net.sync_channel import run_blocking
from transferqueue.service.child import sampler_settings, tracing_settings
from transferqueue.service.held_rows import HeldRows, held_rows
from transferqueue.service.ray_actors import (
    ANSWER_TIMEOUT_S,
    DEFAULT_NAME,
    NAMESPACE,
    answers,
    end_actors,
)
from transferqueue.service.ray_nodes import NodeWatch, alive_nodes, chosen_nodes
from transferqueue.service.ray_supervisor import RayConnection, SupervisorActor
from transferqueue.service.readiness import room_for, wait_in_step, wait_registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ray import ObjectRef

    from transferqueue.coordinator.samplers import Sampler

POLL_EVERY_S = 0.2


@dataclass(slots=True)
class _Actors:
    """The actors of one service."""

    coordinator: Any
    shards: dict[int, Any] = field(default_factory=dict)
    """By slot."""
    nodes: dict[int, str] = field(default_factory=dict)
    """Slot -> id of the node that the shard is on."""


class RayService(Closing):
    """A coordinator and shards as Ray actors. Closing it ends them.

    Whoever opened it closes it: use it as a context manager, or call `close`. The actors end with
    the driver too, unless ``actor_options`` say ``lifetime="detached"``.
    """

    def __init__(
        self,
        config: ServiceConfig,
        *,
        shards_per_node: int,
        name: str,
        nodes: Sequence[str],
        actor_options: Mapping[str, Any],
        restore: str | None = None,
        follows: bool = False,
    ) -> None:
        """``follows``: nodes that join get shards by themselves."""
        self.config = config
        self.name = name
        self._files_id = self.service_id = secrets.token_hex(8)
        self._shards_per_node = shards_per_node
        self._options = dict(actor_options)
        self._keys = ServiceKeys.generate(encrypted=config.encrypt, readers=config.read_keys)
        self._closed = False
        self._changing = threading.RLock()
        """Shards come or go."""
        self._left: set[str] = set()
        """Nodes that are not to have shards any more."""
        self._watch = NodeWatch(self.add_shards)
        self._draining: set[int] = set()
        """Slots that take no new samples."""
        self._plan: RestorePlan | None = None
        if restore is not None:
            self._plan = plan_restore(
                restore,
                num_shards=config.shards,
                budget_bytes=config.storage_bytes,
            )
            self.service_id = self._plan.service_id
        self._actors = _Actors(coordinator=None)
        try:
            with room_for(shards_per_node):
                self._connection = self._start(nodes)
            if self.config.replicas > 1 and self._plan is None:
                wait_in_step(
                    self.address,
                    self.client_keys,
                    num_shards=len(nodes) * shards_per_node,
                    timeout_s=self.config.start_timeout_s,
                )
        except BaseException:
            self.close()
            raise
        if follows:
            self._watch.start()

    @property
    def address(self) -> str:
        """The coordinator's TCP address. Workers need not know it: ``tq.connect()`` finds it."""
        return self._connection.tcp_address

    @property
    def client_keys(self) -> ClientKeys:
        return self._connection.keys

    def read_keys(self, name: str) -> ClientKeys:
        """What the holder of one of the ``read_keys`` connects with. ConfigError for no such."""
        return self._keys.of(name)

    @property
    def shard_nodes(self) -> dict[int, str]:
        """Slot -> id of the node that the shard is on."""
        return dict(self._actors.nodes)

    def _start(self, nodes: Sequence[str]) -> RayConnection:
        here = ray.get_runtime_context().get_node_id()
        coordinator_node = here if here in nodes else nodes[0]
        self._actors.coordinator = self._make_actor(
            "coordinator",
            coordinator_node,
            {
                "role": "coordinator",
                "num_shards": len(nodes) * self._shards_per_node,
                **self.config.takeover_settings(),
                **sampler_settings(self.config.samplers),
                **tracing_settings(self.config.tracing),
                **({} if self._plan is None else self._plan.coordinator_settings()),
            },
            name=f"{self.name}-coordinator",
        )
        connection: RayConnection = self._answers([self._actors.coordinator.connection.remote])[0]
        self._connection = connection
        places = [node for node in nodes for _ in range(self._shards_per_node)]
        self._start_shards(dict(enumerate(places)))
        return connection

    def _start_shards(self, places: Mapping[int, str]) -> None:
        """Shards by slot, on these nodes; returns when they listen."""
        started = []
        for slot, node in places.items():
            self._actors.shards[slot] = self._make_shard(slot, node)
            self._actors.nodes[slot] = node
            started.append(self._actors.shards[slot].pid.remote)
        self._answers(started)

    def _make_shard(self, slot: int, node: str) -> Any:
        settings = {
            "role": "shard",
            "slot": slot,
            "node": node,
            "coordinator": self._connection.tcp_address,
            "copies": self.config.copy_settings(),
            **self.config.storage_settings(),
            **tracing_settings(self.config.tracing),
            **({} if self._plan is None else self._plan.shard_settings(slot)),
        }
        return self._make_actor(f"shard-{slot}", node, settings, name=f"{self.name}-shard-{slot}")

    def _make_actor(
        self, process: str, node: str, settings: Mapping[str, Any], *, name: str
    ) -> Any:
        common = {"service_id": self._files_id, "keys": self._keys.to_plain()}
        options = {"num_cpus": 0, "max_restarts": 3, **self._options}
        actor = ray.remote(SupervisorActor).options(
            name=name,
            namespace=NAMESPACE,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            **options,
        )
        timeout_s = max(self._start_timeout_s, self.config.restart_timeout_s)
        return actor.remote(process, {**common, **settings}, timeout_s)

    @property
    def _start_timeout_s(self) -> float:
        more_s = 0.0 if self._plan is None else self._plan.extra_start_s
        return self.config.start_timeout_s + more_s

    def _answers(self, questions: Sequence[Callable[[], ObjectRef[Any]]]) -> list[Any]:
        # Ray starts a Python first, on a busy machine in tens of seconds.
        return answers(self.name, questions, self._start_timeout_s + ANSWER_TIMEOUT_S)

    def add_shards(self) -> list[int]:
        """Put shards on the nodes that have joined since; returns their slots. Nodes that were
        drained or removed are left alone. It happens by itself within seconds where the service is
        one of all nodes. ServiceFailed, or why one could not start; none is added then.

        Clients use them from the next answer of the coordinator on, or once they meet a handle that
        names one. Rows stay where they are.
        """
        with self._changing:
            known = {*self._actors.nodes.values(), *self._left}
            new = [] if self._closed else [node for node in alive_nodes() if node not in known]
            places = {
                self._given_slot(): node for node in new for _ in range(self._shards_per_node)
            }
            try:
                with room_for(self._shards_per_node):
                    self._start_shards(places)
                timeout_s = self.config.start_timeout_s
                wait_registered(self.address, self.client_keys, [*places], timeout_s=timeout_s)
            except BaseException:
                with contextlib.suppress(TransferQueueError):
                    self._end_shards(places)
                raise
            return list(places)

    def _given_slot(self) -> int:
        """From the coordinator: others may join as well."""
        from transferqueue.client.connecting import connect

        with connect(self.address, keys=self._keys.for_processes()) as client:
            return int(run_blocking(client._ops.upkeep.join())["slot"])

    def held_on(self, node: str) -> tuple[HeldRows, ...]:
        """What the shards of a node hold now. ``ConfigError`` for a node without shards."""
        from transferqueue.client.connecting import connect

        slots = self._slots_on(node)
        with connect(self.address, keys=self.client_keys) as client:
            return held_rows(client, slots)

    def drain(self, node: str, *, timeout_s: float = 0.0) -> tuple[HeldRows, ...]:
        """A node is to go: its shards take no new samples from now on, which go to the others.

        Waits up to ``timeout_s`` for those that are there to be consumed or cleared; fields are
        added to them and read as before. Returns what is still there, which goes with the node:
        nothing when the node can go without loss. ``ConfigError`` for a node without shards, and
        for the last one that takes new samples.
        """
        from transferqueue.client.connecting import connect

        slots = self._slots_on(node)
        if not set(self._actors.nodes) - set(slots) - self._draining:
            raise ConfigError(
                f"node {node} has the last shards that take new samples; add_shards() first"
            )
        self._left.add(node)
        self._answers([self._actors.shards[slot].drain.remote for slot in slots])
        self._draining.update(slots)
        deadline_s = time.monotonic() + timeout_s
        with connect(self.address, keys=self.client_keys) as client:
            while held := held_rows(client, slots):
                if time.monotonic() >= deadline_s:
                    break
                time.sleep(POLL_EVERY_S)
        return held

    def remove(self, node: str) -> tuple[HeldRows, ...]:
        """End the shards of a node, drained or not. Returns what was lost with them: whoever asks
        for it gets ``RowsLost``, and claims and groups go on without it. Where there are second
        copies, nothing: others take their place."""
        from transferqueue.client.connecting import connect

        with self._changing:
            slots = self._slots_on(node)
            self._left.add(node)
            with connect(self.address, keys=self.client_keys) as client:
                held = held_rows(client, slots)
            lost = self._end_shards(slots)
        return tuple(rows for rows in held if rows.slot in lost)

    def _end_shards(self, slots: Iterable[int]) -> set[int]:
        """For good. Returns those whose rows are lost."""
        from transferqueue.client.connecting import connect

        lost = set()
        for slot in slots:
            actor = self._actors.shards.pop(slot, None)
            if actor is not None:
                end_actors([actor])
            with connect(self.address, keys=self.client_keys) as client:
                if run_blocking(client._ops.upkeep.lose_shard(slot, owner="")):
                    lost.add(slot)
            self._actors.nodes.pop(slot, None)
        return lost

    def _slots_on(self, node: str) -> list[int]:
        nodes = self.shard_nodes
        slots = [slot for slot, own in nodes.items() if own == node]
        if not slots:
            there = sorted(set(nodes.values()))
            raise ConfigError(f"no shard is on node {node}; they are on {there}")
        return slots

    def pids(self) -> dict[str, int]:
        """Process ids by name, each on its node: ``coordinator``, ``shard-0``, …"""
        actors = {"coordinator": self._actors.coordinator} | {
            f"shard-{slot}": actor for slot, actor in dict(self._actors.shards).items()
        }
        pids = self._answers([actor.pid.remote for actor in actors.values()])
        return dict(zip(actors, pids, strict=True))

    def close(self) -> None:
        """End every process and actor. Idempotent; also where nodes are gone already."""
        if self._closed:
            return
        self._closed = True
        self._watch.close()
        with self._changing:
            actors = [*self._actors.shards.values(), self._actors.coordinator]
        actors = [actor for actor in actors if actor is not None]
        if not actors or not ray.is_initialized():
            return
        end_actors(actors)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.address
        return f"<RayService {self.service_id} {len(self._actors.shards)} shards {state}>"


def serve_ray(
    *,
    shards_per_node: int = 1,
    budget_bytes: int = 4 << 30,
    backend: str = "shm",
    backend_options: Mapping[str, Any] | None = None,
    arena_dir: str | None = None,
    backends: Mapping[str, Mapping[str, Any]] | None = None,
    transports: Mapping[str, Mapping[str, Any]] | None = None,
    spill_dir: str | None = None,
    spill_bytes: int | None = None,
    spill_high: float = 0.9,
    spill_low: float = 0.75,
    encrypt: bool = True,
    read_keys: Mapping[str, Sequence[str] | None] | None = None,
    prefault: bool = False,
    replicas: int = 1,
    copy_bytes_per_s: float = 512 << 20,
    takeover_s: float | None = None,
    guard_silence_s: float = 5.0,
    name: str = DEFAULT_NAME,
    nodes: Sequence[str] | None = None,
    samplers: Sequence[type[Sampler] | str] = (),
    tracing: str | None = None,
    start_timeout_s: float = 30.0,
    restore: str | os.PathLike[str] | None = None,
    **actor_options: Any,
) -> RayService:
    """Start a service on the Ray cluster that this process is connected to.

    ``shards_per_node`` shards on every node, also on those that join while this process runs (or on
    those of ``nodes``, by node id, alone), each with ``budget_bytes``, and the coordinator on this
    node. Any process of the cluster reaches it with
    ``tq.connect()``. What bytes lie on (``backend``, ``backends``, ``spill_dir``, …), ``encrypt``,
    ``read_keys`` and ``prefault``: see `ServiceConfig`; folders are each node's own.
    ``replicas=2``: every row is on shards of two nodes. When a node is lost with all that was on
    it, gets go on, and after ``takeover_s`` (a minute) its shards are served, for good, by those
    that have the second copies; these are made again on nodes that are left. Not so the
    coordinator, which is lost with its node: keep the driver where it is safe. See `ServiceConfig`.
    ``samplers``: own classes, as in `serve`, importable where the coordinator runs.
    ``actor_options`` are those of ``ray.remote`` for all of its actors: ``num_cpus`` (0 by
    default), ``resources``, ``runtime_env``, ``max_restarts`` (3 by default),
    ``lifetime="detached"`` to outlive this driver. ``restore``: see `serve`; every node must see
    the folder. ``name`` tells services of one cluster apart.

    Returns when all of them listen. ConfigError (ArenaTooSmall, …) or ServiceFailed when one cannot
    start; nothing is left running then.
    """
    chosen = chosen_nodes(nodes, shards_per_node)
    return RayService(
        ServiceConfig(
            shards=len(chosen) * shards_per_node,
            budget_bytes=budget_bytes,
            backend=backend,
            backend_options=backend_options or {},
            arena_dir=arena_dir,
            backends=backends or {},
            transports=transports,
            spill_dir=spill_dir,
            spill_bytes=spill_bytes,
            spill_high=spill_high,
            spill_low=spill_low,
            encrypt=encrypt,
            read_keys=read_keys or {},
            prefault=prefault,
            replicas=replicas,
            copy_bytes_per_s=copy_bytes_per_s,
            takeover_s=takeover_s,
            guard_silence_s=guard_silence_s,
            samplers=tuple(map(path_of, samplers)),
            tracing=tracing,
            start_timeout_s=start_timeout_s,
        ),
        shards_per_node=shards_per_node,
        name=name,
        nodes=chosen,
        actor_options=actor_options,
        restore=None if restore is None else os.fspath(restore),
        follows=nodes is None,
    )
