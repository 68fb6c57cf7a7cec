"""Putting, getting and clearing: the operations that move bytes."""

from __future__ import annotations

import traceback
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.batch import encode_batch
from transferqueue.client.borrowed import Borrowed
from transferqueue.client.column_bytes import ColumnBytes
from transferqueue.client.device_puts import bring
from transferqueue.client.device_sides import DeviceSides
from transferqueue.client.inputs import columns_of, mapping_of, names_of, seconds_of
from transferqueue.client.placement import split_by_home
from transferqueue.client.put_site import SITE_TAG, put_site
from transferqueue.client.read_here import read_here
from transferqueue.client.reading import Get, decode_columns
from transferqueue.client.traffic import Traffic
from transferqueue.client.writing import Put
from transferqueue.errors import InvalidInput, RowsLost, UnknownField, near_names
from transferqueue.fields import VARIES, FieldSpec
from transferqueue.handle import BatchHandle
from transferqueue.net.calls import Call, raise_first
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.caller import Caller
    from transferqueue.client.device_puts import InObject
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.reading import Column
    from transferqueue.config import ClientConfig
    from transferqueue.wire.columns import ObjectPolicy

DEFAULT_PARTITION = "default"


class DataOperations:
    """The bytes of one connected client go through here."""

    def __init__(self, caller: Caller, config: ClientConfig, objects: ObjectPolicy) -> None:
        self._caller = caller
        self._session = caller.session
        self._config = config
        self._objects = objects
        self.traffic = Traffic()
        self.devices = DeviceSides(config.device, config.required)

    def _timeout(self, timeout_s: float | None) -> float:
        return seconds_of(timeout_s, self._config.timeout_s)

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
        tags = mapping_of("tags", tags)
        for event in self.devices.before_reading(read_here(values, tags)):
            await self._caller.to_its_end(event.wait)
        batch = encode_batch(
            values,
            partition=partition,
            uids=None if handle is None else handle.uids,
            tags=tags,
            overwrite=overwrite,
            objects=self._objects,
            devices=self.devices,
        )
        # Made before anything is sent, so that a meta_info it cannot hold is refused first.
        meta = {**proto_meta, **mapping_of("meta_info", meta_info)}
        target = self._target(handle, partition, meta, batch.specs)
        if handle is None:
            batch = replace(batch, tags={**batch.tags, SITE_TAG: put_site()})
        await self._bring(batch.in_objects)
        put = Put(
            self._caller,
            batch,
            self.devices,
            timeout_s=self._timeout(timeout_s),
            split_bytes=self._session.split_bytes(self._config.split_bytes),
            map_from_bytes=self._config.map_from_bytes,
        )
        with self._caller.spanning(
            "put",
            partition=partition,
            rows=batch.num_rows,
            fields=len(batch.columns),
            bytes=batch.nbytes,
        ):
            uids = await put.run()
        for name, column in batch.columns.items():
            self.traffic.count_put(name, batch.num_rows, column.num_bytes)
        return target if handle is not None else _with_uids(target, uids)

    async def _bring(self, tensors: Sequence[InObject]) -> None:
        if tensors:
            await self._caller.to_its_end(partial(bring, tensors))
        for tensor in tensors:
            self.traffic.count_brought(tensor.field, tensor.place.nbytes)

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
                service_id=self._session.service_id,
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
        device: object = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        side = self.devices.side(device)
        return await self._columns(handle, fields, optional, side=side, timeout_s=timeout_s)

    async def _columns(
        self,
        handle: BatchHandle,
        fields: Sequence[str] | None,
        optional: Sequence[str],
        *,
        side: DeviceSide | None,
        timeout_s: float | None,
        borrowed: Borrowed | None = None,
    ) -> dict[str, Any]:
        self._session.check(handle)
        optional = names_of("optional", optional)
        wanted = list(handle.fields) if fields is None else names_of("fields", fields)
        wanted = [name for name in wanted if name not in optional]
        known = handle.stored_names  # another worker may have written others since it was made
        stored = {name: known.get(name, name) for name in (*wanted, *optional)}
        get = Get(
            self._caller,
            partition=handle.partition,
            uids=handle.uids,
            fields=[stored[name] for name in wanted],
            optional=[stored[name] for name in optional],
            timeout_s=self._timeout(timeout_s),
            side=side,
            borrowed=borrowed,
        )
        with self._caller.spanning(
            "get", partition=handle.partition, rows=len(handle), fields=len(stored)
        ):
            got: Mapping[str, Column] = await get.run() if len(handle) else _no_rows(handle, wanted)
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
        device: object = None,
        timeout_s: float | None = None,
    ) -> Any:
        from transferqueue.client.tensordicts import to_tensordict

        columns = await self.get_columns(
            handle, fields=fields, optional=optional, device=device, timeout_s=timeout_s
        )
        return to_tensordict(columns, len(handle))

    async def borrow(
        self,
        handle: BatchHandle,
        *,
        fields: Sequence[str] | None = None,
        optional: Sequence[str] = (),
        device: object = None,
        lease_s: float = 60.0,
        timeout_s: float | None = None,
    ) -> Borrowed:
        from transferqueue.client.tensordicts import to_tensordict

        side = self.devices.side(device)
        borrowed = Borrowed(self._caller, side, seconds_of(lease_s, 0.0))
        try:
            borrowed.tensors = to_tensordict(
                await self._columns(
                    handle, fields, optional, side=side, timeout_s=timeout_s, borrowed=borrowed
                ),
                len(handle),
            )
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they have tensors of it
            await borrowed.give_up()
            raise
        return borrowed

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
            slots = [part.slot for part in split_by_home(handle.uids, self._session.homes)]
            await self._caller.know(slots, timeout_s=self._timeout(timeout_s))
            calls = self._clear_calls(handle)
        else:
            await self._caller.look_again(timeout_s=self._timeout(timeout_s))  # also at new shards
            calls = [self._clear_call(slot, str(partition), None) for slot in self._session.slots]
        outcomes = await self._caller.outcomes(calls, timeout_s=self._timeout(timeout_s))
        if partition is not None:  # what a lost shard had of it is gone
            outcomes = [outcome for outcome in outcomes if not isinstance(outcome, RowsLost)]
        return sum(int(answer.body["num_rows"]) for answer in raise_first(outcomes))

    def _clear_calls(self, handle: BatchHandle) -> list[Call]:
        return [
            self._clear_call(part.slot, handle.partition, handle.uids[part.rows])
            for part in split_by_home(handle.uids, self._session.homes)
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


def stored_name(handle: BatchHandle, name: str) -> str:
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
        columns[stored_name(handle, name)] = ColumnBytes(
            spec=spec,
            lengths=np.empty(0, dtype=np.int64) if spec.has_lengths else None,
            payload=np.empty(0, dtype=np.uint8),
        )
    return columns


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
