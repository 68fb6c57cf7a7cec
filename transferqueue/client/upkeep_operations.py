"""Looking after rows and shards: dead letters, filtered rows, partitions and shards that go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.checkpoint.folder import files_of_cuts
from transferqueue.errors import InvalidInput
from transferqueue.fields import FieldSpec
from transferqueue.handle import BatchHandle
from transferqueue.net.calls import Call
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader, ArrayWriter
from transferqueue.wire.format import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transferqueue.client.caller import Caller
    from transferqueue.config import ClientConfig


CHECKPOINT_TIMEOUT_S = 600.0
"""Without another one: what is written may be hundreds of gigabytes."""


LOOK_S = 1.0
"""How long shards have to say how much there is to write, where somebody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A checkpoint that is finished."""

    path: str
    num_rows: int
    num_bytes: int
    """Of all cells."""
    seconds: float


class UpkeepOperations:
    """What one connected client asks of the coordinator for others' sake."""

    def __init__(self, caller: Caller, config: ClientConfig) -> None:
        self._caller = caller
        self._session = caller.session
        self._config = config

    async def dead_letters(
        self, task: str, partition: str, *, timeout_s: float | None = None
    ) -> BatchHandle:
        body = {"partition": partition, "task": task}
        answer = await self._ask(ops.DEAD_LETTERS, body, ArrayWriter(), timeout_s)
        return BatchHandle(
            service_id=self._session.service_id,
            partition=partition,
            uids=ArrayReader(answer.frames).int64s(answer.body["uids"]),
            fields={
                str(name): FieldSpec.from_wire(spec) for name, spec in answer.body["fields"].items()
            },
        )

    async def redrive(
        self,
        task: str,
        *,
        handle: BatchHandle | None = None,
        partition: str | None = None,
        timeout_s: float | None = None,
    ) -> int:
        if (handle is None) == (partition is None):
            raise InvalidInput("redrive takes a handle or a partition, one of them")
        arrays = ArrayWriter()
        uids = None if handle is None else self._uids(handle, arrays)
        if handle is not None and not len(handle):
            return 0
        name = partition if handle is None else handle.partition
        body = {"partition": name, "task": task, "uids": uids}
        return int((await self._ask(ops.REDRIVE, body, arrays, timeout_s)).body["num_rows"])

    async def discard(self, handle: BatchHandle, *, timeout_s: float | None = None) -> int:
        if not len(handle):
            return 0
        arrays = ArrayWriter()
        body = {"partition": handle.partition, "uids": self._uids(handle, arrays)}
        return int((await self._ask(ops.DISCARD, body, arrays, timeout_s)).body["num_rows"])

    async def drop_partition(self, partition: str, *, timeout_s: float | None = None) -> None:
        body = {"partition": partition}
        await self._ask(ops.DROP_PARTITION, body, ArrayWriter(), timeout_s)

    async def lose_shard(
        self, slot: int, *, owner: str | None = None, timeout_s: float | None = None
    ) -> bool:
        """Whether rows are lost: not if there are second copies. ``owner``: the lineage of the
        shard's processes, so that nothing happens when others serve the slot by now."""
        body = {"slot": slot, "owner": owner}
        answer = await self._ask(ops.LOSE_SHARD, body, ArrayWriter(), timeout_s)
        return bool(answer.body["is_lost"])

    async def join(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """What a shard that is about to be started begins with: ``slot``, ``uids``, the first that
        it may give and the one after the last, and ``replicas``, the copies of every row."""
        body = (await self._ask(ops.JOIN, {}, ArrayWriter(), timeout_s)).body
        start, stop = body["uids"]
        return {
            "slot": int(body["slot"]),
            "uids": [int(start), int(stop)],
            "replicas": int(body["replicas"]),
        }

    async def checkpoint(
        self, path: str | os.PathLike[str], *, timeout_s: float | None = None
    ) -> CheckpointInfo:
        path = _absolute(path)
        with self._caller.showing("checkpoint", *await self._watched(path)):
            answer = await self._caller.coordinator(
                ops.CHECKPOINT,
                {"path": path},
                timeout_s=CHECKPOINT_TIMEOUT_S if timeout_s is None else timeout_s,
                parks=True,
            )
        return CheckpointInfo(**answer.body)

    async def _watched(self, path: str) -> tuple[int, Callable[[], int]]:
        """How many bytes there are to write, and what says how many have been."""
        if not self._caller.shows_progress:
            return 0, int
        session = self._session
        calls = [Call(endpoint=session.shard(s).endpoint, op=ops.STATUS) for s in session.slots]
        answers = await self._caller.outcomes(calls, timeout_s=LOOK_S)
        told = [answer.body for answer in answers if isinstance(answer, Message)]
        earlier = files_of_cuts(path).keys()

        def written() -> int:
            return sum(size for file, size in files_of_cuts(path).items() if file not in earlier)

        return sum(int(shard["used_bytes"]) for shard in told), written

    async def leave(self, client_id: str, *, timeout_s: float | None = None) -> None:
        """Whoever claims in this name is gone: its claims are given back, its waits refused."""
        await self._ask(ops.LEAVE, {"client": client_id}, ArrayWriter(), timeout_s)

    async def tell_stages(
        self, rows: Sequence[Mapping[str, Any]], *, timeout_s: float | None = None
    ) -> None:
        await self._ask(ops.TELL_STAGES, {"rows": list(rows)}, ArrayWriter(), timeout_s)

    def _uids(self, handle: BatchHandle, arrays: ArrayWriter) -> list[Any]:
        self._session.check(handle)
        return arrays.add(np.unique(handle.uids))

    async def _ask(
        self, op: str, body: dict[str, Any], arrays: ArrayWriter, timeout_s: float | None
    ) -> Message:
        return await self._caller.coordinator(
            op,
            body,
            frames=arrays.frames,
            timeout_s=self._config.timeout_s if timeout_s is None else timeout_s,
        )


def _absolute(path: str | os.PathLike[str]) -> str:
    """The processes of the service work in other folders than this one."""
    return os.path.abspath(os.fspath(path))
