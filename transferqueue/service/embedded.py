"""A service whose processes are children of this one: `serve`."""

from __future__ import annotations

import atexit
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from transferqueue.backends.killed_arenas import remove_killed_arenas
from transferqueue.checkpoint.restore_plan import RestorePlan, plan_restore
from transferqueue.client import own_services
from transferqueue.closing import Closing
from transferqueue.config import ServiceConfig
from transferqueue.coordinator.samplers.registry import path_of
from transferqueue.errors import ConfigError
from transferqueue.html import table_html
from transferqueue.net.keys import ClientKeys, ServiceKeys
from transferqueue.service.child import sampler_settings, tracing_settings
from transferqueue.service.readiness import room_for, wait_in_step
from transferqueue.service.runtime_dir import RuntimeDir
from transferqueue.service.supervisor import Supervisor
from transferqueue.service.threads import ServerThreads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.errors import TransferQueueError


class Service(Closing):
    """One coordinator and N shards, running. Closing it ends them and removes their files.

    Whoever opened it closes it: use it as a context manager, or call `close`. It is closed when
    the interpreter exits, and its processes end by themselves when this process is killed.
    """

    def __init__(self, config: ServiceConfig, plan: RestorePlan | None = None) -> None:
        """``plan``: of a service that is restored."""
        self.config = config
        self._plan = plan
        self._files_id = secrets.token_hex(8)
        """In the names of its files. Not the id of what it holds: the service that was saved may
        still run on this host."""
        self.service_id = self._files_id if plan is None else plan.service_id
        self._owner_pid = os.getpid()
        self._closed = False
        self._runtime_dir = None if config.in_process else RuntimeDir(self._files_id)
        self._servers: Supervisor | ServerThreads
        if self._runtime_dir is None:
            self._servers = ServerThreads(self._files_id)
        else:
            self._servers = Supervisor(
                self._runtime_dir.path,
                start_timeout_s=config.start_timeout_s,
                restart_timeout_s=config.restart_timeout_s,
            )
        self._keys = ServiceKeys.generate(encrypted=config.encrypt, readers=config.read_keys)
        try:
            with room_for(config.shards):
                self._endpoints = self._start()
            if config.replicas > 1 and plan is None:
                wait_in_step(
                    self.address,
                    self.client_keys,
                    num_shards=config.shards,
                    timeout_s=config.start_timeout_s,
                )
        except BaseException:
            self.close()
            raise
        own_services.started(self)
        atexit.register(self.close)

    @property
    def address(self) -> str:
        """What `connect` takes: on this host a Unix socket; over TCP when ``host`` was given."""
        return self._endpoints[-1]

    @property
    def key_file(self) -> Path:
        """The client key that peers on other hosts need; 0600. ConfigError for a service within
        this process, which has none."""
        if self._runtime_dir is None:
            raise ConfigError("a service within this process needs no key, and has no key file")
        return self._runtime_dir.key_file

    @property
    def client_keys(self) -> ClientKeys:
        return self._keys.for_clients()

    @property
    def service_key_file(self) -> Path:
        """With which shards of other hosts join (`service.joining`), when it was started with
        ``host=``; 0600. Whoever has it can be the service."""
        return self.key_file.with_name("service.key")

    @property
    def read_key_files(self) -> dict[str, Path]:
        """Those of ``read_keys``, by name; 0600."""
        return {name: self.key_file.with_name(f"{name}.read.key") for name in self.config.read_keys}

    def read_keys(self, name: str) -> ClientKeys:
        """What the holder of one of the ``read_keys`` connects with. ConfigError for no such."""
        return self._keys.of(name)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name: ``coordinator``, ``shard-0``, … Others after a restart."""
        return self._servers.pids

    @property
    def num_restarts(self) -> int:
        """How many processes have died and were started again."""
        return self._servers.num_restarts

    @property
    def failures(self) -> dict[str, TransferQueueError]:
        """Processes that died and could not be started again, by name, and why."""
        return dict(self._servers.failures)

    def _start(self) -> list[str]:
        """Start every process at once, then wait for all of them."""
        plan = self._plan
        deadline_s = time.monotonic() + self.config.start_timeout_s
        if plan is not None:
            deadline_s += plan.extra_start_s
        common: dict[str, Any] = {"service_id": self._files_id, "keys": self._keys.to_plain()}
        if self._journals:
            common["guardian_pid"] = os.getpid()
        coordinator = self._endpoint("coordinator")
        self._servers.start(
            "coordinator",
            {
                **common,
                "role": "coordinator",
                "endpoints": [coordinator, *self._tcp()],
                "num_shards": self.config.shards,
                "journal_path": self._journal_path(),
                **self.config.takeover_settings(),
                **sampler_settings(self.config.samplers),
                **tracing_settings(self.config.tracing),
                **({} if plan is None else plan.coordinator_settings()),
            },
        )
        for slot in range(self.config.shards):
            self._servers.start(
                f"shard-{slot}",
                {
                    **common,
                    "role": "shard",
                    "slot": slot,
                    "endpoints": [self._endpoint(f"shard-{slot}"), *self._tcp()],
                    "coordinator": coordinator,
                    "copies": self.config.copy_settings(),
                    **self.config.storage_settings(),
                    **tracing_settings(self.config.tracing),
                    **({} if plan is None else plan.shard_settings(slot)),
                },
            )
        endpoints = self._servers.wait_ready(deadline_s)["coordinator"]
        if self._runtime_dir is not None:
            self._keys.for_clients().save(self._runtime_dir.key_file)
            for name, path in self.read_key_files.items():
                self._keys.of(name).save(path)
            if self.config.host is not None:
                self._keys.save(self.service_key_file)
            self._runtime_dir.describe(endpoints)
        if isinstance(self._servers, Supervisor) and self.config.restart:
            self._servers.watch()
        return endpoints

    @property
    def _journals(self) -> bool:
        """Whether what dies is started again, from what it has written down."""
        return self.config.restart and not self.config.in_process

    def _journal_path(self) -> str | None:
        if self._runtime_dir is None or not self._journals:
            return None
        return str(self._runtime_dir.path / "coordinator.journal")

    def _endpoint(self, name: str) -> str:
        if isinstance(self._servers, ServerThreads):
            return self._servers.endpoint(name)
        assert self._runtime_dir is not None
        return f"ipc://{self._runtime_dir.path / name}.sock"

    def _tcp(self) -> list[str]:
        return [f"tcp://{self.config.host}:0"] if self.config.host else []

    def close(self) -> None:
        """End every process and remove the service's files. Idempotent."""
        if self._closed or os.getpid() != self._owner_pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        own_services.closed(self)
        self._servers.close()
        remove_killed_arenas(self.config, self._files_id, range(self.config.shards))
        if self._runtime_dir is not None:
            self._runtime_dir.remove()

    def _repr_html_(self) -> str:
        rows = [
            ("address", "closed" if self._closed else self.address),
            ("shards", f"{self.config.shards} of {self.config.budget_bytes / 2**20:,.0f} MiB"),
            ("processes", "this one" if self.config.in_process else _pids_in_words(self.pids)),
            ("restarts", self.num_restarts),
        ]
        return table_html(f"service {self.service_id}", ["", ""], rows)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.address
        return f"<Service {self.service_id} {self.config.shards} shards {state}>"


