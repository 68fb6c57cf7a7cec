"""A coordinator and a shard in threads of the test, so that what they hold can be looked into."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import transferqueue as tq
from tests.shard_settings import SERVICE_ID, shard_settings
from transferqueue.coordinator.server import CoordinatorServer
from transferqueue.shard.server import ShardServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transferqueue.config import SpillConfig
    from transferqueue.coordinator.control_plane import ControlPlane


class InProcess:
    """One shard with a journal over an arena in ``folder``, and a client that maps it."""

    def __init__(
        self, folder: Path, *, budget_bytes: int, epoch: int = 0, spill: SpillConfig | None = None
    ) -> None:
        self._folder = folder
        self._spill = spill
        self._budget_bytes = budget_bytes
        self._num_coordinators = 0
        self.coordinator_journal = f"{folder}/coordinator.journal"
        self.start_coordinator()
        self.shard = self._make_shard(epoch)
        self._shard_thread = self._run(self.shard)
        self.client = tq.connect(self.coordinator.endpoints[0], timeout_s=10)

    def start_coordinator(self) -> None:
        self.coordinator = CoordinatorServer(
            service_id=SERVICE_ID,
            endpoints=[f"ipc://{self._folder}/coordinator.sock"],
            keys=None,
            num_shards=1,
            journal_path=self.coordinator_journal,
            epoch=self._num_coordinators,
        )
        self._num_coordinators += 1
        self._coordinator_thread = self._run(self.coordinator)

    def stop_coordinator(self, *, keep: bool = True) -> None:
        self.coordinator.stop()
        self._coordinator_thread.join()
        self.coordinator.close(keep=keep)

    def restart_coordinator(self) -> None:
        self.stop_coordinator()
        self.start_coordinator()

    def links_are_deaf(self) -> None:
        """What the coordinator orders from now on gets lost."""
        self.coordinator._links.order_free = lambda effect: None  # type: ignore[method-assign]

    @property
    def plane(self) -> ControlPlane:
        return self.coordinator._plane

    def is_settled(self) -> bool:
        """Whether the coordinator has heard of all that happened, and the shard of its orders."""
        freeing = sum(partition.table.num_freeing for partition in self.plane.partitions)
        return self.shard._uplink.num_unsent == 0 and freeing == 0

    def _make_shard(self, epoch: int) -> ShardServer:
        return ShardServer(
            shard_settings(
                self._folder,
                self._budget_bytes,
                backend="shm",
                spill=self._spill,
                guardian_pid=os.getpid(),
                epoch=epoch,
            )
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

    def restart_shard(self, epoch: int, before: Any = None, last: Any = None) -> None:
        """Its successor takes over what it left; ``before`` is called in between. ``last`` is what
        the shard was doing when it was killed."""
        self._stop_shard(keep=True, last=last)
        if before is not None:
            before()
        self.shard = self._make_shard(epoch)
        self._shard_thread = self._run(self.shard)

    def _stop_shard(self, *, keep: bool, last: Any = None) -> None:
        self.shard.stop()
        self._shard_thread.join()
        if last is not None:
            last()
        self.shard.close(keep=keep)

    def close(self) -> None:
        self.client.close()
        self._stop_shard(keep=False)
        self.stop_coordinator(keep=False)


@contextmanager
def in_process(
    folder: Path, *, budget_bytes: int = 16 << 20, spill: SpillConfig | None = None
) -> Iterator[InProcess]:
    running = InProcess(folder, budget_bytes=budget_bytes, spill=spill)
    try:
        yield running
    finally:
        running.close()
