"""A fleet of workers on one coordinator: the real control plane, driven with simulated time.

Every message waits for those before it, as at a server with one thread. It then takes what the
control plane's own call took just now, measured (by `yardstick`), and the rest of the message:
decoding, encoding, socket and journal, as `costs` has measured them. So what depends on how much
there is (waiting claims, rows, leases) is what it is at that size, and nothing is assumed of it.

A worker claims ``n`` samples for its task, works, puts one field of them (which a shard tells the
coordinator) and acks; a feeder keeps more samples ready than are asked for; samples that all tasks
have acked are freed, which shards tell too.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.simulation.costs import ACK, CLAIM, CLEARED, COMMITTED, PROBE
from transferqueue.coordinator.control_plane import ControlPlane
from transferqueue.coordinator.effects import FreeRows, Grant, Reply
from transferqueue.coordinator.policy import PartitionPolicy, Retention
from transferqueue.coordinator.uid_ranges import split_by_slot
from transferqueue.net.presence import PROBE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.benchmarks.simulation.yardstick import Yardstick

TASKS = ("reference", "reward", "critic", "actor")
FEED_ROWS = 4096
NUM_SLOTS = 8
PACE_EVERY = 32
"""Messages between two looks at how fast the machine is."""

SPEC = ("float32", (8,), None, "tensor")
TRIP_S = 0.0002
"""From a worker to the coordinator, or back."""


@dataclass(slots=True)
class Outcome:
    """What the simulation saw after its warm-up."""

    claim_s: list[float] = field(default_factory=list)
    """From the sending of a claim to its grant."""
    cycles: int = 0
    busy_s: float = 0.0
    span_s: float = 0.0
    plane_s: dict[str, list[float]] = field(default_factory=dict)
    """By kind of message, what the control plane took for each."""


class Fleet:
    """``edge_s``: by kind of message, what it costs beside the control plane."""

    def __init__(
        self,
        *,
        workers: int,
        work_s: float,
        n: int,
        edge_s: Mapping[str, float],
        yardstick: Yardstick,
        seed: int = 0,
    ) -> None:
        self._yardstick, self._slowness, self._num_served = yardstick, 1.0, 0
        self._workers, self._work_s, self._n, self._edge_s = workers, work_s, n, edge_s
        self._rng = random.Random(seed)
        self._plane = ControlPlane()
        self._plane.create_partition(
            "train", PartitionPolicy(tasks=TASKS, retention=Retention.CONSUMED), now_s=0.0
        )
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._free_at_s = 0.0
        self._asked: dict[int, tuple[int, float]] = {}
        """Claims without a grant: worker, and when it was sent."""
        self._ids = itertools.count(1)
        self._next_sequence = [0] * NUM_SLOTS
        self._num_ready = dict.fromkeys(TASKS, 0)
        self._measuring = False
        self.outcome = Outcome()

    def run(self, *, warm_cycles: int, cycles: int) -> Outcome:
        """Until so many cycles are done after the warm-up."""
        for worker in range(self._workers):
            self._at(self._rng.random() * self._work_s, self._ask(worker))
        self._at(0.0, self._probe)
        started_s = 0.0
        while self.outcome.cycles < warm_cycles + cycles:
            now_s, _, act = heapq.heappop(self._events)
            act(now_s)
            if not self._measuring and self.outcome.cycles >= warm_cycles:
                self._measuring, self.outcome.busy_s = True, 0.0
                started_s = max(now_s, self._free_at_s)
                self.outcome.claim_s.clear()
        self.outcome.cycles -= warm_cycles
        self.outcome.span_s = max(now_s, self._free_at_s) - started_s
        return self.outcome

    def _at(self, at_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), act))

    # -- the server -----------------------------------------------------------------------------

    def _serve(self, kind: str, arrived_s: float, call: Callable[[float], list[Any]]) -> None:
        """One message: it begins when those before it are done."""
        begin_s = max(arrived_s, self._free_at_s)
        if self._num_served % PACE_EVERY == 0:
            self._slowness = self._yardstick.slowness()
        self._num_served += 1
        before_s = time.thread_time()
        effects = call(begin_s)
        plane_s = (time.thread_time() - before_s) / self._slowness
        self.outcome.plane_s.setdefault(kind, []).append(plane_s)
        took_s = plane_s + self._edge_s.get(kind, 0.0)
        self.outcome.busy_s += took_s
        self._free_at_s = begin_s + took_s
        for effect in effects:
            self._carry_out(effect, self._free_at_s + TRIP_S)

    def _carry_out(self, effect: Any, at_s: float) -> None:
        if isinstance(effect, FreeRows):
            self._at(at_s + TRIP_S, self._clear(effect))
        elif isinstance(effect, Reply):
            assert isinstance(effect.payload, Grant)
            worker, asked_s = self._asked.pop(effect.waiter_id)  # type: ignore[arg-type]
            self.outcome.claim_s.append(at_s - asked_s)
            work_s = self._work_s * self._rng.uniform(0.8, 1.2)
            self._at(at_s + work_s, self._finish(worker, effect.payload))

    def _probe(self, now_s: float) -> None:
        """Whoever waits is told so, once in a while."""
        took_s = len(self._asked) * self._edge_s.get(PROBE, 0.0)
        self._free_at_s = max(now_s, self._free_at_s) + took_s
        self.outcome.busy_s += took_s
        self._at(now_s + PROBE_S, self._probe)

    # -- workers, shards and the feeder ---------------------------------------------------------

    def _ask(self, worker: int) -> Callable[[float], None]:
        task = TASKS[worker % len(TASKS)]

        def ask(now_s: float) -> None:
            self._feed(task, now_s)
            self._num_ready[task] -= self._n
            request = next(self._ids)
            self._asked[request] = (worker, now_s)

            def claim(begin_s: float) -> list[Any]:
                return self._plane.claim(
                    now_s=begin_s,
                    waiter_id=request,
                    client_id=worker,
                    partition="train",
                    task=task,
                    fields=("x",),
                    n=self._n,
                    deadline_s=begin_s + 1e6,
                    lease_s=1e6,
                )

            self._serve(CLAIM, now_s + TRIP_S, claim)

        return ask

    def _feed(self, task: str, now_s: float) -> None:
        if self._num_ready[task] >= FEED_ROWS:
            return
        slot = self._rng.randrange(NUM_SLOTS)
        first = self._next_sequence[slot]
        self._next_sequence[slot] += FEED_ROWS
        uids = np.arange(first, first + FEED_ROWS) + (slot << 48)
        for name in TASKS:
            self._num_ready[name] += FEED_ROWS
        self._serve(COMMITTED, now_s, lambda at_s: self._commit(slot, uids, "x", at_s))

    def _commit(self, slot: int, uids: Any, name: str, now_s: float) -> list[Any]:
        return self._plane.commit(
            now_s=now_s, slot=slot, partition="train", uids=uids, fields={name: SPEC},
            nbytes={name: 32 * len(uids)},
        )  # fmt: skip

    def _finish(self, worker: int, grant: Grant) -> Callable[[float], None]:
        def finish(now_s: float) -> None:
            name = f"of_{grant.task}"
            for slot, at in split_by_slot(grant.uids).items():
                uids = np.sort(grant.uids[at])
                self._serve(
                    COMMITTED,
                    now_s + TRIP_S,
                    lambda at_s, slot=slot, uids=uids: self._commit(slot, uids, name, at_s),
                )
            self._serve(
                ACK, now_s + TRIP_S, lambda at_s: self._plane.ack(grant.claim_id, now_s=at_s)
            )
            self.outcome.cycles += 1
            self._at(self._free_at_s + TRIP_S, self._ask(worker))

        return finish

    def _clear(self, free: FreeRows) -> Callable[[float], None]:
        def clear(now_s: float) -> None:
            self._serve(
                CLEARED,
                now_s,
                lambda at_s: self._plane.cleared(
                    now_s=at_s, slot=free.slot, partition="train", uids=free.uids
                ),
            )

        return clear


def wake(*, workers: int, edge_s: Mapping[str, float]) -> tuple[float, float, float]:
    """All workers wait, and one put has a sample for each. Seconds that one more commit takes while
    all of them wait, that the put takes, and until the last has heard; of one task."""
    plane = ControlPlane()
    for worker in range(workers):
        plane.claim(
            now_s=0.0, waiter_id=worker, client_id=worker, partition="train", task="t",
            fields=("x",), n=1, deadline_s=1e6, lease_s=1e6,
        )  # fmt: skip
    put = {"slot": 0, "partition": "train", "now_s": 1.0}
    before_s = time.thread_time()
    plane.commit(uids=np.arange(8), fields={"other": SPEC}, **put)  # type: ignore[arg-type]
    idle_s = time.thread_time() - before_s
    before_s = time.thread_time()
    uids = np.arange(100, 100 + workers)
    effects = plane.commit(uids=uids, fields={"x": SPEC}, **put)  # type: ignore[arg-type]
    took_s = time.thread_time() - before_s
    assert len(effects) == workers
    return idle_s, took_s, took_s + workers * edge_s.get(CLAIM, 0.0)
