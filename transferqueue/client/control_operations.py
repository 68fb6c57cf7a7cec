"""Claims, waits, look-ups, tags and reports: the operations of the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.client.data_operations import DEFAULT_PARTITION, stored_name
from transferqueue.client.granted import Granted
from transferqueue.client.inputs import (
    names_of,
    plain_predicate,
    plain_sampler,
    seconds_of,
)
from transferqueue.client.silent_shards import SILENCE_S
from transferqueue.coordinator.policy import PartitionPolicy
from transferqueue.errors import InvalidInput, RowsLost, ServiceUnreachable
from transferqueue.fields import FieldSpec
from transferqueue.handle import BatchHandle
from transferqueue.net.calls import Call, Outcome, raise_first
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.tags import read_tags, write_tags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.client.caller import Caller
    from transferqueue.config import ClientConfig
    from transferqueue.coordinator.predicate import Predicate
    from transferqueue.coordinator.samplers import Sampler
    from transferqueue.wire.format import Message


class ControlOperations:
    """What one connected client asks of the coordinator."""

    def __init__(self, caller: Caller, config: ClientConfig) -> None:
        self._caller = caller
        self._session = caller.session
        self._config = config

    def _timeout(self, timeout_s: float | None) -> float:
        return seconds_of(timeout_s, self._config.timeout_s)

    async def create_partition(
        self, partition: str, policy: PartitionPolicy, *, timeout_s: float | None = None
    ) -> None:
        await self._caller.coordinator(
            ops.CREATE_PARTITION,
            {"partition": partition, "policy": policy.to_plain()},
            timeout_s=self._timeout(timeout_s),
        )

    async def policy(self, partition: str, *, timeout_s: float | None = None) -> PartitionPolicy:
        answer = await self._caller.coordinator(
            ops.POLICY, {"partition": partition}, timeout_s=self._timeout(timeout_s)
        )
        return PartitionPolicy.from_plain(answer.body["policy"])

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
            "client": self._session.client_id,
            "fields": names_of("fields", fields),
            "n": 0 if n is None else n,
            "uids": None if handle is None else arrays.add(handle.uids),
            "sampler": plain_sampler(sampler),
            "where": plain_predicate(where),
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
                service_id=self._session.service_id,
                partition=str(body["partition"]),
                uids=arrays.int64s(body["uids"]),
                fields=_specs(body["fields"]),
            ),
            tags=read_tags(body["tags"], arrays),
            deliveries=arrays.get(body["deliveries"]),
            lease_s=float(body["lease_s"]),
        )

    async def ack(
        self,
        claim_id: int,
        *,
        drop: BatchHandle | None = None,
        timeout_s: float | None = None,
    ) -> None:
        arrays = ArrayWriter()
        body = {
            "claim_id": claim_id,
            "drop": None if drop is None or not len(drop) else arrays.add(np.unique(drop.uids)),
        }
        await self._caller.coordinator(
            ops.ACK, body, frames=arrays.frames, timeout_s=self._timeout(timeout_s)
        )

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
        if not len(handle) or not wanted:
            return handle
        arrays = ArrayWriter()
        body = {
            "partition": handle.partition,
            "client": self._session.client_id,
            "uids": arrays.add(np.unique(handle.uids)),
            "fields": [stored_name(handle, name) for name in wanted],
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
            "client": self._session.client_id,
            "where": plain_predicate(where),
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
            service_id=self._session.service_id,
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

    async def status(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        coordinator = await self._caller.coordinator(
            ops.STATUS, {}, timeout_s=self._timeout(timeout_s)
        )
        if set(coordinator.body["shards"]) != set(self._session.slots):  # some joined, or left
            await self._caller.look_again(timeout_s=self._timeout(timeout_s))
        slots = sorted(self._session.slots)
        calls = [self._status_call(slot) for slot in slots]
        shards = await self._caller.outcomes(calls, timeout_s=self._timeout(timeout_s))
        said = {s: o for s, o in zip(slots, shards, strict=True) if not isinstance(o, RowsLost)}
        away = [slot for slot in said if self._is_missed(slot, said[slot])]
        answers = raise_first([said[slot] for slot in said if slot not in away])
        bodies = [answer.body for answer in answers]
        return {**coordinator.body, "shards": bodies, "shards_away": away}

    def _status_call(self, slot: int) -> Call:
        """Where others have the same rows, one that says nothing is not waited for."""
        silence_s = None if self._session.guard_of(slot) is None else SILENCE_S
        endpoint = self._session.shard(slot).endpoint
        return Call(endpoint=endpoint, op=ops.STATUS, silence_s=silence_s)

    def _is_missed(self, slot: int, outcome: Outcome) -> bool:
        has_copy = self._session.guard_of(slot) is not None
        return has_copy and isinstance(outcome, ServiceUnreachable)


def _specs(plain: Mapping[str, Any]) -> dict[str, FieldSpec]:
    return {str(name): FieldSpec.from_wire(spec) for name, spec in plain.items()}
