"""What a client can do, written once. `Client` and `AsyncClient` are faces of this.

Every method is a coroutine that waits only in its channel. Over a blocking channel it never
suspends, so the sync face runs it in place; over an event loop it is awaited.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.assembly import ColumnBytes
from transferqueue.client.claims import Granted
from transferqueue.client.inputs import columns_of, names_of, state_columns
from transferqueue.client.placement import split_by_slot
from transferqueue.client.reading import Get, decode_columns
from transferqueue.client.session import Caller, Session
from transferqueue.client.traffic import Traffic
from transferqueue.client.weights import VERSION_FIELD, Weights, partition_of, rows_beyond, state_of
from transferqueue.client.writing import Put, encode_batch
from transferqueue.coordinator.predicate import Predicate, tag
from transferqueue.errors import InvalidInput, RowsGone, UnknownField, near_names
from transferqueue.fields import VARIES, FieldSpec
from transferqueue.handle import BatchHandle
from transferqueue.net.calls import Call, Channel
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.tags import read_tags, write_tags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.local_memory import LocalMemory
    from transferqueue.config import ClientConfig
    from transferqueue.coordinator.policy import PartitionPolicy
    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.wire.columns import ObjectPolicy
    from transferqueue.wire.format import Message

DEFAULT_PARTITION = "default"


class Operations:
    """The operations of one connected client."""

    def __init__(
        self,
        channel: Channel,
        session: Session,
        memory: LocalMemory,
        config: ClientConfig,
        objects: ObjectPolicy,
    ) -> None:
        self._memory = memory
        self._caller = Caller(channel, session, memory)
        self._session = session
        self._config = config
        self._objects = objects
        self.traffic = Traffic()

    @property
    def service_id(self) -> str:
        return self._session.service_id

    def close(self) -> None:
        """Map nothing new; tensors that were got stay valid."""
        self._memory.close()

    def _timeout(self, timeout_s: float | None) -> float:
        return self._config.timeout_s if timeout_s is None else timeout_s

    # -- data -----------------------------------------------------------------------------------

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
        values, proto_meta = columns_of(columns)
        partition = self._partition_of(handle, partition)
        batch = encode_batch(
            values,
            partition=partition,
            uids=None if handle is None else handle.uids,
            tags=tags or {},
            overwrite=overwrite,
            objects=self._objects,
        )
        # Made before anything is sent, so that a meta_info it cannot hold is refused first.
        target = self._target(handle, partition, {**proto_meta, **(meta_info or {})}, batch.specs)
        put = Put(
            self._caller,
            batch,
            timeout_s=self._timeout(timeout_s),
            split_bytes=self._session.split_bytes(self._config.split_bytes),
            map_from_bytes=self._config.map_from_bytes,
        )
        uids = await put.run()
        for name, column in batch.columns.items():
            self.traffic.count_put(name, batch.num_rows, len(column.payload))
        return target if handle is not None else _with_uids(target, uids)

    def _target(
        self,
        handle: BatchHandle | None,
        partition: str,
        meta: Mapping[str, Any],
        specs: Mapping[str, FieldSpec],
    ) -> BatchHandle:
        """The handle that a put answers with; of new rows it lacks only their uids."""
        if handle is None:
            return BatchHandle(
                service_id=self.service_id,
                partition=partition,
                uids=(),
                fields=specs,
                meta_info=meta,
            )
        return (handle.with_meta(**meta) if meta else handle).with_fields(specs)

    def _partition_of(self, handle: BatchHandle | None, partition: str | None) -> str:
        if handle is None:
            return DEFAULT_PARTITION if partition is None else partition
        self._session.check(handle)
        if partition is not None and partition != handle.partition:
            raise InvalidInput(
                f"the handle is of partition {handle.partition!r}, not {partition!r}; "
                f"leave partition out when a handle is given"
            )
        return handle.partition

    async def get_columns(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        self._session.check(handle)
        optional = names_of("optional", optional)
        wanted = list(handle.fields) if fields is None else names_of("fields", fields)
        wanted = [name for name in wanted if name not in optional]
        stored = {name: _stored_name(handle, name) for name in (*wanted, *optional)}
        get = Get(
            self._caller,
            partition=handle.partition,
            uids=handle.uids,
            fields=[stored[name] for name in wanted],
            optional=[stored[name] for name in optional],
            timeout_s=self._timeout(timeout_s),
        )
        got = await get.run() if len(handle) else _no_rows(handle, wanted)
        for name, column in got.items():
            self.traffic.count_get(name, len(handle), len(column.payload))
        visible = {name: got[stored[name]] for name in stored if stored[name] in got}
        return decode_columns(visible, len(handle), objects=self._objects)

    async def get(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> Any:
        from transferqueue.client.tensordicts import to_tensordict

        columns = await self.get_columns(
            handle, fields=fields, optional=optional, timeout_s=timeout_s
        )
        return to_tensordict(columns, len(handle))

    async def clear(
        self,
        handle: BatchHandle | None = None,
        *,
        partition: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        if (handle is None) == (partition is None):
            raise InvalidInput("clear takes a handle or a partition, one of them")
        if handle is not None:
            self._session.check(handle)
            calls = self._clear_calls(handle)
        else:
            calls = [self._clear_call(slot, str(partition), None) for slot in self._session.slots]
        answers = await self._caller.shards(calls, timeout_s=self._timeout(timeout_s))
        return sum(int(answer.body["num_rows"]) for answer in answers)

    def _clear_calls(self, handle: BatchHandle) -> list[Call]:
        return [
            self._clear_call(part.slot, handle.partition, handle.uids[part.rows])
            for part in split_by_slot(handle.uids)
        ]

    def _clear_call(self, slot: int, partition: str, uids: np.ndarray | None) -> Call:
        arrays = ArrayWriter()
        body = {"partition": partition, "uids": arrays.add_optional(uids)}
        return Call(
            endpoint=self._session.shard(slot).endpoint,
            op=ops.CLEAR,
            body=body,
            frames=arrays.frames,
        )

    # -- control --------------------------------------------------------------------------------

    async def create_partition(
        self, partition: str, policy: PartitionPolicy, *, timeout_s: float | None = None
    ) -> None:
        await self._caller.coordinator(
            ops.CREATE_PARTITION,
            {"partition": partition, "policy": policy.to_plain()},
            timeout_s=self._timeout(timeout_s),
        )

    async def claim(
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
    ) -> Granted:
        if (n is None) == (handle is None):
            raise InvalidInput("claim takes n samples or a handle, one of them")
        if handle is not None:
            self._session.check(handle)
            partition = handle.partition
        arrays = ArrayWriter()
        body = {
            "partition": partition,
            "task": task,
            "fields": names_of("fields", fields),
            "n": 0 if n is None else n,
            "uids": None if handle is None else arrays.add(handle.uids),
            "sampler": None if sampler is None else sampler.to_plain(),
            "where": None if where is None else where.to_plain(),
            "timeout_s": self._timeout(timeout_s),
            "lease_s": lease_s,
            "allow_partial": allow_partial,
        }
        answer = await self._caller.coordinator(
            ops.CLAIM,
            body,
            frames=arrays.frames,
            timeout_s=self._timeout(timeout_s),
            parks=True,
        )
        return self._granted(answer)

    def _granted(self, answer: Message) -> Granted:
        body, arrays = answer.body, ArrayReader(answer.frames)
        return Granted(
            claim_id=int(body["claim_id"]),
            handle=BatchHandle(
                service_id=self.service_id,
                partition=str(body["partition"]),
                uids=arrays.int64s(body["uids"]),
                fields=_specs(body["fields"]),
            ),
            tags=read_tags(body["tags"], arrays),
            deliveries=arrays.get(body["deliveries"]),
            lease_s=float(body["lease_s"]),
        )

    async def ack(self, claim_id: int, *, timeout_s: float | None = None) -> None:
        await self._claim_call(ops.ACK, claim_id, timeout_s)

    async def give_back(self, claim_id: int, *, timeout_s: float | None = None) -> None:
        await self._claim_call(ops.GIVE_BACK, claim_id, timeout_s)

    async def extend(
        self, claim_id: int, lease_s: float, *, timeout_s: float | None = None
    ) -> float:
        answer = await self._claim_call(ops.EXTEND, claim_id, timeout_s, lease_s=lease_s)
        return float(answer.body["lease_s"])

    async def _claim_call(
        self, op: str, claim_id: int, timeout_s: float | None, **more: float
    ) -> Message:
        return await self._caller.coordinator(
            op, {"claim_id": claim_id, **more}, timeout_s=self._timeout(timeout_s)
        )

    async def wait(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> BatchHandle:
        self._session.check(handle)
        wanted = list(handle.fields) if fields is None else names_of("fields", fields)
        arrays = ArrayWriter()
        body = {
            "partition": handle.partition,
            "uids": arrays.add(np.unique(handle.uids)),
            "fields": [_stored_name(handle, name) for name in wanted],
            "timeout_s": self._timeout(timeout_s),
        }
        answer = await self._caller.coordinator(
            ops.WAIT,
            body,
            frames=arrays.frames,
            timeout_s=self._timeout(timeout_s),
            parks=True,
        )
        new = {name: spec for name, spec in _specs(answer.body["fields"]).items() if name in wanted}
        return handle.with_fields(
            {name: spec for name, spec in new.items() if name not in handle.fields}
        )

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
        body = {
            "partition": partition,
            "where": None if where is None else where.to_plain(),
            "fields": names_of("fields", fields),
            "order_by": order_by,
            "descending": descending,
            "n": n,
            "min_rows": min_rows,
            "timeout_s": self._timeout(timeout_s) if min_rows else 0.0,
        }
        answer = await self._caller.coordinator(
            ops.SELECT, body, timeout_s=self._timeout(timeout_s), parks=True
        )
        arrays = ArrayReader(answer.frames)
        return BatchHandle(
            service_id=self.service_id,
            partition=partition,
            uids=arrays.int64s(answer.body["uids"]),
            fields=_specs(answer.body["fields"]),
        )

    async def update_tags(
        self, handle: BatchHandle, tags: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> None:
        self._session.check(handle)
        arrays = ArrayWriter()
        body = {
            "partition": handle.partition,
            "uids": arrays.add(handle.uids),
            "tags": write_tags(tags, arrays),
        }
        await self._caller.coordinator(
            ops.UPDATE_TAGS, body, frames=arrays.frames, timeout_s=self._timeout(timeout_s)
        )

    async def advance_policy(
        self, version: int, *, partition: str | None = None, timeout_s: float | None = None
    ) -> None:
        await self._caller.coordinator(
            ops.ADVANCE_POLICY,
            {"version": version, "partition": partition},
            timeout_s=self._timeout(timeout_s),
        )

    # -- weights --------------------------------------------------------------------------------

    async def publish(
        self,
        name: str,
        state_dict: Mapping[str, Any],
        *,
        version: int,
        keep: int = 2,
        timeout_s: float | None = None,
    ) -> None:
        partition = partition_of(name)
        handle = await self.put(
            state_columns(state_dict, version),
            partition=partition,
            tags={"version": version},
            timeout_s=timeout_s,
        )
        await self.wait(handle, fields=[VERSION_FIELD], timeout_s=timeout_s)
        newest_first = await self.select(partition, order_by="version", timeout_s=timeout_s)
        outdated = rows_beyond(newest_first, keep)
        if len(outdated):
            await self.clear(outdated, timeout_s=timeout_s)

    async def fetch(
        self,
        name: str,
        *,
        version: int | str = "latest",
        newer_than: int | None = None,
        timeout_s: float | None = None,
    ) -> Weights:
        if version != "latest" and newer_than is not None:
            raise InvalidInput("fetch takes a version or newer_than, not both")
        where: Predicate | None = None
        if version != "latest":
            where = tag("version") == int(version)
        elif newer_than is not None:
            where = tag("version") > newer_than
        while True:
            handle = await self.select(
                partition_of(name),
                where=where,
                order_by="version",
                n=1,
                min_rows=1,
                timeout_s=timeout_s,
            )
            try:
                # timeout_s is how long to wait for a version; moving it has the usual deadline.
                return state_of(await self.get_columns(handle))
            except RowsGone:
                continue  # replaced by a newer one between the two steps

    # -- reports --------------------------------------------------------------------------------

    async def status(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        coordinator = await self._caller.coordinator(
            ops.STATUS, {}, timeout_s=self._timeout(timeout_s)
        )
        calls = [
            Call(endpoint=self._session.shard(slot).endpoint, op=ops.STATUS)
            for slot in sorted(self._session.slots)
        ]
        shards = await self._caller.shards(calls, timeout_s=self._timeout(timeout_s))
        return {**coordinator.body, "shards": [shard.body for shard in shards]}

    async def held(
        self, *, partition: str | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        answer = await self._caller.coordinator(
            ops.HELD, {"partition": partition}, timeout_s=self._timeout(timeout_s)
        )
        held: dict[str, Any] = answer.body["held"]
        return held


def _stored_name(handle: BatchHandle, name: str) -> str:
    """The stored name of a field that the handle lists, or the name itself: another worker may
    have written the field since the handle was made."""
    return handle.stored_name(name) if name in handle.fields else name


def _no_rows(handle: BatchHandle, fields: Sequence[str]) -> dict[str, ColumnBytes]:
    """Columns of no rows, from the specs alone."""
    columns = {}
    for name in fields:
        if name not in handle.fields:
            raise UnknownField(name, near_names(name, handle.fields), "an empty handle")
        spec = _without_varying(handle.fields[name])
        columns[_stored_name(handle, name)] = ColumnBytes(
            spec=spec,
            lengths=np.empty(0, dtype=np.int64) if spec.has_lengths else None,
            payload=np.empty(0, dtype=np.uint8),
        )
    return columns


def _specs(plain: Mapping[str, Any]) -> dict[str, FieldSpec]:
    return {str(name): FieldSpec.from_wire(spec) for name, spec in plain.items()}


def _without_varying(spec: FieldSpec) -> FieldSpec:
    """The spec with a size of 0 where puts of different shapes were merged."""
    shape = tuple(
        0 if size == VARIES and dim != spec.ragged_dim else size
        for dim, size in enumerate(spec.shape)
    )
    return replace(spec, shape=shape)


def _with_uids(handle: BatchHandle, uids: np.ndarray) -> BatchHandle:
    return BatchHandle(
        service_id=handle.service_id,
        partition=handle.partition,
        uids=uids,
        fields=handle.fields,
        meta_info=handle.meta_info,
    )