def _pids_in_words(pids: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {pid}" for name, pid in pids.items())


def serve(
    *,
    shards: int = 1,
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
    host: str | None = None,
    encrypt: bool = True,
    read_keys: Mapping[str, Sequence[str] | None] | None = None,
    prefault: bool = False,
    replicas: int = 1,
    copy_bytes_per_s: float = 512 << 20,
    takeover_s: float | None = None,
    guard_silence_s: float = 5.0,
    restart: bool = True,
    in_process: bool = False,
    samplers: Sequence[type[Sampler] | str] = (),
    tracing: str | None = None,
    start_timeout_s: float = 30.0,
    restore: str | os.PathLike[str] | None = None,
) -> Service:
    """Start a service: one coordinator and ``shards`` shards, as child processes of this one.

    ``budget_bytes`` is what each shard may hold. ``host`` names the interface to listen on for
    clients of other hosts; without it only this host can connect. ``encrypt``, ``read_keys`` and
    ``prefault``: see `ServiceConfig`. With ``restart`` a process that dies is started again and
    goes on where it was: a shard with every row that was put, from its arena and a journal beside
    it, the coordinator from the shards and a journal of its own.

    ``backends``: others beside ``backend``, with a budget of their own, for the partitions and
    fields that ``create_partition(backend=...)`` sends there: see `ServiceConfig`.

    ``transports``: ways for large bytes beside the socket of the requests, such as one of yours; by
    default ``{"sockets": {}}``: see `ServiceConfig`.

    ``spill_dir``, a folder on a disk, and ``spill_bytes`` there for each shard: above
    ``spill_high`` of the budget the coldest data moves there, until ``spill_low`` is in use. Gets
    find it as before, only slower. It comes through kills of shards like the rest.

    ``replicas=2``: every row is on two shards before its put is acknowledged, and takes twice its
    bytes. A shard that is started again without its rows gets them from the other copy, so nothing
    that was acknowledged is lost while one of the two processes, or what it left, lives; meanwhile
    gets are answered by the other. ``copy_bytes_per_s``, ``takeover_s``, ``guard_silence_s``: see
    `ServiceConfig`.

    ``in_process``: on threads of this process instead, for this process alone: a notebook, a unit
    test. It starts in a tenth of the time and is used in the same way; nothing is started again.

    ``samplers``: own sampler classes, or ``"module:Class"``, that claims may ask for; installed
    ones (entry point ``transferqueue.samplers``) need not be named. ``tracing``: spans of requests:
    see `ServiceConfig`.
    ``restore``: the folder of a checkpoint (`Client.checkpoint`) that the service begins with, on
    any number of shards. Handles of the service that was saved are valid in this one.
    CheckpointTooLarge when it does not fit, CheckpointDamaged when a file is not what was written.

    Returns when all of them listen. ConfigError (ArenaTooSmall, …) or ServiceFailed when one cannot
    start; nothing is left running then.
    """
    config = ServiceConfig(
        shards=shards,
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
        host=host,
        encrypt=encrypt,
        read_keys=read_keys or {},
        prefault=prefault,
        replicas=replicas,
        copy_bytes_per_s=copy_bytes_per_s,
        takeover_s=takeover_s,
        guard_silence_s=guard_silence_s,
        restart=restart,
        in_process=in_process,
        samplers=tuple(map(path_of, samplers)),
        tracing=tracing,
        start_timeout_s=start_timeout_s,
    )
    if restore is None:
        return Service(config)
    return Service(
        config,
        plan_restore(os.fspath(restore), num_shards=shards, budget_bytes=config.storage_bytes),
    )
