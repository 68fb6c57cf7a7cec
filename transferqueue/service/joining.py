"""Shards of this host that join a service that runs, here or elsewhere: `join`."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import signal
import time
from typing import TYPE_CHECKING, Any

from transferqueue.backends.killed_arenas import remove_killed_arenas
from transferqueue.client.connecting import connect
from transferqueue.closing import Closing
from transferqueue.config import ServiceConfig
from transferqueue.errors import ConfigError, ServiceFailed, TransferQueueError
from transferqueue.net.keys import ServiceKeys
from transferqueue.net.sync_channel import run_blocking
from transferqueue.service.child import tracing_settings
from transferqueue.service.readiness import room_for
from transferqueue.service.runtime_dir import RuntimeDir
from transferqueue.service.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from transferqueue.client.sync_client import Client

POLL_EVERY_S = 0.05

FAREWELL_S = 2.0
"""How long the coordinator has to hear that shards left. A service that ended first does not."""


def load_service_keys(path: Path) -> ServiceKeys:
    """Read the ``service.key`` of a service. ConfigError when it is none."""
    try:
        return ServiceKeys.from_plain(json.loads(path.read_text(encoding="ascii")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"no usable service key in {path}: {error!r}") from error


class JoinedShards(Closing):
    """Child processes that are shards of another owner's service. Closing it ends them: where the
    service keeps two copies others take their place; else what they hold is lost, and whoever waits
    for it is told.

    They are started again when they die, as a service's own are, with all that they held.
    """

    def __init__(self, address: str, keys: ServiceKeys | None, config: ServiceConfig) -> None:
        if config.host is None and address.startswith("tcp://"):
            raise ConfigError("a shard of another host's service needs host=, to be reached there")
        if config.host is not None and keys is None:
            raise ConfigError("a shard that serves other hosts needs the service's service.key")
        self.config = config
        self.address = address
        self._owner_pid = os.getpid()
        self._closed = False
        self._keys = keys
        self._files_id = secrets.token_hex(8)
        """In the names of its files. The service's own id may be that of a saved one, which may
        have shards of the same slots on this host."""
        self._lineage = secrets.token_hex(8)
        self.slots: list[int] = []
        with self._connect() as client:
            self.service_id = client.service_id
        self._runtime_dir = RuntimeDir(f"{self.service_id}-{secrets.token_hex(4)}")
        self._supervisor = Supervisor(
            self._runtime_dir.path, start_timeout_s=config.start_timeout_s
        )
        try:
            with room_for(config.shards):
                self._start()
        except BaseException:
            self.close()
            raise
        atexit.register(self.close)

    def _connect(self, timeout_s: float | None = None) -> Client:
        keys = None if self._keys is None else self._keys.for_processes()
        return connect(self.address, keys=keys, timeout_s=timeout_s or self.config.start_timeout_s)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name, e.g. ``shard-2``. Others after a restart."""
        return self._supervisor.pids

    def _start(self) -> None:
        deadline_s = time.monotonic() + self.config.start_timeout_s
        for given in self._ask_for_slots():
            self._supervisor.start(f"shard-{given['slot']}", self._settings(given))
        self._supervisor.wait_ready(deadline_s)
        if self._keys is not None:
            self._keys.for_clients().save(self._runtime_dir.key_file)
        self._runtime_dir.describe([self.address])  # so that clients of this host find it
        self._wait_registered(deadline_s)
        self._supervisor.watch()

    def _ask_for_slots(self) -> list[dict[str, Any]]:
        given = []
        with self._connect() as client:
            for _ in range(self.config.shards):
                begins_with = run_blocking(client._ops.upkeep.join())
                self.slots.append(begins_with["slot"])
                if begins_with.pop("replicas") > 1:
                    begins_with["copies"] = self.config.copy_settings_of_any()
                given.append(begins_with)
        return given

    def _settings(self, given: dict[str, Any]) -> dict[str, Any]:
        name = f"shard-{given['slot']}"
        endpoints = [f"ipc://{self._runtime_dir.path / name}.sock"]
        if self.config.host is not None:
            endpoints.append(f"tcp://{self.config.host}:0")
        return {
            "role": "shard",
            "service_id": self._files_id,
            "keys": None if self._keys is None else self._keys.to_plain(),
            **given,
            "lineage": self._lineage,
            "endpoints": endpoints,
            "coordinator": self.address,
            **self.config.storage_settings(),
            **tracing_settings(self.config.tracing),
            "guardian_pid": os.getpid(),
        }

    def _wait_registered(self, deadline_s: float) -> None:
        """Until the coordinator tells clients of them."""
        with self._connect() as client:
            while True:
                known = {shard["slot"] for shard in client.status()["shards"]}
                missing = [slot for slot in self.slots if slot not in known]
                if not missing:
                    return
                if time.monotonic() > deadline_s:
                    why = f"{self.address} has not heard of it"
                    raise ServiceFailed(f"shard {missing[0]}", why)
                time.sleep(POLL_EVERY_S)

    def drain(self, *, timeout_s: float = 0.0) -> int:
        """Take no new samples from now on; clients put them elsewhere. Waits up to ``timeout_s``
        for those that are there to be consumed or cleared. Returns how many are left, which go
        with these shards."""
        for name, pid in self.pids.items():
            self._supervisor.amend(name, draining=True)  # also of the process that may follow
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        deadline_s = time.monotonic() + timeout_s
        with self._connect() as client:
            while num_rows := self._num_rows(client):
                if time.monotonic() >= deadline_s:
                    break
                time.sleep(POLL_EVERY_S)
        return num_rows

    def _num_rows(self, client: Client) -> int:
        """Those of puts that were let in and are still being written are counted as one each."""
        mine = [shard for shard in client.status()["shards"] if shard["slot"] in self.slots]
        return sum(int(shard["rows"]) + int(shard["puts_under_way"]) for shard in mine)

    def close(self) -> None:
        """End the shards, and say that they will not come back. Idempotent."""
        if self._closed or os.getpid() != self._owner_pid:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._supervisor.close()
        remove_killed_arenas(self.config, self._files_id, self.slots)
        # The service may be gone before.
        with contextlib.suppress(TransferQueueError), self._connect(FAREWELL_S) as client:
            for slot in self.slots:
                run_blocking(client._ops.upkeep.lose_shard(slot, owner=self._lineage))
        self._runtime_dir.remove()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"of {self.address}"
        return f"<JoinedShards {self.slots} {state}>"


