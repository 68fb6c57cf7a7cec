"""Slots of shards that do not come back, served in the process of another shard, on threads.

A guard has the rows of its home in memory. When the coordinator says that nobody else serves them
any more, another `ShardServer` begins here: with the home's slot, an arena of its own, and the rows
that it fetches from the guard. To everybody else it is that shard, started again at another place.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from transferqueue.errors import TransferQueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transferqueue.service.runnable import Runnable

AGAIN_S = 5.0
"""After a start that failed; nothing is free of what it lacked just because it is tried again."""

_log = logging.getLogger(__name__)


class HostedShards:
    """``settings``: of the process. ``make``: starts a server, and returns when it listens. It is
    given what says whether the process is about to end: then it gives up, with an error of ours."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        make: Callable[[dict[str, Any], Callable[[], bool]], Runnable],
    ) -> None:
        self._settings = settings
        self._make = make
        self._threads: dict[int, threading.Thread] = {}
        self._servers: dict[int, Runnable] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def hear(self, hosted: Sequence[Mapping[str, Any]]) -> None:
        """These are to be served here: each with ``slot``, ``uids``, ``lineage``, ``epoch``. Said
        again and again; one that has failed begins once more."""
        for one in hosted:
            slot = int(one["slot"])
            thread = self._threads.get(slot)
            if thread is None or not thread.is_alive():
                self._threads[slot] = threading.Thread(
                    target=self._serve, args=(slot, dict(one)), name=f"shard-{slot}", daemon=True
                )
                self._threads[slot].start()

    def _serve(self, slot: int, one: dict[str, Any]) -> None:
        _log.warning("shard %d does not come back: it is served here from now on", slot)
        try:
            server = self._make(self._settings_of(slot, one), self._closing.is_set)
        except TransferQueueError as error:
            _log.error("shard %d could not be started here: %s", slot, error)
            self._closing.wait(AGAIN_S)
            return
        with self._lock:
            self._servers[slot] = server
            if self._closing.is_set():
                server.stop()
        server.run()
        with self._lock:
            if not self._closing.is_set():  # another one has its place
                self._servers.pop(slot).close()

    def _settings_of(self, slot: int, one: dict[str, Any]) -> dict[str, Any]:
        mine = {k: v for k, v in self._settings.items() if k not in ("restore", "draining")}
        return {
            **mine,
            **one,
            # In the names of its files: those of the shard before may lie in the same folder.
            "service_id": f"{self._settings['service_id']}{one['lineage'][:8]}",
            "endpoints": [_beside(endpoint, slot) for endpoint in self._settings["endpoints"]],
            "transports": {
                name: _without_port(options)
                for name, options in self._settings.get("transports", {}).items()
            },
        }

    def close(self, *, keep: bool) -> None:
        """End all of them. ``keep``: leave their rows for a successor of this process."""
        with self._lock:
            self._closing.set()
            for server in self._servers.values():
                server.stop()
        for thread in self._threads.values():
            thread.join()
        for server in self._servers.values():
            server.close(keep=keep)


def _without_port(options: Mapping[str, Any]) -> dict[str, Any]:
    """One that was asked for is that of the process's own slot."""
    return {name: value for name, value in options.items() if name != "port"}


def _beside(endpoint: str, slot: int) -> str:
    """Where a slot is served in a process that listens at ``endpoint``."""
    if endpoint.startswith("tcp://"):
        return f"{endpoint.rpartition(':')[0]}:0"
    return f"{endpoint}.{slot}"
