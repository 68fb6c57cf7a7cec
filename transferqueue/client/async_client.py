"""The async face: the methods of `Client`, awaited."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from transferqueue.client.borrows import AsyncBorrow
from transferqueue.client.claims import AsyncClaim, PendingClaim
from transferqueue.client.claims_ahead import ClaimsAhead
from transferqueue.client.data_operations import DEFAULT_PARTITION
from transferqueue.client.looking import AsyncLooking
from transferqueue.client.policies import policy_of, schema_of
from transferqueue.client.upkeep import AsyncUpkeep
from transferqueue.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from tensordict import TensorDict

    from transferqueue.client.operations import Operations
    from transferqueue.client.weights import Weights
    from transferqueue.coordinator.predicate import Predicate
    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.handle import BatchHandle
    from transferqueue.net.async_channel import AsyncChannel
    from transferqueue.view.lazy_dataproto import LazyDataProto
    from transferqueue.view.schema import Schema


class AsyncClient(AsyncLooking, AsyncUpkeep):
    """A connection to one service, for one event loop. Made by `transferqueue.connect_async`.

    What each method does stands at the method of the same name of `Client`.
    """

    def __init__(self, operations: Operations, channel: AsyncChannel) -> None:
        self._ops = operations
        self._channel = channel

    @property
    def service_id(self) -> str:
        """See `Client.service_id`."""
        return self._ops.service_id

    async def put(
        self,
        columns: Any,
        *,
        handle: BatchHandle | None = None,
        partition: str | None = None,
        tags: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        timeout_s: float | None = None,
    ) -> BatchHandle:
        """See `Client.put`."""
        return await self._ops.data.put(
            columns,
            handle=handle,
            partition=partition,
            tags=tags,
            meta_info=meta_info,
            overwrite=overwrite,
            timeout_s=timeout_s,
        )

    async def get(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        device: object = None,
        timeout_s: float | None = None,
    ) -> TensorDict:
        """See `Client.get`."""
        return await self._ops.data.get(
            handle, fields=fields, optional=optional, device=device, timeout_s=timeout_s
        )

    async def get_columns(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        device: object = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """See `Client.get_columns`."""
        return await self._ops.data.get_columns(
            handle, fields=fields, optional=optional, device=device, timeout_s=timeout_s
        )

    def borrow(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        device: object = None,
        lease_s: float = 60.0,
        timeout_s: float | None = None,
    ) -> AsyncBorrow:
        """See `Client.borrow`. ``async with client.borrow(…) as td``."""
        opening = partial(
            self._ops.data.borrow,
            handle,
            fields=fields,
            optional=optional,
            device=device,
            lease_s=lease_s,
            timeout_s=timeout_s,
        )
        return AsyncBorrow(opening)

    def view(self, handle: BatchHandle, *, reads: Sequence[str] = ()) -> LazyDataProto:
        """See `Client.view`. ``await view.fetch([…])`` brings columns; to read one that was not
        awaited blocks the event loop until it is here."""
        from transferqueue.view.lazy_connection import Connection
        from transferqueue.view.lazy_dataproto import LazyDataProto

        self._ops.check(handle)
        return LazyDataProto.over(handle, Connection.of_async_client(self, self._ops), reads)

    async def clear(
        self,
        handle: BatchHandle | None = None,
        *,
        partition: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """See `Client.clear`."""
        return await self._ops.data.clear(handle, partition=partition, timeout_s=timeout_s)

    async def create_partition(
        self, partition: str, *, timeout_s: float | None = None, **policy: Any
    ) -> None:
        """See `Client.create_partition`."""
        await self._ops.control.create_partition(partition, policy_of(policy), timeout_s=timeout_s)

    async def schema(self, partition: str, *, timeout_s: float | None = None) -> Schema | None:
        """See `Client.schema`."""
        return schema_of(await self._ops.control.policy(partition, timeout_s=timeout_s))

    def claim(
        self,
        *,
        task: str,
        fields: Sequence[str],
        n: int | None = None,
        partition: str = DEFAULT_PARTITION,
        handle: BatchHandle | None = None,
        sampler: Sampler | None = None,
        where: Predicate | None = None,
        timeout_s: float | None = None,
        lease_s: float = 60.0,
        allow_partial: bool = False,
    ) -> PendingClaim:
        """See `Client.claim`. ``async with client.claim(…) as claim``, or ``await`` it."""

        async def claiming() -> AsyncClaim:
            granted = await self._ops.control.claim(
                task=task,
                fields=fields,
                n=n,
                partition=partition,
                handle=handle,
                sampler=sampler,
                where=where,
                timeout_s=timeout_s,
                lease_s=lease_s,
                allow_partial=allow_partial,
            )
            return AsyncClaim(granted, self._ops.control, self.get)

        return PendingClaim(claiming)

    async def stream(
        self,
        *,
        task: str,
        fields: Sequence[str],
        n: int,
        partition: str = DEFAULT_PARTITION,
        sampler: Sampler | None = None,
        where: Predicate | None = None,
        timeout_s: float | None = None,
        lease_s: float = 60.0,
        prefetch: int = 0,
    ) -> AsyncIterator[AsyncClaim]:
        """Claims one after another, without end: ``async for claim in client.stream(…)``.

        A claim is acked when the loop asks for the next one, and given back when the loop body
        raises or is left. ``NotReady`` when ``timeout_s`` passes without enough samples.
        ``prefetch``: how many more claims to take while the loop body works; their leases are
        kept, and what is not used is given back. A loop that is left with ``break`` ends at once
        inside ``async with contextlib.aclosing(client.stream(…)) as claims``, else when the event
        loop collects it.
        """
        if prefetch < 0:
            raise InvalidInput(f"prefetch must be 0 or more, got {prefetch}")

        async def claim_one() -> AsyncClaim:
            return await self.claim(
                task=task,
                fields=fields,
                n=n,
                partition=partition,
                sampler=sampler,
                where=where,
                timeout_s=timeout_s,
                lease_s=lease_s,
            )

        if not prefetch:
            while True:
                async with await claim_one() as claim:
                    yield claim
        async with ClaimsAhead(claim_one, depth=prefetch, lease_s=lease_s) as ahead:
            while True:
                async with await ahead.next() as claim:
                    yield claim

    async def wait(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> BatchHandle:
        """See `Client.wait`."""
        return await self._ops.control.wait(handle, fields=fields, timeout_s=timeout_s)

    async def select(
        self,
        partition: str = DEFAULT_PARTITION,
        *,
        where: Predicate | None = None,
        fields: Sequence[str] = (),
        order_by: str | None = None,
        descending: bool = True,
        n: int | None = None,
        min_rows: int = 0,
        timeout_s: float | None = None,
    ) -> BatchHandle:
        """See `Client.select`."""
        return await self._ops.control.select(
            partition,
            where=where,
            fields=fields,
            order_by=order_by,
            descending=descending,
            n=n,
            min_rows=min_rows,
            timeout_s=timeout_s,
        )

    async def update_tags(
        self, handle: BatchHandle, tags: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> None:
        """See `Client.update_tags`."""
        await self._ops.control.update_tags(handle, tags, timeout_s=timeout_s)

    async def advance_policy(
        self, version: int, *, partition: str | None = None, timeout_s: float | None = None
    ) -> None:
        """See `Client.advance_policy`."""
        await self._ops.control.advance_policy(version, partition=partition, timeout_s=timeout_s)

    async def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        version: int,
        keep: int = 2,
        timeout_s: float | None = None,
    ) -> None:
        """See `Client.publish`."""
        await self._ops.weights.publish(
            name, state_dict, version=version, keep=keep, timeout_s=timeout_s
        )

    async def fetch(
        self,
        name: str,
        *,
        version: int | str = "latest",
        newer_than: int | None = None,
        device: object = None,
        timeout_s: float | None = None,
    ) -> Weights:
        """See `Client.fetch`."""
        return await self._ops.weights.fetch(
            name,
            version=version,
            newer_than=newer_than,
            device=device,
            timeout_s=timeout_s,
        )

    def stats(self) -> dict[str, dict[str, int]]:
        """See `Client.stats`."""
        return self._ops.data.traffic.report()

    def wire_bytes(self) -> dict[str, int]:
        """See `Client.wire_bytes`."""
        count = self._channel.wire_bytes
        return {"sent": count.sent, "received": count.received}

    async def close(self) -> None:
        """See `Client.close`."""
        self._ops.close()
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient of service {self.service_id}>"