def join(
    address: str,
    *,
    keys: ServiceKeys | None = None,
    shards: int = 1,
    budget_bytes: int = 4 << 30,
    host: str | None = None,
    arena_dir: str | None = None,
    backend: str = "shm",
    backend_options: Mapping[str, Any] | None = None,
    backends: Mapping[str, Mapping[str, Any]] | None = None,
    transports: Mapping[str, Mapping[str, Any]] | None = None,
    spill_dir: str | None = None,
    spill_bytes: int | None = None,
    spill_high: float = 0.9,
    spill_low: float = 0.75,
    prefault: bool = False,
    copy_bytes_per_s: float = 512 << 20,
    guard_silence_s: float = 5.0,
    tracing: str | None = None,
    start_timeout_s: float = 30.0,
) -> JoinedShards:
    """Add shards of this host to the service whose coordinator listens at ``address``.

    ``keys``: of the service itself (its ``service.key``); needed over TCP. ``host``: the interface
    on which other hosts reach the new shards. Returns when clients are told of them; those that
    are connected already find them when they see a handle or a status that names one. Where the
    service keeps two copies of every row, so do these (``copy_bytes_per_s``, ``guard_silence_s``).
    """
    config = ServiceConfig(
        shards=shards,
        encrypt=keys is None or keys.encrypted,
        budget_bytes=budget_bytes,
        host=host,
        arena_dir=arena_dir,
        backend=backend,
        backend_options=backend_options or {},
        backends=backends or {},
        transports=transports,
        spill_dir=spill_dir,
        spill_bytes=spill_bytes,
        spill_high=spill_high,
        spill_low=spill_low,
        prefault=prefault,
        copy_bytes_per_s=copy_bytes_per_s,
        guard_silence_s=guard_silence_s,
        tracing=tracing,
        start_timeout_s=start_timeout_s,
    )
    return JoinedShards(address, keys, config)
