"""Two copies, whatever is killed, lost and sent again: nothing acknowledged is lost while one copy
lives, and no mirror that could be relied on is behind what was acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.replication.two_shards import (
    SLOT,
    Change,
    Clear,
    Guard,
    Home,
    Model,
    Put,
    Register,
    State,
    Strip,
    heap,
    state_of,
)
from transferqueue.replication import changes
from transferqueue.replication.mirror import Mirror, Taken
from transferqueue.shard.store import Store
from transferqueue.wire import ops
from transferqueue.wire.format import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.replication.keeper import Kept

BUDGET = 1 << 16
PARTITIONS = ["p", "q"]
FIELDS = ["a", "b", "c"]
SMALL = {"PIECE_BYTES": 10, "GROUP_BYTES": 16}
"""So that a few bytes take all the ways that megabytes take."""


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, nbytes in SMALL.items():
        monkeypatch.setattr(changes, name, nbytes)


def fetch(
    guard: Guard, generation: str, budget_bytes: int, epoch: int
) -> tuple[Store, SeveralBackends] | None:
    """What a home that has lost everything gets from its guard."""
    backend = heap(budget_bytes)
    store = Store(slot=SLOT, space=backend)
    mirror = Mirror(store, backend, backend)
    at = 0
    while True:
        body = {"slot": SLOT, "generation": generation, "at": at, "epoch": epoch}
        message = Message(op=ops.FETCH_COPY, request_id=at, body=body)
        reply = guard.handle(b"new", message)
        if reply.body["kind"] is None:
            return None
        if reply.body["kind"] == changes.Kind.COPIED:
            return store, backend
        first = reply.body["blocks"]
        step = Taken(
            kind=changes.Kind(reply.body["kind"]),
            body=reply.body["step"],
            frames=reply.frames,
            blocks=[] if first is None else reply.frames[first:],
        )
        assert mirror.take(step)
        at += 1


class TwoCopiesMachine(RuleBasedStateMachine):
    """``model``: what was acknowledged. What is asked for and not acknowledged may be in the mirror
    or not, in the order in which it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, nbytes in SMALL.items():
            self.patch.setattr(changes, name, nbytes)
        self.num_lives = self.num_puts = 0
        self.now_s = 0.0

    @initialize(has_room=st.booleans())
    def begin(self, *, has_room: bool) -> None:
        self.guard_bytes = BUDGET if has_room else 1 << 10
        self.guard = Guard(self.guard_bytes, 0)
        self.home = Home.empty(heap(BUDGET))
        self.register = Register()
        self.ended: set[str] = set()
        """Generations of mirrors that were at a guard which was killed."""
        self.model = Model(self.home.store.next_uid)
        self.dead: list[tuple[Home, Sequence[Change]]] = []
        """Homes that were killed, and what they had asked for: that may still come to the guard."""

    # -- changes --------------------------------------------------------------------------------

    def _change(self, change: Change) -> None:
        self.home.change(change, lambda made: made.apply(self.model))

    def _put(
        self, partition: str, uids: tuple[int, ...] | None, cells: dict[str, tuple[bytes, ...]]
    ) -> None:
        self.num_puts += 1
        self._change(Put(number=self.num_puts, partition=partition, uids=uids, cells=cells))

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS))
    def put_new_rows(self, data: st.DataObject, partition: str) -> None:
        cells = data.draw(_cells(data.draw(st.integers(1, 4))))
        self._put(partition, None, cells)

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS))
    def put_fields(self, data: st.DataObject, partition: str) -> None:
        uids = self._some_uids(data, partition)
        if uids:
            cells = data.draw(_cells(len(uids)))
            self._put(partition, uids, cells)

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), every=st.integers(0, 9))
    def clear(self, data: st.DataObject, partition: str, every: int) -> None:
        uids = None if every == 0 else self._some_uids(data, partition)
        self._change(Clear(partition=partition, uids=uids))

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), name=st.sampled_from(FIELDS))
    def strip(self, data: st.DataObject, partition: str, name: str) -> None:
        uids = self._some_uids(data, partition)
        self._change(Strip(partition=partition, uids=uids, fields=(name,)))

    def _some_uids(self, data: st.DataObject, partition: str) -> tuple[int, ...]:
        known = sorted(self.model.rows.get(partition, {}))
        if not known:
            return ()
        return tuple(sorted(data.draw(st.sets(st.sampled_from(known), max_size=6))))

    # -- the wire -------------------------------------------------------------------------------

    @rule(times=st.integers(1, 30))
    def messages_arrive(self, times: int) -> None:
        for _ in range(times):
            self.guard.serve(self.home.wire)
            self.home.wire.arrive()
            self.home.link.hear()

    @rule(times=st.integers(1, 5))
    def the_guard_hears(self, times: int) -> None:
        for _ in range(times):
            self.guard.serve(self.home.wire)

    @rule(times=st.integers(1, 5))
    def the_home_hears(self, times: int) -> None:
        for _ in range(times):
            self.home.wire.arrive()
        self.home.link.hear()

    @rule()
    def the_coordinator_hears(self) -> None:
        self.register.hear(self.home)

    @rule()
    def time_passes(self) -> None:
        self.now_s += 0.6
        self.home.link.tick(self.now_s)

    @rule()
    def time_passes_and_all_is_well(self) -> None:
        for _ in range(12):
            self.time_passes()
            self.messages_arrive(25)
            self.the_coordinator_hears()

    @rule(num=st.integers(1, 4))
    def a_connection_breaks(self, num: int) -> None:
        """What is on its way gets lost."""
        for queue in (self.home.wire.to_guard, self.home.wire.to_home):
            for _ in range(min(num, len(queue))):
                queue.popleft()

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), times=st.integers(1, 9))
    def what_a_dead_home_sent_arrives_late(self, data: st.DataObject, times: int) -> None:
        dead, _ = data.draw(st.sampled_from(self.dead))
        for _ in range(times):
            self.guard.serve(dead.wire)

    # -- ends -----------------------------------------------------------------------------------

    @rule()
    def the_guard_is_killed(self) -> None:
        """Another one is there before anybody has looked."""
        self.num_lives += 1
        self.ended |= {kept.generation for kept in self.guard.keeper.kept.values()}
        self.guard = Guard(self.guard_bytes, self.num_lives)
        self.home.wire.to_home.clear()
        self.home.wire.to_guard.clear()
        for dead, _ in self.dead:  # nobody is there to connect again
            dead.wire.to_guard.clear()

    @rule()
    def the_guard_is_killed_and_found_dead(self) -> None:
        """Its successor has not started when it is looked for: nothing waits for it."""
        self.the_guard_is_killed()
        self.home.guard_is_there = False
        self.time_passes()
        self.time_passes()
        self.time_passes()
        self.the_coordinator_hears()
        self.home.guard_is_there = True
        self.home.wire.to_guard.clear()
        assert not self.home.waiting

    @rule()
    def the_home_is_killed(self) -> None:
        self.num_lives += 1
        self.dead.append((self.home, tuple(self.home.waiting)))
        self.home = self.home.restarted(self.num_lives)
        self.now_s += 1.0

    @rule()
    def the_home_is_lost(self) -> None:
        """Its arena and its journal are gone. Nothing that it acknowledged is lost if the guard
        has all of it."""
        was_complete = self.home.copies.log.is_complete and self._has_its_mirror()
        if not was_complete and self._relied_on() is None:
            return  # nobody says that it could be had
        self.num_lives += 1
        assert self.register.copy is not None
        found = fetch(self.guard, self.register.copy, 2 * BUDGET, self.num_lives)
        assert found is not None
        store, backend = found
        asked_for = list(self.home.waiting)
        if not self._has_its_mirror():
            asked_for = list(self._asked_for_by_its_home())
        made = self._prefix_of(asked_for, state_of(store, backend))
        assert store.next_uid == made.next_uid
        self.dead.append((self.home, asked_for))
        self.model = made
        self.home = Home(store, backend, self.num_lives)
        self.now_s += 1.0

    def _has_its_mirror(self) -> bool:
        return self._is_of(self.home)

    def _asked_for_by_its_home(self) -> Sequence[Change]:
        return next(waiting for home, waiting in self.dead if self._is_of(home))

    def _is_of(self, home: Home) -> bool:
        kept = self.guard.keeper.kept.get(SLOT)
        return kept is not None and kept.generation in home.wire.generations

    def _prefix_of(self, asked_for: Sequence[Change], state: object) -> Model:
        """The model after as many of these as make it so, but those that the guard had no room
        for."""
        refused = self.guard.refused
        asked_for = [c for c in asked_for if not (isinstance(c, Put) and c.number in refused)]
        for num in range(len(asked_for) + 1):
            made = self.model.after(asked_for[:num])
            if made.state == state:
                return made
        raise AssertionError(f"{state} is not {self.model.state}, nor with what was asked for")

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def a_home_shows_what_it_has_acknowledged(self) -> None:
        if hasattr(self, "home"):
            assert state_of(self.home.store, self.home.backend) == self.model.state
            assert self.home.store.next_uid == self.model.next_uid

    @invariant()
    def a_complete_mirror_lacks_nothing_that_was_acknowledged(self) -> None:
        if not hasattr(self, "home"):
            return
        kept = self._relied_on()
        if kept is None:
            return
        asked_for: Sequence[Change] = self.home.waiting
        if not self._has_its_mirror():
            asked_for = self._asked_for_by_its_home()
        self._prefix_of(asked_for, state_of(kept.mirror.store, self.guard.backend))

    @invariant()
    def a_home_that_is_complete_has_a_complete_mirror(self) -> None:
        if hasattr(self, "home") and self.home.copies.log.is_complete and self._has_its_mirror():
            assert self._relied_on() is not None

    @invariant()
    def a_mirror_that_is_on_record_ends_with_its_guard_alone(self) -> None:
        """Whoever loses the home then has it, however long the coordinator hears nothing."""
        if hasattr(self, "home") and self.register.copy not in {None, *self.ended}:
            assert self._relied_on() is not None

    def _relied_on(self) -> Kept | None:
        """The mirror that is on record, if it is there."""
        kept = self.guard.keeper.complete(SLOT)
        return kept if kept is not None and kept.generation == self.register.copy else None

    def teardown(self) -> None:
        if hasattr(self, "home"):
            self.guard = Guard(BUDGET, 999)
            for _ in range(20):  # a copy of many rows takes more messages than one of few
                self.time_passes_and_all_is_well()
                if self.home.copies.log.is_complete and not self.home.waiting:
                    break
            assert self.home.copies.log.is_complete
            assert not self.home.waiting
            for partition in PARTITIONS:
                self._change(Clear(partition=partition, uids=None))
            self.messages_arrive(10)
            assert self.home.backend.used_bytes == 0
            assert self.guard.backend.used_bytes == 0
        self.patch.undo()


