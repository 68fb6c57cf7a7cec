"""What passes between a home and its guard, case by case."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.replication.pair import BUDGET, Pair
from tests.replication.two_shards import (
    SILENCE_S,
    SLOT,
    Clear,
    Guard,
    Put,
    Wire,
)
from transferqueue.replication import changes
from transferqueue.replication.copy_log import Phase
from transferqueue.replication.guard_link import MOST_NO_ROOM_S, NO_ROOM, NO_ROOM_S
from transferqueue.replication.guard_link import Guard as GuardOfLink
from transferqueue.replication.throttle import Throttle


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PIECE_BYTES", 10)
    monkeypatch.setattr(changes, "GROUP_BYTES", 16)


def test_a_change_is_made_and_acknowledged_when_the_guard_has_made_it() -> None:
    pair = Pair()
    pair.settle()
    pair.put(b"one", b"two")
    assert pair.home.store.num_rows == 0
    pair.guard.serve(pair.home.wire)
    assert pair.guard.keeper.kept[SLOT].mirror.store.num_rows == 2
    assert pair.home.store.num_rows == 0
    pair.exchange()
    assert pair.home.store.num_rows == 2
    assert pair.mirrored() == pair.model.state != {}


def test_a_mirror_is_complete_only_with_what_changed_while_it_was_copied() -> None:
    pair = Pair()
    pair.pass_time()  # so that rows are put on one copy
    for number in range(4):
        pair.put(b"%d" % number * 12)
    pair.exchange(2)
    assert pair.phase is Phase.COPYING
    pair.put(b"while it is copied", uids=pair.uids[:1])
    pair.change(Clear(partition="p", uids=pair.uids[1:2]))
    assert not pair.home.waiting, "what is not in step is acknowledged at once"
    seen = []
    for _ in range(60):
        pair.exchange(1)
        seen.append(pair.mirrored())
    assert seen[0] is None
    assert all(state in (None, pair.model.state) for state in seen)
    assert seen[-1] is not None


def test_what_a_dead_home_had_asked_for_changes_nothing_when_it_comes_late() -> None:
    pair = Pair()
    pair.register.hear(pair.home)
    pair.home.link.tick(1.0)
    dead = pair.home
    assert dead.wire.to_guard, "it had asked to begin"
    pair.home = dead.restarted(1)
    pair.settle()
    pair.put(b"new")
    pair.exchange()
    while dead.wire.to_guard:
        pair.guard.serve(dead.wire)
    assert pair.mirrored() == pair.model.state != {}


def test_a_home_that_its_guard_refuses_asks_now_and_then_and_not_all_the_time() -> None:
    pair = Pair()
    pair.settle()
    late = pair.home
    pair.home = late.restarted(1)
    pair.settle()
    pair.home = late
    num_asked = 0
    for _ in range(100):  # a second
        pair.now_s += 0.01
        late.link.tick(pair.now_s)
        num_asked += len(late.wire.to_guard)
        pair.exchange(3)
        late.link.hear()
    assert 1 <= num_asked <= 8


def test_of_steps_behind_one_that_was_lost_none_is_made() -> None:
    pair = Pair()
    pair.settle()
    pair.put(b"lost")
    pair.home.wire.to_guard.popleft()
    pair.put(b"behind it")
    pair.guard.serve(pair.home.wire)
    assert pair.mirrored() == {}
    for _ in range(5):  # the coordinator is away
        pair.now_s += 0.6
        pair.exchange(20, with_coordinator=False)
        assert not pair.model.state, "nothing is acknowledged while the mirror is on record"
        assert pair.mirrored() == {}, "nor is that dropped"
    pair.settle()
    assert pair.mirrored() == pair.model.state
    assert len(pair.model.state["p"]) == 2


def test_changes_wait_so_long_for_a_guard_that_is_silent_and_not_for_one_that_is_dead() -> None:
    pair = Pair()
    pair.settle()
    pair.put(b"x")
    while pair.now_s < SILENCE_S:
        assert pair.home.waiting
        pair.pass_time()
    pair.pass_time()
    assert not pair.home.waiting
    assert pair.phase is Phase.ALONE
    assert pair.mirrored() is None, "it lacks what is acknowledged by now"
    pair.put(b"goes on")
    assert not pair.home.waiting
    pair.settle()
    assert pair.mirrored() == pair.model.state, "caught up when it is back"

    pair.put(b"y")
    pair.home.guard_is_there = False
    pair.pass_time()
    pair.pass_time()
    assert not pair.home.waiting
    assert pair.phase is Phase.ALONE
    pair.guard = Guard(BUDGET, 1)
    pair.home.wire.to_guard.clear()
    pair.home.guard_is_there = True
    pair.settle()
    assert pair.mirrored() == pair.model.state != {}


def test_a_home_that_the_coordinator_does_not_hear_acknowledges_nothing_alone() -> None:
    pair = Pair()
    pair.settle()
    pair.put(b"x")
    pair.home.guard_is_there = False
    for _ in range(30):
        pair.now_s += 0.6
        pair.home.link.tick(pair.now_s)
    assert pair.home.waiting, "somebody else may have been given its place"
    assert not pair.model.state
    pair.register.hear(pair.home)
    assert not pair.home.waiting


def test_another_guard_gets_everything_and_the_one_before_counts_for_nothing() -> None:
    pair = Pair()
    pair.settle()
    pair.put(b"x")
    pair.exchange()
    before = pair.guard
    pair.guard = Guard(BUDGET, 7)
    pair.home.wire = Wire(b"another")
    guard = GuardOfLink(slot=5, stream=pair.home.wire, is_there=lambda: True)
    pair.home.link.attach(guard, pair.now_s)
    pair.put(b"y")
    assert pair.home.waiting
    pair.settle()
    assert pair.home.copies.guard == 5
    assert pair.mirrored() == pair.model.state
    assert len(pair.model.state["p"]) == 2
    assert before.keeper.complete(SLOT) is not None, "it was not told, and need not be"


def test_a_put_for_whose_second_copy_there_is_no_room_is_refused_and_both_go_on_in_step() -> None:
    pair = Pair(guard_bytes=512)
    pair.settle()
    pair.put(bytes(400))
    pair.exchange()
    pair.put(bytes(400))
    pair.put(b"small")
    pair.exchange()
    assert pair.phase is Phase.IN_STEP
    assert [len(cells["x"]) for cells in pair.model.state["p"].values()] == [400, 5]
    assert pair.mirrored() == pair.model.state


def test_a_copy_that_finds_no_room_is_given_up_and_made_when_there_is() -> None:
    pair = Pair(guard_bytes=1024)
    pair.register.hear(pair.home)
    for _ in range(3):
        pair.put(bytes(300))
    pair.pass_time()
    pair.exchange(1)
    assert pair.phase is Phase.COPYING
    taken = pair.guard.backend.reserve([512])
    assert taken is not None
    pair.exchange()
    assert pair.phase is Phase.ALONE
    pair.pass_time(0.1)
    pair.exchange()
    assert pair.guard.backend.used_bytes == 512, "what had come of it does not stay"
    assert pair.mirrored() is None
    pair.put(b"goes on")
    assert not pair.home.waiting
    pair.change(Clear(partition="p", uids=pair.uids[:2]))
    pair.pass_time(3.0)
    pair.exchange()
    pair.settle()
    assert pair.mirrored() == pair.model.state != {}


def test_a_copy_for_which_the_guard_has_no_room_takes_none_of_it_and_is_told_of() -> None:
    pair = Pair(guard_bytes=512)
    pair.register.hear(pair.home)
    for _ in range(3):
        pair.put(bytes(300))
    asked = []
    for _ in range(100):
        generations = len(pair.home.wire.generations)
        pair.pass_time(0.5)
        pair.exchange(20)
        assert pair.guard.backend.used_bytes == 0
        if len(pair.home.wire.generations) > generations:
            asked.append(pair.now_s)
    assert pair.home.link.report()["phase"] == NO_ROOM
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses[:4] == [NO_ROOM_S * 2**number for number in range(4)]
    pair.change(Clear(partition="p", uids=pair.uids[:2]))
    pair.pass_time(MOST_NO_ROOM_S)
    pair.exchange()
    assert pair.mirrored() == pair.model.state != {}
    assert pair.home.link.report()["phase"] == Phase.IN_STEP


def test_a_home_that_starts_again_acknowledges_nothing_while_its_old_mirror_is_on_record() -> None:
    pair = Pair()
    pair.settle()
    pair.put(b"before")
    pair.exchange()
    pair.home = pair.home.restarted(1)
    pair.put(b"after", uids=pair.uids)
    assert pair.home.waiting
    assert pair.mirrored() == pair.model.state
    pair.home.link.tick(pair.now_s + 1.0)
    pair.guard.serve(pair.home.wire)
    pair.home.wire.arrive()
    pair.home.link.hear()
    assert pair.home.waiting, "the guard has dropped it, and that is not on record"
    pair.register.hear(pair.home)
    assert pair.mirrored() is None
    assert not pair.home.waiting
    pair.settle()
    assert pair.mirrored() == pair.model.state
    assert pair.model.rows["p"][pair.uids[0]] == {"x": b"after"}


def test_rows_without_a_second_copy_take_their_place_among_the_others_and_no_room() -> None:
    pair = Pair()
    pair.home.copies.one_copy = frozenset({"once"})
    pair.settle()
    for number in range(3):
        pair.put(b"twice")
        cells = {"x": (b"once", b"once")}
        pair.change(Put(number=100 + number, partition="once", uids=None, cells=cells))
    assert not pair.model.state, "in their order, when the guard has answered"
    pair.exchange()
    once = tuple(pair.model.rows["once"])
    assert sorted((*once, *pair.uids)) == list(range(min(pair.uids), pair.model.next_uid))
    pair.change(Put(number=200, partition="once", uids=once, cells={"y": (b"more",) * 6}))
    assert pair.model.rows["once"][once[0]] == {"x": b"once", "y": b"more"}, "nobody is asked"
    pair.change(Clear(partition="once", uids=once[:1]))
    pair.exchange()
    kept = pair.guard.keeper.kept[SLOT].mirror.store
    assert pair.mirrored() == {"p": pair.model.state["p"]}
    assert kept.next_uid == pair.model.next_uid
    assert kept.lost_in == {"once": max(once) + 1}

    pair.guard = Guard(BUDGET, 1)  # and in a copy of everything
    pair.home.wire.to_guard.clear()
    pair.pass_time()
    pair.exchange()
    pair.settle()
    assert pair.mirrored() == {"p": pair.model.state["p"]}
    assert pair.guard.keeper.kept[SLOT].mirror.store.lost_in == {"once": pair.model.next_uid}


def test_a_throttle_lets_so_many_bytes_a_second_through() -> None:
    throttle = Throttle(1000.0)
    sent, now_s = 0, 100.0
    while now_s < 110.0:
        while throttle.is_open(now_s):
            throttle.count(10)
            sent += 10
        now_s = max(now_s + 0.001, throttle.next_s())
    assert 9_900 <= sent <= 10_200
