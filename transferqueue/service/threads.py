"""Coordinator and shards on threads of this process, over ``inproc://``: for notebooks and tests.

The same servers as in processes, made from the same settings, over the same backend. Shared memory
is the default here too, rather than private memory, although nobody else maps it: so a client has
what it has elsewhere, reads without a copy under leases, edits that nobody else sees, and puts
that wait for space; a test that passes here means something. What does not hold is what processes
are for: nothing is started again, and all of it ends with this process. Forked children and other
processes cannot connect.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from transferqueue.net.contexts import INPROC, close_inproc, open_inproc
from transferqueue.service.process import make_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.errors import TransferQueueError
    from transferqueue.service.runnable import Runnable


class ServerThreads:
    """Servers by name. To a `Service` it is what a `Supervisor` of child processes is."""

    num_restarts = 0

    def __init__(self, service_id: str) -> None:
        self._service_id = service_id
        self.failures: dict[str, TransferQueueError] = {}
        self._servers: dict[str, Runnable] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._is_open = True
        open_inproc(service_id)

    def endpoint(self, name: str) -> str:
        """Where a server of this name listens."""
        return f"{INPROC}{self._service_id}/{name}"

    @property
    def pids(self) -> dict[str, int]:
        """All of them are this process."""
        return dict.fromkeys(self._servers, os.getpid())

    def start(self, name: str, settings: Mapping[str, Any]) -> None:
        """Start a server; what is wrong with it is raised here."""
        server = self._servers[name] = make_server(dict(settings))
        thread = threading.Thread(target=server.run, name=f"transferqueue-{name}", daemon=True)
        self._threads[name] = thread
        thread.start()

    def wait_ready(self, deadline_s: float) -> dict[str, list[str]]:
        """The endpoints of every server, by name: they listen since they were made."""
        del deadline_s
        return {name: list(server.endpoints) for name, server in self._servers.items()}

    def close(self) -> None:
        """End every thread and let go of all memory, shards first. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        for server in self._servers.values():
            server.stop()
        for name, server in reversed(self._servers.items()):
            if name in self._threads:
                self._threads[name].join()
            server.close()
        close_inproc(self._service_id)
