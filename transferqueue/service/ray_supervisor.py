"""A process of the service under the eye of a Ray actor."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from transferqueue.errors import TransferQueueError
from transferqueue.net.keys import ClientKeys, ServiceKeys
from transferqueue.service.child import ChildProcess
from transferqueue.service.runtime_dir import RuntimeDir

if TYPE_CHECKING:
    from collections.abc import Mapping

WATCH_EVERY_S = 0.2

_PORT, _EPOCH, _DRAINING = "port", "epoch", "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConnection:
    """What a worker needs to connect. Comes by an actor call; the key is in no argument, file or
    environment of the worker."""

    service_id: str
    endpoints: tuple[str, ...]
    """Of the coordinator: a Unix socket of its node, and TCP."""
    keys: ClientKeys

    @property
    def address(self) -> str:
        """The Unix socket where it can be seen, else TCP."""
        for endpoint in self.endpoints:
            if endpoint.startswith("ipc://") and Path(endpoint.removeprefix("ipc://")).exists():
                return endpoint
        return self.tcp_address

    @property
    def tcp_address(self) -> str:
        return next(endpoint for endpoint in self.endpoints if endpoint.startswith("tcp://"))


class SupervisorActor:
    """The body of an actor: one process of the service, and its end when this one ends.

    When the process dies, so does the actor, and Ray makes it again on the same node
    (``max_restarts``); it listens where it did before, so that clients find it by themselves, and
    goes on from the arena and the journals that were left there.
    """

    def __init__(self, process: str, settings: Mapping[str, Any], start_timeout_s: float) -> None:
        self._service_id = settings["service_id"]
        self._client_keys = ServiceKeys.from_plain(settings["keys"]).for_clients()
        self._stopping = False
        self._folder, self._port, self._epoch = _folder_of(f"{self._service_id}-{process}")
        self._failure: TransferQueueError | None = None
        try:
            self._start(process, settings, start_timeout_s)
        except TransferQueueError as error:
            if ray.get_runtime_context().was_current_actor_reconstructed:
                raise  # Ray tries again
            # Of a constructor that raises Ray tells a text; the first call raises this itself.
            self._folder.remove()
            self._failure = error

    def _start(self, process: str, settings: Mapping[str, Any], start_timeout_s: float) -> None:
        folder = self._folder.path
        host = ray.util.get_node_ip_address()
        endpoints = [f"ipc://{folder / process}.sock", f"tcp://{host}:{self._port}"]
        if (folder / _DRAINING).exists():
            settings = {**settings, "draining": True}
        recovery = {
            # Ray's own process of this node starts this actor again, not the one that made it.
            "guardian_pid": os.getppid(),
            "epoch": self._epoch,
            "outlives_parent": True,
            "journal_path": str(folder / f"{process}.journal"),
        }
        self._child = ChildProcess(
            process, {**settings, **recovery, "endpoints": endpoints}, folder / f"{process}.log"
        )
        try:
            said = self._child.wait_ready(time.monotonic() + start_timeout_s)
        except BaseException:
            self._child.stop()
            raise
        self._endpoints = tuple(said["endpoints"])
        (folder / _PORT).write_text(self._endpoints[-1].rpartition(":")[2])
        if settings["role"] == "coordinator":
            self._client_keys.save(self._folder.key_file)
            self._folder.describe(self._endpoints, owner_pid=os.getppid())
        threading.Thread(target=self._watch, name="supervisor", daemon=True).start()

    def _watch(self) -> None:
        while self._child.is_alive:
            # What has no description and is not touched is taken for a dead service's.
            with contextlib.suppress(FileNotFoundError):  # stop() was faster
                os.utime(self._folder.path)
            time.sleep(WATCH_EVERY_S)
        if not self._stopping:
            os._exit(1)  # the one way to tell Ray to make this actor again

    def connection(self) -> RayConnection:
        """Of the coordinator."""
        self._raise_failure()
        return RayConnection(
            service_id=self._service_id, endpoints=self._endpoints, keys=self._client_keys
        )

    def pid(self) -> int:
        """Process id of the supervised process, on its node."""
        self._raise_failure()
        return self._child.pid

    def drain(self) -> None:
        """The shard takes no new samples from now on."""
        self._raise_failure()
        (self._folder.path / _DRAINING).touch()  # also of the process that may follow
        os.kill(self._child.pid, signal.SIGUSR1)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the process and remove its files."""
        self._stopping = True
        if self._failure is None:
            self._child.stop()
        self._folder.remove()


def _folder_of(process: str) -> tuple[RuntimeDir, int, int]:
    """The folder, with what a predecessor on this node has left there; its TCP port (0, for any,
    when there was none); and how many predecessors there were."""
    folder = RuntimeDir(process, resume=True)
    epoch = _number_in(folder.path / _EPOCH)
    (folder.path / _EPOCH).write_text(str(epoch + 1))
    return folder, _number_in(folder.path / _PORT), epoch


def _number_in(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0