def _cells(num_rows: int) -> st.SearchStrategy[dict[str, tuple[bytes, ...]]]:
    cells = st.lists(st.binary(max_size=12), min_size=num_rows, max_size=num_rows).map(tuple)
    return st.dictionaries(st.sampled_from(FIELDS), cells, min_size=1)


TestTwoCopies = TwoCopiesMachine.TestCase
TestTwoCopies.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_rows_put_beside_the_declaration_that_they_have_one_copy_are_kept_once() -> None:
    home, guard, register = Home.empty(heap(BUDGET)), Guard(BUDGET, 0), Register()
    made: list[Change] = []
    now_s = 0.0

    def settle() -> None:
        nonlocal now_s
        for _ in range(40):
            now_s += 0.6
            home.link.tick(now_s)
            for _ in range(25):
                guard.serve(home.wire)
                home.wire.arrive()
                home.link.hear()
            register.hear(home)
        assert home.copies.log.is_complete

    def mirrored() -> State:
        return state_of(guard.keeper.kept[SLOT].mirror.store, guard.backend)

    def put(number: int, partition: str, uids: tuple[int, ...] | None) -> None:
        cells = {"a" if uids is None else "b": (b"cell",)}
        home.change(Put(number=number, partition=partition, uids=uids, cells=cells), made.append)

    settle()
    for number, partition in enumerate(PARTITIONS, start=1):
        put(number, partition, None)
    settle()
    assert mirrored().keys() == {"p", "q"}
    put(3, "p", None)  # on its way to the guard
    home.copies.declare(frozenset({"p"}))
    settle()
    put(4, "p", (home.store.partitions["p"].uids()[0],))
    put(5, "q", None)
    settle()
    assert len(made) == 5
    assert mirrored().keys() == {"q"}
    assert len(mirrored()["q"]) == 2
    mirror = guard.keeper.kept[SLOT].mirror
    assert mirror.store.next_uid == home.store.next_uid
    generation = guard.keeper.kept[SLOT].generation
    home.copies.declare(frozenset({"p", "new"}))
    settle()
    assert guard.keeper.kept[SLOT].generation == generation, "nothing is copied anew for no rows"
