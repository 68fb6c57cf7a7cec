"""The control plane under any sequence of calls, against a model that looks at every row.

What it shows: a row is with at most one claim of a task at a time; none is lost; an ack counts
once; whatever could be answered is answered at once; what was discarded, or given too often, is
nobody's; and a put that waits for room and a claim that waits for rows never both wait for each
other: when everybody else has done his part, one of the two has been answered.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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
from transferqueue.coordinator.policy import PartitionPolicy, Retention, SamplesPerInsert
from transferqueue.coordinator.predicate import tag
from transferqueue.coordinator.samplers import Groups
from transferqueue.errors import (
    ClaimTooLarge,
    LeaseExpired,
    NotReady,
    QuotaExceeded,
    RowsLost,
)

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
    discarded: bool = False
    """Of no use to anybody; freed when no claim holds it."""

    @property
    def is_live(self) -> bool:
        return not (self.freeing or self.discarded)

    @property
    def is_claimed(self) -> bool:
        return "claimed" in self.state.values()

    def is_ready(self, task: str, fields: tuple[str, ...], min_group: int | None) -> bool:
        return (
            self.is_live
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
    num_bytes: int = 0

    @property
    def is_plain(self) -> bool:
        """A claim of any rows. Of one that wants whole groups, or those of a condition, nobody can
        say what it waits for: such a claim, and a put that it keeps out, end at their deadlines."""
        return bool(self.task) and not self.grouped and self.min_group is None

    @property
    def feed(self) -> tuple[Any, ...]:
        return self.task, frozenset(self.fields), self.min_group


class ControlPlaneMachine(RuleBasedStateMachine):
    """Two tasks, two fields, two shards; groups, a condition, a quota, leases and deadlines."""

    batches = Bundle("batches")
    tasks: tuple[str, ...] = ("a", "b")
    max_rows: int | None = None
    max_bytes: int | None = None
    ratio: SamplesPerInsert | None = None
    max_deliveries: int | None = None

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
        self.room: list[tuple[int, int, int]] = []
        """Admitted (slot, rows, bytes) that no put has used yet."""
        self.rows_put = 0
        self.rows_handed_out = 0
        self.lost_slot: int | None = None

    @initialize()
    def declare(self) -> None:
        policy = PartitionPolicy(
            tasks=self.tasks,
            retention=Retention.CONSUMED,
            max_rows=self.max_rows,
            max_bytes=self.max_bytes,
            samples_per_insert=self.ratio,
            max_deliveries=self.max_deliveries,
        )
        self.carry_out(self.plane.create_partition("train", policy, now_s=0.0))

    # -- carrying out effects, and checking each -----------------------------------------------

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, FreeRows):
                for uid in effect.uids.tolist():
                    row = self.rows[uid]
                    is_consumed = all(row.state[task] == "acked" for task in self.tasks)
                    assert is_consumed or (row.discarded and not row.is_claimed), "freed too early"
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
                self.check_admission(waiting)
                self.room.append((waiting.slot, waiting.n, waiting.num_bytes))

    def check_refusal(self, waiting: Waiting, error: Exception) -> None:
        if isinstance(error, (NotReady, QuotaExceeded)):
            assert self.now_s >= waiting.deadline_s, "given up too early"
        elif isinstance(error, RowsLost):
            assert not waiting.task
            assert waiting.slot == self.lost_slot
        elif isinstance(error, ClaimTooLarge) and self.max_bytes is not None:
            assert waiting.n * self.used_bytes > self.max_bytes * len(self.rows), "it fits"
        else:
            raise AssertionError(error)

    def check_admission(self, put: Waiting) -> None:
        """Past a limit only for a claim that else waits for ever."""
        if not (self.has_room(put) and self.is_in_ratio(put)):
            claims = [w.n for w in self.waiting.values() if w.task]
            assert claims, "let past the limit for nobody"
            rows = len(self.rows) + self.promised + put.n
            assert rows < (self.max_rows or rows) + max(claims) + put.n, "let past it by too much"

    def has_room(self, put: Waiting) -> bool:
        rows = len(self.rows) + self.promised + put.n
        num_bytes = self.used_bytes + sum(b for _, _, b in self.room) + put.num_bytes
        return (self.max_rows is None or rows <= self.max_rows) and (
            self.max_bytes is None or num_bytes <= self.max_bytes
        )

    def is_in_ratio(self, put: Waiting) -> bool:
        if self.ratio is None:
            return True
        rows = self.rows_put + self.promised + put.n
        lead = self.ratio.ratio * (rows - self.ratio.min_rows) - self.rows_handed_out
        return lead <= self.ratio.slack_rows

    def may_hand_out(self, n: int) -> bool:
        if self.ratio is None:
            return True
        lead = self.ratio.ratio * (self.rows_put - self.ratio.min_rows) - self.rows_handed_out
        return lead - n >= -self.ratio.slack_rows

    @property
    def used_bytes(self) -> int:
        return 32 * sum(len(row.fields) for row in self.rows.values())

    def check_grant(self, waiting: Waiting, grant: Grant) -> None:
        uids = grant.uids.tolist()
        assert len(set(uids)) == len(uids) == waiting.n
        if not self.may_hand_out(len(uids)):
            assert any(not w.task for w in self.waiting.values()), "past the ratio for nobody"
        self.rows_handed_out += len(uids)
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
        fields = data.draw(st.sampled_from([("x",), ("x", "y"), ("y",)]))
        if not self.ask_for_room(n, slot, 32 * n * len(fields)):
            return multiple()
        groups = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
        return self.put_rows(n, slot, fields, groups)

    def put_rows(self, n: int, slot: int, fields: tuple[str, ...], groups: list[int]) -> Any:
        uids = np.arange(self.next_seq[slot], self.next_seq[slot] + n) + (slot << 48)
        self.next_seq[slot] += n
        for uid, group in zip(uids.tolist(), groups, strict=True):
            self.rows[uid] = Row(group)
        self.rows_put += n
        self.commit(slot, uids, fields, groups)
        return uids

    def ask_for_room(self, n: int, slot: int, num_bytes: int) -> bool:
        """Room that came late is used by a later put of the same size."""
        if self.max_rows is self.max_bytes is self.ratio is None:
            return True
        if (self.max_rows or n) < n or (self.max_bytes or num_bytes) < num_bytes:
            return False
        if (slot, n, num_bytes) in self.room:
            self.room.remove((slot, n, num_bytes))
            return True
        put = Waiting(0, "", n, self.now_s + TIMEOUT_S, slot=slot, num_bytes=num_bytes)
        request = self.request(put)
        self.carry_out(
            self.plane.admit(
                now_s=self.now_s,
                waiter_id=request,
                client_id="producer",
                slot=slot,
                partition="train",
                num_rows=n,
                num_bytes=num_bytes,
                deadline_s=self.now_s + TIMEOUT_S,
            )
        )
        if request in self.waiting:
            return False
        self.room.remove((slot, n, num_bytes))
        return True

    def commit(self, slot: int, uids: Any, fields: tuple[str, ...], groups: list[int]) -> None:
        for uid in uids.tolist():
            if uid in self.rows and self.rows[uid].is_live:
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

    @rule(slot=st.integers(0, 1), often=st.integers(0, 3))
    def lose_a_slot(self, slot: int, often: int) -> None:
        """A shard is gone for good, and another one takes its place."""
        if often:
            return
        self.lost_slot = slot
        self.rows = {uid: row for uid, row in self.rows.items() if uid >> 48 != slot}
        self.orders = [order for order in self.orders if order[0] != slot]
        self.room = [room for room in self.room if room[0] != slot]
        self.carry_out(self.plane.slot_lost(slot, now_s=self.now_s))
        self.carry_out(self.plane.slot_joined(slot, now_s=self.now_s))
        self.lost_slot = None

    # -- consumers ------------------------------------------------------------------------------

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        live = sorted(uid for uid, row in self.rows.items() if row.is_live)
        if not live:
            return
        uids = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=3, unique=True))
        for uid in uids:
            self.rows[uid].discarded = True
        num_rows, effects = self.plane.discard("train", np.array(uids), now_s=self.now_s)
        assert num_rows == len(uids)
        self.carry_out(effects)

    @rule(which=st.integers(0, 1))
    def redrive(self, which: int) -> None:
        task = self.tasks[which % len(self.tasks)]
        dead = [
            row for row in self.rows.values() if row.is_live and row.state[task] == "dead_letter"
        ]
        for row in dead:
            row.state[task], row.deliveries[task] = "free", 0
        num_rows, effects = self.plane.redrive("train", task, uids=None, now_s=self.now_s)
        assert num_rows == len(dead)
        self.carry_out(effects)

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
        if self.ratio is not None and n > 2 * self.ratio.slack_rows:
            return
        self.ask(Waiting(0, task, n, self.now_s + TIMEOUT_S, fields, grouped, min_group))

    def ask(self, waiting: Waiting) -> int:
        min_group = waiting.min_group
        request = self.request(waiting)
        self.carry_out(
            self.plane.claim(
                now_s=self.now_s,
                waiter_id=request,
                client_id=waiting.task,
                partition="train",
                task=waiting.task,
                fields=waiting.fields,
                n=waiting.n,
                sampler=Groups(GROUP_SIZE).to_plain() if waiting.grouped else None,
                where=None if min_group is None else (tag("group") >= min_group).to_plain(),
                deadline_s=waiting.deadline_s,
                lease_s=LEASE_S,
            )
        )
        return request

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), acks=st.sampled_from([True, True, False]))
    def end_a_claim(self, data: st.DataObject, acks: bool) -> None:  # noqa: FBT001
        claim_id = data.draw(st.sampled_from(sorted(self.claims)))
        deadline_s = self.claims[claim_id][2]
        end = self.plane.ack if acks else self.plane.give_back
        if self.now_s >= deadline_s:
            self.expect_late(end, claim_id)
            return
        self.let_go(claim_id, acks=acks)
        self.carry_out(end(claim_id, now_s=self.now_s))

    def let_go(self, claim_id: int, *, acks: bool) -> None:
        task, uids, _ = self.claims.pop(claim_id)
        for row in (self.rows[uid] for uid in uids if uid in self.rows):
            is_dead = self.max_deliveries is not None and (
                row.deliveries[task] >= self.max_deliveries
            )
            if row.discarded:
                row.state[task] = "free"
            elif acks:
                row.state[task] = "acked"
            else:
                row.state[task] = "dead_letter" if is_dead else "free"

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
        for claim_id, (_, _, deadline_s) in list(self.claims.items()):
            if deadline_s <= self.now_s:
                self.let_go(claim_id, acks=False)

    @property
    def promised(self) -> int:
        return sum(n for _, n, _ in self.room)

    # -- what always holds ----------------------------------------------------------------------

    def could_be_served(self, waiting: Waiting) -> bool:
        ready = [
            row
            for row in self.rows.values()
            if row.is_ready(waiting.task, waiting.fields, waiting.min_group)
        ]
        if not self.may_hand_out(waiting.n):
            return False
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
    def the_first_put_waits_only_for_room(self) -> None:
        puts = [w for w in self.waiting.values() if not w.task]
        if puts:
            first = min(puts, key=lambda w: w.order)
            assert not (self.has_room(first) and self.is_in_ratio(first)), "there is room"

    @invariant()
    def the_counts_are_those_of_the_rows(self) -> None:
        if "train" not in self.plane.status(now_s=self.now_s):
            return
        status = self.plane.status(now_s=self.now_s)["train"]
        live = [row for row in self.rows.values() if row.is_live]
        assert status["rows"] == len(live)
        for task in self.tasks:
            for state in ("free", "claimed", "acked", "dead_letter"):
                expected = sum(row.state[task] == state for row in live)
                assert status["tasks"][task][state] == expected
        for name, count in status["fields"].items():
            assert count == sum(name in row.fields for row in live)
        assert status["bytes"] == self.used_bytes
        assert (status["rows_put"], status["rows_handed_out"]) == (
            self.rows_put,
            self.rows_handed_out,
        )

    # -- no deadlock ----------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everybody else does his part, and time stands still: then no put waits for room while a
        claim waits for rows."""
        if all(w.task for w in self.waiting.values()):
            return  # no put waits
        for request in [r for r, w in self.waiting.items() if w.task and not w.is_plain]:
            if self.waiting.pop(request, None) is not None:  # else one before it made way
                self.carry_out(self.plane.cancel(request, now_s=self.now_s))
        for _ in range(10_000):
            if not self.do_a_part():
                break
        else:
            raise AssertionError("it never comes to rest")
        puts = [w for w in self.waiting.values() if not w.task]
        claims = [w for w in self.waiting.values() if w.task]
        assert not (puts and claims), f"{puts} and {claims} wait for each other"

    def do_a_part(self) -> bool:
        """Of shards, stages, workers, producers or the operator; False when none has one."""
        if self.orders:
            self.shards_free_rows()
        elif self.claims:
            claim_id = min(self.claims)
            is_late = self.now_s >= self.claims[claim_id][2]
            assert not is_late
            self.let_go(claim_id, acks=True)
            self.carry_out(self.plane.ack(claim_id, now_s=self.now_s))
        elif self.room:
            slot, n, num_bytes = self.room.pop(0)
            # Of as many bytes as were asked for; what the rows lack comes later.
            self.put_rows(n, slot, FIELDS[: num_bytes // (32 * n)], [3] * n)
        else:
            return self.complete_a_row() or self.try_again() or self.consume()
        return True

    def complete_a_row(self) -> bool:
        """A stage puts the fields that rows lack."""
        for uid, row in self.rows.items():
            missing = tuple(set(FIELDS) - row.fields)
            if row.is_live and missing:
                self.commit(uid >> 48, np.array([uid]), missing, [row.group])
                return True
        return False

    def try_again(self) -> bool:
        dead = [
            which
            for which, task in enumerate(self.tasks)
            if any(r.is_live and r.state[task] == "dead_letter" for r in self.rows.values())
        ]
        for which in dead:
            self.redrive(which)
        return bool(dead)

    def consume(self) -> bool:
        """Workers of tasks of which no claim waits take a row."""
        busy = {w.task for w in self.waiting.values()}
        for task in [task for task in self.tasks if task not in busy]:
            request = self.ask(Waiting(0, task, 1, self.now_s + TIMEOUT_S))
            if request not in self.waiting:
                return True
            del self.waiting[request]
            self.carry_out(self.plane.cancel(request, now_s=self.now_s))
        return False
