"""The sync face: blocks the calling thread, and may be used from several threads at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from transferqueue.client.borrows import Borrow
from transferqueue.client.claims import Claim
from transferqueue.client.data_operations import DEFAULT_PARTITION
from transferqueue.client.looking import Looking
from transferqueue.client.policies import policy_of, schema_of
from transferqueue.client.upkeep import Upkeep
from transferqueue.closing import Closing
from transferqueue.net.sync_channel import run_blocking

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence

    from tensordict import TensorDict

    from transferqueue.client.operations import Operations
    from transferqueue.client.weights import Weights
    from transferqueue.coordinator.predicate import Predicate
    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.handle import BatchHandle
    from transferqueue.net.sync_channel import SyncChannelPool
    from transferqueue.view.lazy_dataproto import LazyDataProto
    from transferqueue.view.schema import Schema

T = TypeVar("T")


class Client(Closing, Looking, Upkeep):
    """A connection to one service.

    Made by `transferqueue.connect`; a context manager. Every call has a deadline, ``timeout_s``,
    which defaults to the one given to ``connect``. What every call may raise besides its own
    errors: ``ServiceUnreachable`` when a peer does not answer in time, ``WrongService`` for a
    handle of another service, ``Closed``.
    """

    def __init__(self, operations: Operations, channels: SyncChannelPool) -> None:
        self._ops = operations
        self._channels = channels

    def _run(self, operation: Coroutine[Any, Any, T]) -> T:
        return run_blocking(operation)

    @property
    def service_id(self) -> str:
        """The id of the service, which its handles carry."""
        return self._ops.service_id

    def put(
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
        """Store columns: new samples of ``partition``, or more fields of the samples of ``handle``.

        ``columns``: a mapping of field name to values, one a row, or a TensorDict or DataProto. A
        value is a tensor ``[rows, …]``, a jagged nested tensor, a numpy array ``[rows, …]``, or a
        list (an object column). Tensors of a GPU go from there by the best way; inside objects
        they come to the host first, by page-locked memory (`stats` counts them), and are tensors of
        the host when they are got: a field of its own stays on the GPU. ``tags``: name to a bool,
        int, float or str, or one a row.

        Returns the handle of the samples; with ``handle``, that one with the new fields. All of
        the put is stored or none of it: a bad column, a field that is there already
        (``FieldExists``; ``overwrite=True`` writes a new version), a cleared row (``RowsGone``) or
        no space within the deadline (``StorageFull``) leave nothing behind. While a new version is
        written, a get sees every row whole, old or new, and all rows of one shard alike; of rows
        that lie on several shards, some may be new before the others.
        """
        return self._run(
            self._ops.data.put(
                columns,
                handle=handle,
                partition=partition,
                tags=tags,
                meta_info=meta_info,
                overwrite=overwrite,
                timeout_s=timeout_s,
            )
        )

    def get(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        device: object = None,
        timeout_s: float | None = None,
    ) -> TensorDict:
        """The named fields (all of the handle's by default) as a TensorDict ``[rows]``.

        Rows come in the handle's order and as often as it names them. Object and numpy columns
        are ``NonTensorStack`` entries; `get_columns` gives them as arrays. ``FieldsMissing`` says
        how many rows lack a field; one listed as ``optional`` may be absent: then it is left out,
        or, where only some rows have it, the others are zero, empty or ``None`` and
        ``"<field>.present"`` is a bool mask of the rows that have it. ``RowsGone`` counts the rows
        that were cleared. ``device``: where tensors land, by the best way (`Client.links`): a
        name, ``"cpu"``; default that of ``connect``.
        """
        return self._run(
            self._ops.data.get(
                handle, fields=fields, optional=optional, device=device, timeout_s=timeout_s
            )
        )

    def get_columns(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        device: object = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """As `get`, as a dict of exactly what was put: tensors, jagged tensors, numpy arrays, and
        object columns as one-dimensional object arrays."""
        return self._run(
            self._ops.data.get_columns(
                handle, fields=fields, optional=optional, device=device, timeout_s=timeout_s
            )
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
    ) -> Borrow:
        """As `get`, for the length of a block: ``with client.borrow(handle, fields=[…]) as td:``.

        Where the shard's memory is on the very device that tensors are to land on, and the rows of
        a column lie together there (in all 64 KiB or more), its tensor *is* that memory: nothing is
        copied, and it must not be written to. Other columns are copied as by `get`. The memory is
        lent for ``lease_s`` seconds; it is never given out again before the block ends, and a shard
        logs and counts (``loans_overdue``) who keeps it for longer. The TensorDict is empty after
        the block; a tensor that is kept nevertheless is warned of, and keeps its memory lent.

        Leaving the block raises ``OwnerLost`` when the shard has ended meanwhile, and
        ``StaleGeneration`` when its memory was given on: what was read may be anything then.
        """
        opening = partial(
            self._ops.data.borrow,
            handle,
            fields=fields,
            optional=optional,
            device=device,
            lease_s=lease_s,
            timeout_s=timeout_s,
        )
        return Borrow(opening)

    def view(self, handle: BatchHandle, *, reads: Sequence[str] = ()) -> LazyDataProto:
        """A ``DataProto`` over ``handle`` whose columns come when they are read; none comes now.

        ``reads``: columns that come together, in one request, when one of them is touched;
        ``tq.on("cuda", "values")`` is one that lands on a device.
        """
        from transferqueue.view.lazy_connection import Connection
        from transferqueue.view.lazy_dataproto import LazyDataProto

        self._ops.check(handle)
        return LazyDataProto.over(handle, Connection.of_client(self, self._ops), reads)

    def clear(
        self,
        handle: BatchHandle | None = None,
        *,
        partition: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Remove samples with all their fields; returns how many were there.

        At once for readers: a later get raises ``RowsGone``. Samples that are not there any more
        are passed over.
        """
        return self._run(self._ops.data.clear(handle, partition=partition, timeout_s=timeout_s))

    def create_partition(
        self, partition: str, *, timeout_s: float | None = None, **policy: Any
    ) -> None:
        """Declare how a partition treats its samples.

        ``policy``: the settings of `PartitionPolicy`, e.g. ``tasks=["actor"]``,
        ``retention="consumed"``, ``max_rows=``, ``max_bytes=``, ``max_staleness=``, ``schema=`` (a
        `tq.schema.Schema`, see `Client.schema`), ``backend=`` (a name, or ``{"pixels": "disk"}``:
        of the shards' backends; UnknownBackend for others), ``replicas=1`` (one copy of each row
        where the service keeps two). The same declaration again changes nothing; another one is
        ``InvalidInput``. A partition that is never declared is made by its first put or claim,
        keeps samples until they are cleared, and takes any task.
        """
        self._run(
            self._ops.control.create_partition(partition, policy_of(policy), timeout_s=timeout_s)
        )

    def schema(self, partition: str, *, timeout_s: float | None = None) -> Schema | None:
        """The ``schema=`` that the partition was declared with, for putting and reading alike.

        ``client.put(schema.shrink(batch), partition=...)`` stores the columns as it says, exactly
        or not at all; ``schema.grow(client.view(handle))`` shows them as they were.
        """
        return schema_of(self._run(self._ops.control.policy(partition, timeout_s=timeout_s)))

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
    ) -> Claim:
        """Take ``n`` samples (or exactly those of ``handle``) that have all ``fields``, for a task.

        Waits until there are as many, and raises ``NotReady`` at the deadline (``allow_partial``:
        takes what there is by then). No other claim of the same task gets them unless they are
        given back or ``lease_s`` seconds pass without an ack; other tasks are not affected. Use it
        in a ``with`` block: leaving it acks, an exception gives the samples back.
        """
        return Claim(
            self._run(
                self._ops.control.claim(
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
            ),
            self._ops.control,
            self.get,
        )

    def stream(
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
    ) -> Iterator[Claim]:
        """Claims one after another, without end: ``for claim in client.stream(…)``.

        A claim is acked when the loop asks for the next one, and given back when the loop body
        raises or is left. ``NotReady`` when ``timeout_s`` passes without enough samples. Nothing
        is taken ahead: `AsyncClient.stream` does that, or the workers of a torch DataLoader
        (`transferqueue.integrations.torch_data`).
        """
        while True:
            with self.claim(
                task=task,
                fields=fields,
                n=n,
                partition=partition,
                sampler=sampler,
                where=where,
                timeout_s=timeout_s,
                lease_s=lease_s,
            ) as claim:
                yield claim

    def wait(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> BatchHandle:
        """Wait until every sample of ``handle`` has ``fields``; returns the handle with them.

        ``NotReady`` at the deadline counts the samples that lack each field.
        """
        return self._run(self._ops.control.wait(handle, fields=fields, timeout_s=timeout_s))

    def select(
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
        """Look samples up by their tags without taking them: the first ``n`` that have ``fields``
        and match ``where``, ordered by a tag (else by arrival). ``min_rows``: wait for as many."""
        return self._run(
            self._ops.control.select(
                partition,
                where=where,
                fields=fields,
                order_by=order_by,
                descending=descending,
                n=n,
                min_rows=min_rows,
                timeout_s=timeout_s,
            )
        )

    def update_tags(
        self, handle: BatchHandle, tags: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> None:
        """Set tags of samples: name to one value for all, or one a row."""
        self._run(self._ops.control.update_tags(handle, tags, timeout_s=timeout_s))

    def advance_policy(
        self, version: int, *, partition: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Say that policy ``version`` exists: partitions with ``max_staleness`` measure from it."""
        self._run(
            self._ops.control.advance_policy(version, partition=partition, timeout_s=timeout_s)
        )

    def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        version: int,
        keep: int = 2,
        timeout_s: float | None = None,
    ) -> None:
        """Store a version of a model's weights; the ``keep`` newest versions stay."""
        self._run(
            self._ops.weights.publish(
                name, state_dict, version=version, keep=keep, timeout_s=timeout_s
            )
        )

    def fetch(
        self,
        name: str,
        *,
        version: int | str = "latest",
        newer_than: int | None = None,
        device: object = None,
        timeout_s: float | None = None,
    ) -> Weights:
        """Weights that were published: the newest, one version, or the newest above
        ``newer_than``. Waits for it at most ``timeout_s`` (0: not at all), then ``NotReady``.
        ``device``: where tensors land, as of `get`: of weights that lie on a GPU they never leave
        it."""
        return self._run(
            self._ops.weights.fetch(
                name,
                version=version,
                newer_than=newer_than,
                device=device,
                timeout_s=timeout_s,
            )
        )

    def stats(self) -> dict[str, dict[str, int]]:
        """Bytes and rows that this client put and got, by field; ``brought_bytes``: of tensors of a
        GPU inside objects, which came to the host on their way."""
        return self._ops.data.traffic.report()

    def wire_bytes(self) -> dict[str, int]:
        """Bytes of every message that this client sent and received, headers included. What it
        reads and writes in mapped memory goes through no socket and is not in it."""
        count = self._channels.wire_bytes
        return {"sent": count.sent, "received": count.received}

    def close(self) -> None:
        """Close the sockets. Idempotent; tensors that were got stay valid."""
        self._ops.close()
        self._channels.close()

    def __repr__(self) -> str:
        return f"<Client of service {self.service_id}>"
