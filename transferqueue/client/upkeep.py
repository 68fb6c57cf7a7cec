"""The part of both faces that looks after samples, partitions and shards that go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.client.data_operations import DEFAULT_PARTITION
from transferqueue.net.sync_channel import run_blocking

if TYPE_CHECKING:
    import os

    from transferqueue.client.operations import Operations
    from transferqueue.client.upkeep_operations import CheckpointInfo
    from transferqueue.handle import BatchHandle


class Upkeep:
    """Of `Client`."""

    _ops: Operations

    def dead_letters(
        self,
        task: str,
        partition: str = DEFAULT_PARTITION,
        *,
        timeout_s: float | None = None,
    ) -> BatchHandle:
        """Samples that a task was given ``max_deliveries`` times without an ack, oldest first.

        They are given to it no more, and stay until they are cleared, discarded or tried again
        (`redrive`). Other tasks are not affected.
        """
        return run_blocking(self._ops.upkeep.dead_letters(task, partition, timeout_s=timeout_s))

    def redrive(
        self,
        task: str,
        *,
        handle: BatchHandle | None = None,
        partition: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Let a task have its dead letters again: those of ``handle``, or all of ``partition``.

        Their deliveries count from nought. Returns how many; ``InvalidInput``, and no change, for
        a sample that is no dead letter of the task.
        """
        return run_blocking(
            self._ops.upkeep.redrive(task, handle=handle, partition=partition, timeout_s=timeout_s)
        )

    def discard(self, handle: BatchHandle, *, timeout_s: float | None = None) -> int:
        """Samples that were filtered out: no claim gets them from now on, and they are freed once
        no claim holds them. Returns how many there were; those that are gone are passed over.

        Unlike `clear` it takes nothing from under a claim of another task. Handles keep nothing
        alive: a get of them works until the last claim ends, and raises ``RowsGone`` after it.
        """
        return run_blocking(self._ops.upkeep.discard(handle, timeout_s=timeout_s))

    def drop_partition(self, partition: str, *, timeout_s: float | None = None) -> None:
        """Forget a partition and its settings, and free all its samples. Whoever waits on it is
        refused with ``UnknownPartition``; its next put or claim makes it anew."""
        run_blocking(self._ops.upkeep.drop_partition(partition, timeout_s=timeout_s))

    def lose_shard(self, slot: int, *, timeout_s: float | None = None) -> None:
        """Say that a shard is gone for good, with its host or its memory: its samples leave every
        partition, and whoever waits for one of them is refused with ``RowsLost``."""
        run_blocking(self._ops.upkeep.lose_shard(slot, timeout_s=timeout_s))

    def checkpoint(
        self, path: str | os.PathLike[str], *, timeout_s: float | None = None
    ) -> CheckpointInfo:
        """Write the whole service to a folder that every host of it sees, for
        ``tq.serve(restore=path)``, while everything goes on. What was answered before is in, claims
        that are out as unclaimed. ``timeout_s``: 600 by default. Raises ``CheckpointFailed``,
        ``CheckpointUnreachable`` or ``CheckpointBusy``; the last finished one is intact then."""
        return run_blocking(self._ops.upkeep.checkpoint(path, timeout_s=timeout_s))


class AsyncUpkeep:
    """As `Upkeep`, awaited."""

    _ops: Operations

    async def dead_letters(
        self,
        task: str,
        partition: str = DEFAULT_PARTITION,
        *,
        timeout_s: float | None = None,
    ) -> BatchHandle:
        """See `Client.dead_letters`."""
        return await self._ops.upkeep.dead_letters(task, partition, timeout_s=timeout_s)

    async def redrive(
        self,
        task: str,
        *,
        handle: BatchHandle | None = None,
        partition: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """See `Client.redrive`."""
        return await self._ops.upkeep.redrive(
            task, handle=handle, partition=partition, timeout_s=timeout_s
        )

    async def discard(self, handle: BatchHandle, *, timeout_s: float | None = None) -> int:
        """See `Client.discard`."""
        return await self._ops.upkeep.discard(handle, timeout_s=timeout_s)

    async def drop_partition(self, partition: str, *, timeout_s: float | None = None) -> None:
        """See `Client.drop_partition`."""
        await self._ops.upkeep.drop_partition(partition, timeout_s=timeout_s)

    async def lose_shard(self, slot: int, *, timeout_s: float | None = None) -> None:
        """See `Client.lose_shard`."""
        await self._ops.upkeep.lose_shard(slot, timeout_s=timeout_s)

    async def checkpoint(
        self, path: str | os.PathLike[str], *, timeout_s: float | None = None
    ) -> CheckpointInfo:
        """As `Client.checkpoint`."""
        return await self._ops.upkeep.checkpoint(path, timeout_s=timeout_s)
