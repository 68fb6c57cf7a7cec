"""The part of both faces that looks at a service and changes nothing of what it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.client.reports import Status
from transferqueue.net.sync_channel import run_blocking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.operations import Operations


class Looking:
    """What `Client` tells an operator."""

    _ops: Operations

    def status(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """What the coordinator and each shard hold and do, as plain values."""
        return Status(run_blocking(self._ops.control.status(timeout_s=timeout_s)))

    def held(
        self, *, partition: str | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """What is held and by whom, by partition: rows and bytes by field, by task, by age and by
        the line of code that put them (``rows_by_site``). Bytes of fields are counted; those of
        groups of samples are their cells times the mean cell of each field. ``backends``: by field
        and backend the bytes that are there, padding included."""
        return run_blocking(self._ops.inquiries.held(partition=partition, timeout_s=timeout_s))

    def waits(
        self, *, partition: str | None = None, limit: int = 100, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Who waits for what, since when, and what is in the way: claims, waits and selects for
        samples, puts for space.

        ``waits``: the longest first, at most ``limit`` (``left_out``: how many more), each with
        ``kind``, ``partition``, ``task``, ``who`` (host:pid), ``fields``, ``wanted``, ``ready``,
        ``ready_by_field``, ``since_s``, ``left_s`` and ``why``. ``shards``: by slot the processes
        that keep memory from being given out again (``readers``). ``silent``: shards that have not
        said within 2 s who waits there.
        """
        return run_blocking(
            self._ops.inquiries.waits(partition=partition, limit=limit, timeout_s=timeout_s)
        )

    def describe(
        self,
        partition: str | None = None,
        *,
        uids: Sequence[int] | None = None,
        limit: int = 20,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Samples cell by cell: the oldest of a partition, or those of ``uids``.

        ``rows``: per sample its ``uid``, ``shard``, ``state``, ``age_s``, ``site``, ``tags``, its
        ``fields`` (``ready`` to the coordinator, ``stored`` on the shard, ``bytes``, ``dtype``,
        ``shape``) and ``tasks`` (``state``, ``deliveries``, and the claim that holds it).
        ``left_out``: how many there are beyond ``limit``; ``absent``: uids that are not there;
        ``silent``: shards that have not said within 2 s what they store (``stored`` is ``None``).
        """
        return run_blocking(
            self._ops.inquiries.describe(partition, uids=uids, limit=limit, timeout_s=timeout_s)
        )

    def tell_stages(
        self, rows: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None
    ) -> None:
        """Add to what `status` tells of stages: rows as `dispatch.Traffic` has them. Declared
        methods do it by themselves."""
        run_blocking(self._ops.upkeep.tell_stages(rows, timeout_s=timeout_s))

    def picture(
        self, partition: str, *, columns: int = 512, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """A partition drawn small: its samples, oldest first, in at most ``columns`` stretches.

        ``fields``: name to uint8 ``[columns]``, how many in 255 of a stretch have the field (255:
        all, 0: none); ``tasks``: name to state (``claimed``, ``acked``, ``dead_letter``) to the
        same; ``ends`` ``[columns]``: the first sample after each stretch. ``staleness``: samples by
        how many policy versions they are behind ``newest_version``, the last class open.
        """
        return run_blocking(
            self._ops.inquiries.picture(partition, columns=columns, timeout_s=timeout_s)
        )

    def links(self) -> list[dict[str, Any]]:
        """How this process reaches each shard, and why not in a better way; asks nobody."""
        return self._ops.inquiries.links()


class AsyncLooking:
    """What `AsyncClient` tells an operator."""

    _ops: Operations

    async def status(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """See `Client.status`."""
        return Status(await self._ops.control.status(timeout_s=timeout_s))

    async def held(
        self, *, partition: str | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """See `Client.held`."""
        return await self._ops.inquiries.held(partition=partition, timeout_s=timeout_s)

    async def waits(
        self, *, partition: str | None = None, limit: int = 100, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """See `Client.waits`."""
        return await self._ops.inquiries.waits(
            partition=partition, limit=limit, timeout_s=timeout_s
        )

    async def describe(
        self,
        partition: str | None = None,
        *,
        uids: Sequence[int] | None = None,
        limit: int = 20,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """See `Client.describe`."""
        return await self._ops.inquiries.describe(
            partition, uids=uids, limit=limit, timeout_s=timeout_s
        )

    async def tell_stages(
        self, rows: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None
    ) -> None:
        """See `Client.tell_stages`."""
        await self._ops.upkeep.tell_stages(rows, timeout_s=timeout_s)

    async def picture(
        self, partition: str, *, columns: int = 512, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """See `Client.picture`."""
        return await self._ops.inquiries.picture(partition, columns=columns, timeout_s=timeout_s)

    def links(self) -> list[dict[str, Any]]:
        """See `Client.links`."""
        return self._ops.inquiries.links()
