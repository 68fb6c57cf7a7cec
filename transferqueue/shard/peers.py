"""The processes that have this shard's memory mapped, and what each must give back when it ends.

A mapping is only safe while the shard knows that its process lives: memory that a live process
still looks at is never given out again, however long that takes, and memory of a dead one comes
back at once. So the shard holds a pidfd of each, which the kernel makes readable when the process
ends. No heartbeat: a process that hangs in a debugger keeps what it holds.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transferqueue.errors import InvalidInput
from transferqueue.process_id import ProcessId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class MappingPeers:
    """Watches the processes that hold leases or reservations of mapped memory.

    ``watch`` and ``unwatch`` are the server's; ``on_begin`` gets the key and the plain values of
    a process that is new, ``on_end`` the key of one that ended.
    """

    def __init__(
        self,
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], None],
        on_end: Callable[[str], None],
        on_begin: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._watch = watch
        self._unwatch = unwatch
        self._on_end = on_end
        self._on_begin = on_begin
        self.processes: dict[str, dict[str, Any]] = {}
        """Every one of them, as plain values, by key. All but this one are watched: with it the
        shard ends too."""
        self._pidfds: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.processes)

    def key_of(self, plain: Mapping[str, Any]) -> str:
        """The key of the process that a request names, which is watched from now on.

        InvalidInput when it is not there: then nothing may be lent to it.
        """
        process = ProcessId(
            pid=int(plain["pid"]),
            started=int(plain["started"]),
            pid_namespace=str(plain["pid_namespace"]),
            boot_id=str(plain["boot_id"]),
        )
        key = f"{process.pid}:{process.started}"
        if key not in self.processes:
            self._open(key, process)
            self._on_begin(key, self.processes[key])
        return key

    def resume(self, processes: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Watch the processes that an earlier process of this shard has lent memory to. Returns
        the keys of those that have ended."""
        ended = []
        for key, plain in processes.items():
            try:
                self._open(key, ProcessId(**plain))
            except InvalidInput:
                ended.append(key)
        return ended

    def _open(self, key: str, process: ProcessId) -> None:
        if process == ProcessId.of(os.getpid()):  # a client of a shard that runs on its threads
            self.processes[key] = asdict(process)
            return
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            raise InvalidInput(f"no process {process.pid} to lend memory to: {error}") from error
        # Checked after the descriptor is open: from here on the number cannot be another's.
        if not process.is_alive():
            os.close(pidfd)
            raise InvalidInput(f"process {process.pid} is not the one that asks for memory")
        self._pidfds[key] = pidfd
        self.processes[key] = asdict(process)
        self._watch(pidfd, lambda: self._end(key))

    def _end(self, key: str) -> None:
        self._forget(key)
        self._on_end(key)

    def _forget(self, key: str) -> None:
        pidfd = self._pidfds.pop(key)
        del self.processes[key]
        self._unwatch(pidfd)
        os.close(pidfd)

    def close(self) -> None:
        for key in list(self._pidfds):
            self._forget(key)
