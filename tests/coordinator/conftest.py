"""A control plane with a manual clock, and shards that do as they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transferqueue.coordinator.control_plane import ControlPlane
from transferqueue.coordinator.effects import FreeRows, Refuse
from transferqueue.coordinator.policy import PartitionPolicy

if TYPE_CHECKING:
    from transferqueue.coordinator.samplers import SamplerRegistry

SPEC = ("float32", (8,), None, "tensor")
CELL_BYTES = 32


class Driver:
    """Plays server, shards and clients of one control plane."""

    def __init__(self, samplers: SamplerRegistry | None = None) -> None:
        self.plane = ControlPlane(samplers=samplers)
        self.now_s = 100.0
        self.answers: dict[Any, Any] = {}
        self.frees: list[FreeRows] = []
        self._next_seq: dict[int, int] = {}
        self._num_requests = 0

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, FreeRows):
                self.frees.append(effect)
                continue
            assert effect.waiter_id not in self.answers, "answered twice"
            refused = isinstance(effect, Refuse)
            self.answers[effect.waiter_id] = effect.error if refused else effect.payload

    def declare(self, partition: str = "train", **settings: Any) -> None:
        self.carry_out(
            self.plane.create_partition(partition, PartitionPolicy(**settings), now_s=self.now_s)
        )

    def put(self, n: int, fields: tuple[str, ...] = ("x",), slot: int = 0, **kwargs: Any) -> Any:
        """New rows; returns their uids."""
        first = self._next_seq.get(slot, 0)
        self._next_seq[slot] = first + n
        uids = np.arange(first, first + n) + (slot << 48)
        self.fill(uids, fields, **kwargs)
        return uids

    def fill(
        self,
        uids: Any,
        fields: tuple[str, ...],
        *,
        partition: str = "train",
        tags: dict[str, Any] | None = None,
        spec: Any = SPEC,
    ) -> None:
        """Cells of rows, new or known."""
        effects = self.plane.commit(
            now_s=self.now_s,
            slot=int(uids[0]) >> 48,
            partition=partition,
            uids=uids,
            fields=dict.fromkeys(fields, spec),
            tags=tags,
            nbytes=dict.fromkeys(fields, CELL_BYTES * len(uids)),
        )
        self.carry_out(effects)

    def free(self) -> int:
        """The shards free what they were told to; returns how many rows that was."""
        frees, self.frees = self.frees, []
        for free in frees:
            if free.fields is None:
                self.clear(free.uids, free.partition)
        return sum(len(free.uids) for free in frees if free.fields is None)

    def clear(self, uids: Any, partition: str = "train") -> None:
        slot = int(uids[0]) >> 48
        self.carry_out(
            self.plane.cleared(now_s=self.now_s, slot=slot, partition=partition, uids=uids)
        )

    def claim(
        self,
        n: int = 1,
        *,
        task: str = "t",
        fields: tuple[str, ...] = ("x",),
        partition: str = "train",
        client: str = "client",
        sampler: Any = None,
        where: Any = None,
        uids: Any = None,
        timeout_s: float = 30.0,
        lease_s: float = 60.0,
        allow_partial: bool = False,
    ) -> int:
        """Ask; the answer, if there is one, is in ``answers``."""
        waiter_id = self._new_request()
        effects = self.plane.claim(
            now_s=self.now_s,
            waiter_id=waiter_id,
            client_id=client,
            partition=partition,
            task=task,
            fields=list(fields),
            n=n,
            uids=uids,
            sampler=None if sampler is None else sampler.to_plain(),
            where=None if where is None else where.to_plain(),
            deadline_s=self.now_s + timeout_s,
            lease_s=lease_s,
            allow_partial=allow_partial,
        )
        self.carry_out(effects)
        return waiter_id

    def _new_request(self) -> int:
        self._num_requests += 1
        return self._num_requests

    def take(self, n: int = 1, **kwargs: Any) -> Any:
        """A claim that is answered at once; returns the grant."""
        waiter_id = self.claim(n, **kwargs)
        assert waiter_id in self.answers, "the claim waits"
        grant = self.answers[waiter_id]
        if isinstance(grant, Exception):
            raise grant
        return grant

    def wait(
        self,
        uids: Any,
        fields: tuple[str, ...] = ("x",),
        *,
        partition: str = "train",
        client: str = "client",
        timeout_s: float = 30.0,
    ) -> int:
        waiter_id = self._new_request()
        effects = self.plane.wait(
            now_s=self.now_s,
            waiter_id=waiter_id,
            client_id=client,
            partition=partition,
            uids=uids,
            fields=list(fields),
            deadline_s=self.now_s + timeout_s,
        )
        self.carry_out(effects)
        return waiter_id

    def select(self, *, partition: str = "train", where: Any = None, **kwargs: Any) -> int:
        waiter_id = self._new_request()
        timeout_s = kwargs.pop("timeout_s", None)
        effects = self.plane.select(
            now_s=self.now_s,
            waiter_id=waiter_id,
            client_id="client",
            partition=partition,
            where=None if where is None else where.to_plain(),
            deadline_s=None if timeout_s is None else self.now_s + timeout_s,
            **kwargs,
        )
        self.carry_out(effects)
        return waiter_id

    def admit(self, rows: int, num_bytes: int = 0, slot: int = 0, timeout_s: float = 30.0) -> int:
        waiter_id = self._new_request()
        effects = self.plane.admit(
            now_s=self.now_s,
            waiter_id=waiter_id,
            client_id="producer",
            slot=slot,
            partition="train",
            num_rows=rows,
            num_bytes=num_bytes,
            deadline_s=self.now_s + timeout_s,
        )
        self.carry_out(effects)
        return waiter_id

    def ack(self, grant: Any) -> None:
        self.carry_out(self.plane.ack(grant.claim_id, now_s=self.now_s))

    def give_back(self, grant: Any) -> None:
        self.carry_out(self.plane.give_back(grant.claim_id, now_s=self.now_s))

    def pass_time(self, seconds: float) -> None:
        """The clock goes on, and the server ticks whenever it was asked to."""
        until_s = self.now_s + seconds
        while (due_s := self.plane.next_deadline_s()) is not None and due_s <= until_s:
            self.now_s = max(self.now_s, due_s)
            self.carry_out(self.plane.tick(self.now_s))
        self.now_s = until_s

    def status(self, partition: str = "train") -> Any:
        return self.plane.status(now_s=self.now_s)[partition]


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def make_driver() -> type[Driver]:
    return Driver
