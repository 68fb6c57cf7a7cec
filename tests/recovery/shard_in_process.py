"""A coordinator and a shard in threads of the test, so that what they hold can be looked into."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import transferqueue as tq
from transferqueue.coordinator.server import CoordinatorServer
from transferqueue.shard.server import ShardServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVICE_ID = "0123456789abcdef"


class InProcess:
    """One shard with a journal over an arena in ``folder``, and a client that maps it."""

    def __init__(self, folder: Path, *, budget_bytes: int, epoch: int = 0) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self.coordinator = CoordinatorServer(
            service_id=SERVICE_ID,
            endpoints=[f"ipc://{folder}/coordinator.sock"],
            keys=None,
            num_shards=1,
        )
        self._threads = [self._run(self.coordinator)]
        self.shard = self._make_shard(epoch)
        self._threads.append(self._run(self.shard))
        self.client = tq.connect(self.coordinator.endpoints[0], timeout_s=10)

    def _make_shard(self, epoch: int) -> ShardServer:
        return ShardServer(
            service_id=SERVICE_ID,
            slot=0,
            endpoints=[f"ipc://{self._folder}/shard.sock"],
            coordinator=self.coordinator.endpoints[0],
            keys=None,
            backend="shm",
            budget_bytes=self._budget_bytes,
            arena_dir=str(self._folder),
            guardian_pid=os.getpid(),
            epoch=epoch,
        )

    @staticmethod
    def _run(server: Any) -> threading.Thread:
        thread = threading.Thread(target=server.run)
        thread.start()
        return thread

    @property
    def journal_path(self) -> str:
        path = self.shard._backend.journal_path
        assert path is not None
        return path

    def restart_shard(self, epoch: int, before: Any = None) -> None:
        """Its successor takes over what it left; ``before`` is called in between."""
        self._stop_shard(keep=True)
        if before is not None:
            before()
        self.shard = self._make_shard(epoch)
        self._threads.append(self._run(self.shard))

    def _stop_shard(self, *, keep: bool) -> None:
        self.shard.stop()
        self._threads.pop().join()
        self.shard.close(keep=keep)

    def close(self) -> None:
        self.client.close()
        self._stop_shard(keep=False)
        self.coordinator.stop()
        self._threads.pop().join()
        self.coordinator.close()


@contextmanager
def in_process(folder: Path, *, budget_bytes: int = 16 << 20) -> Iterator[InProcess]:
    running = InProcess(folder, budget_bytes=budget_bytes)
    try:
        yield running
    finally:
        running.close()
