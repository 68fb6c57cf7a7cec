"""The control plane under any sequence of calls, against a model that looks at every row.

What it shows: a row is with at most one claim of a task at a time; none is lost; an ack counts
once; whatever could be answered is answered at once; and a put that waits for room and a claim
that waits for rows never both wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from transferqueue.coordinator.control_plane import ControlPlane
from transferqueue.coordinator.effects import Admitted, FreeRows, Grant, Refuse
from transferqueue.coordinator.policy import PartitionPolicy, Retention
from transferqueue.coordinator.predicate import tag
from transferqueue.coordinator.samplers import Groups
from transferqueue.errors import LeaseExpired, NotReady, QuotaExceeded

FIELDS = ("x", "y")
SPEC = ("float32", (8,), None, "tensor")
GROUP_SIZE = 2
LEASE_S = 10.0
TIMEOUT_S = 25.0


@dataclass
class Row:
    group: int
    fields: set[str] = field(default_factory=set)
    state: dict[str, str] = field(default_factory=lambda: defaultdict(lambda: "free"))
    deliveries: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    freeing: bool = False

    def is_ready(self, task: str, fields: tuple[str, ...], min_group: int | None) -> bool:
        return (
            not self.freeing
            and self.state[task] == "free"
            and self.fields.issuperset(fields)
            and (min_group is None or self.group >= min_group)
        )


@dataclass
class Waiting:
    """A claim, or a put when ``task`` is empty."""

    order: int
    task: str
    n: int
    deadline_s: float
    fields: tuple[str, ...] = ()
    grouped: bool = False
    min_group: int | None = None
    slot: int = 0

    @property
    def feed(self) -> tuple[Any, ...]:
        return self.task, frozenset(self.fields), self.min_group


class ControlPlaneMachine(RuleBasedStateMachine):
    """Two tasks, two fields, two shards; groups, a condition, a quota, leases and deadlines."""

    batches = Bundle("batches")
    tasks: tuple[str, ...] = ("a", "b")
    max_rows: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.plane = ControlPlane()
        self.now_s = 0.0
        self.rows: dict[int, Row] = {}
        self.waiting: dict[int, Waiting] = {}
        self.claims: dict[int, tuple[str, list[int], float]] = {}
        self.ended: set[int] = set()
        self.orders: list[tuple[int, list[int]]] = []
        self.streams: list[tuple[int, Any, tuple[str, ...], list[int]]] = []
        self.next_seq = [0, 0]
        self.num_requests = 0
        self.room: list[tuple[int, int]] = []
        """Admitted (slot, rows) that no put has used yet."""

    @initialize()
    def declare(self) -> None:
        policy = PartitionPolicy(
            tasks=self.tasks, retention=Retention.CONSUMED, max_rows=self.max_rows
        )
        self.carry_out(self.plane.create_partition("train", policy, now_s=0.0))

    # -- carrying out effects, and checking each -----------------------------------------------

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, FreeRows):
                for uid in effect.uids.tolist():
                    row = self.rows[uid]
                    assert all(row.state[task] == "acked" for task in self.tasks), "freed too early"
                    assert not row.freeing
                    row.freeing = True
                self.orders.append((effect.slot, effect.uids.tolist()))
                continue
            waiting = self.waiting.pop(effect.waiter_id)
            if isinstance(effect, Refuse):
                self.check_refusal(waiting, effect.error)
            elif isinstance(effect.payload, Grant):
                self.check_grant(waiting, effect.payload)
            else:
                assert isinstance(effect.payload, Admitted)
                self.room.append((waiting.slot, waiting.n))

    def check_refusal(self, waiting: Waiting, error: Exception) -> None:
        if isinstance(error, (NotReady, QuotaExceeded)):
            assert self.now_s >= waiting.deadline_s, "given up too early"
        else:
            raise AssertionError(error)

    def check_grant(self, waiting: Waiting, grant: Grant) -> None:
        uids = grant.uids.tolist()
        assert len(set(uids)) == len(uids) == waiting.n
        for uid in uids:
            row = self.rows[uid]
            assert row.is_ready(waiting.task, waiting.fields, waiting.min_group), "not to be had"
            row.state[waiting.task] = "claimed"
            row.deliveries[waiting.task] += 1
        assert grant.deliveries.tolist() == [self.rows[u].deliveries[waiting.task] for u in uids]
        if waiting.grouped:
            for unit in np.reshape(uids, (-1, GROUP_SIZE)).tolist():
                assert len({self.rows[uid].group for uid in unit}) == 1, "a broken group"
        self.claims[grant.claim_id] = (waiting.task, uids, self.now_s + LEASE_S)

    # -- producers ------------------------------------------------------------------------------

    def request(self, waiting: Waiting) -> int:
        self.num_requests += 1
        waiting.order = self.num_requests
        self.waiting[self.num_requests] = waiting
        return self.num_requests

    @rule(target=batches, n=st.integers(1, 5), slot=st.integers(0, 1), data=st.data())
    def put(self, n: int, slot: int, data: st.DataObject) -> Any:
        if self.max_rows is not None and not self.ask_for_room(n, slot):
            return multiple()
        uids = np.arange(self.next_seq[slot], self.next_seq[slot] + n) + (slot << 48)
        self.next_seq[slot] += n
        groups = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
        for uid, group in zip(uids.tolist(), groups, strict=True):
            self.rows[uid] = Row(group)
        fields = data.draw(st.sampled_from([("x",), ("x", "y"), ("y",)]))
        self.commit(slot, uids, fields, groups)
        return uids

    def ask_for_room(self, n: int, slot: int) -> bool:
        """Room that came late is used by a later put of the same size."""
        if (slot, n) in self.room:
            self.room.remove((slot, n))
            return True
        request = self.request(Waiting(0, "", n, self.now_s + TIMEOUT_S, slot=slot))
        self.carry_out(
            self.plane.admit(
                now_s=self.now_s,
                waiter_id=request,
                client_id="producer",
                slot=slot,
                partition="train",
                num_rows=n,
                num_bytes=0,
                deadline_s=self.now_s + TIMEOUT_S,
            )
        )
        if request in self.waiting:
            return False
        self.room.remove((slot, n))
        return True

    def commit(self, slot: int, uids: Any, fields: tuple[str, ...], groups: list[int]) -> None:
        for uid in uids.tolist():
            if uid in self.rows and not self.rows[uid].freeing:
                self.rows[uid].fields |= set(fields)
        self.streams.append((slot, uids, fields, groups))
        self.send(slot, uids, fields, groups)

    def send(self, slot: int, uids: Any, fields: tuple[str, ...], groups: list[int]) -> None:
        self.carry_out(
            self.plane.commit(
                now_s=self.now_s,
                slot=slot,
                partition="train",
                uids=uids,
                fields=dict.fromkeys(fields, SPEC),
                tags={"group": groups},
                nbytes=dict.fromkeys(fields, 32 * len(uids)),
            )
        )

    @rule(uids=batches, field_name=st.sampled_from(FIELDS), pick=st.integers(1, 31))
    def fill(self, uids: Any, field_name: str, pick: int) -> None:
        chosen = uids[[bool(pick >> i & 1) for i in range(len(uids))]]
        chosen = chosen[[uid in self.rows for uid in chosen.tolist()]]
        if len(chosen):
            groups = [self.rows[uid].group for uid in chosen.tolist()]
            self.commit(int(chosen[0]) >> 48, chosen, (field_name,), groups)

    @rule()
    def send_the_streams_again(self) -> None:
        for event in self.streams[-6:]:
            self.send(*event)

    @precondition(lambda self: self.orders)
    @rule()
    def shards_free_rows(self) -> None:
        slot, uids = self.orders.pop(0)
        for uid in uids:
            del self.rows[uid]
        self.carry_out(
            self.plane.cleared(now_s=self.now_s, slot=slot, partition="train", uids=np.array(uids))
        )

    # -- consumers ------------------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1),
        n=st.integers(1, 6),
        fields=st.sampled_from([("x",), ("y", "x"), ()]),
        grouped=st.booleans(),
        min_group=st.one_of(st.none(), st.integers(1, 2)),
    )
    def claim(
        self,
        which: int,
        n: int,
        fields: tuple[str, ...],
        grouped: bool,  # noqa: FBT001
        min_group: int | None,
    ) -> None:
        task = self.tasks[which % len(self.tasks)]
        n = -(-n // GROUP_SIZE) * GROUP_SIZE if grouped else n
        if self.max_rows is not None and n > self.max_rows:
            return
        waiting = Waiting(0, task, n, self.now_s + TIMEOUT_S, fields, grouped, min_group)
        request = self.request(waiting)
        self.carry_out(
            self.plane.claim(
                now_s=self.now_s,
                waiter_id=request,
                client_id=task,
                partition="train",
                task=task,
                fields=fields,
                n=n,
                sampler=Groups(GROUP_SIZE).to_plain() if grouped else None,
                where=None if min_group is None else (tag("group") >= min_group).to_plain(),
                deadline_s=waiting.deadline_s,
                lease_s=LEASE_S,
            )
        )

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), acks=st.sampled_from([True, True, False]))
    def end_a_claim(self, data: st.DataObject, acks: bool) -> None:  # noqa: FBT001
        claim_id = data.draw(st.sampled_from(sorted(self.claims)))
        task, uids, deadline_s = self.claims[claim_id]
        end = self.plane.ack if acks else self.plane.give_back
        if self.now_s >= deadline_s:
            self.expect_late(end, claim_id)
            return
        del self.claims[claim_id]
        for uid in uids:
            self.rows[uid].state[task] = "acked" if acks else "free"
        self.carry_out(end(claim_id, now_s=self.now_s))

    def expect_late(self, end: Any, claim_id: int) -> None:
        try:
            end(claim_id, now_s=self.now_s)
        except LeaseExpired:
            return
        raise AssertionError("a lease that had run out was accepted")

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[request]
        self.carry_out(self.plane.cancel(request, now_s=self.now_s))

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while (due_s := self.plane.next_deadline_s()) is not None and due_s <= until_s:
            self.now_s = max(self.now_s, due_s)
            self.expire_claims()
            self.carry_out(self.plane.tick(self.now_s))
        self.now_s = until_s
        self.expire_claims()
        assert all(w.deadline_s > self.now_s for w in self.waiting.values()), "a wait went on"

    def expire_claims(self) -> None:
        for claim_id, (task, uids, deadline_s) in list(self.claims.items()):
            if deadline_s <= self.now_s:
                del self.claims[claim_id]
                for uid in uids:
                    self.rows[uid].state[task] = "free"

    @property
    def promised(self) -> int:
        return sum(n for _, n in self.room)

    # -- what always holds ----------------------------------------------------------------------

    def could_be_served(self, waiting: Waiting) -> bool:
        ready = [
            row
            for row in self.rows.values()
            if row.is_ready(waiting.task, waiting.fields, waiting.min_group)
        ]
        if not waiting.grouped:
            return len(ready) >= waiting.n
        sizes = [sum(row.group == g for row in ready) for g in range(4)]
        return sum(size // GROUP_SIZE * GROUP_SIZE for size in sizes) >= waiting.n

    @invariant()
    def the_first_claim_of_each_kind_waits_only_for_what_is_not_there(self) -> None:
        heads: dict[Any, Waiting] = {}
        for waiting in sorted(self.waiting.values(), key=lambda w: w.order):
            if waiting.task:
                heads.setdefault(waiting.feed, waiting)
        for waiting in heads.values():
            assert not self.could_be_served(waiting), f"{waiting} could be served"

    @invariant()
    def a_put_and_a_claim_never_wait_for_each_other(self) -> None:
        puts = [w for w in self.waiting.values() if not w.task]
        if not puts:
            return
        first_put = min(puts, key=lambda w: w.order)
        assert self.max_rows is not None
        assert len(self.rows) + self.promised + first_put.n > self.max_rows, "there is room"
        heads: dict[Any, Waiting] = {}
        for waiting in sorted(self.waiting.values(), key=lambda w: w.order):
            if waiting.task:
                heads.setdefault(waiting.feed, waiting)
        for waiting in heads.values():
            live = [row for row in self.rows.values() if not row.freeing]
            held = sum(row.state[waiting.task] != "acked" for row in live)
            can_come = held + self.promised
            stuck = can_come < waiting.n and held + first_put.n > self.max_rows
            assert not stuck, f"{first_put} and {waiting} wait for each other"

    @invariant()
    def the_counts_are_those_of_the_rows(self) -> None:
        if "train" not in self.plane.status(now_s=self.now_s):
            return
        status = self.plane.status(now_s=self.now_s)["train"]
        live = [row for row in self.rows.values() if not row.freeing]
        assert status["rows"] == len(live)
        for task in self.tasks:
            for state in ("free", "claimed", "acked"):
                expected = sum(row.state[task] == state for row in live)
                assert status["tasks"][task][state] == expected
        for name, count in status["fields"].items():
            assert count == sum(name in row.fields for row in live)
        assert status["bytes"] == 32 * sum(len(row.fields) for row in self.rows.values())


class QuotaMachine(ControlPlaneMachine):
    """One task, room for 7 rows, puts of up to 5 and claims of up to 6."""

    tasks = ("a",)
    max_rows = 7


class TwoTaskQuotaMachine(ControlPlaneMachine):
    """Rows are freed by two tasks, each of which can hold them."""

    max_rows = 8


_SETTINGS = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestControlPlane = ControlPlaneMachine.TestCase
TestControlPlane.settings = _SETTINGS
TestQuota = QuotaMachine.TestCase
TestQuota.settings = _SETTINGS
TestTwoTaskQuota = TwoTaskQuotaMachine.TestCase
TestTwoTaskQuota.settings = _SETTINGS
