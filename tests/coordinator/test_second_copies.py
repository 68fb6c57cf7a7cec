"""Who guards whom, what is on record of it, and who takes whose place."""

from __future__ import annotations

from collections import Counter

import pytest

from transferqueue.coordinator.second_copies import (
    FRESH_S,
    Copy,
    Due,
    Place,
    SecondCopies,
    SlotCopies,
)
from transferqueue.errors import SlotTakenOver
from transferqueue.replication.relied_on import LEASE_S


class Service:
    """Shards by slot, on nodes."""

    def __init__(self, *nodes: str, takeover_s: float | None = 60.0) -> None:
        self.copies = SecondCopies(replicas=2, takeover_s=takeover_s)
        self.now_s = 100.0
        self.places = {slot: self.place(slot, node) for slot, node in enumerate(nodes)}
        self.copies.choose_guards(self.places)

    def place(self, slot: int, node: str, *, life: int = 0, is_draining: bool = False) -> Place:
        return Place(
            node=node,
            process=f"{slot}.{life}",
            incarnation=f"{slot}.{life}",
            heard_s=self.now_s,
            is_draining=is_draining,
        )

    @property
    def guards(self) -> dict[int, int | None]:
        return {slot: known.guard for slot, known in sorted(self.copies.slots.items())}

    def incarnation_of(self, slot: int) -> str | None:
        place = self.places.get(slot)
        return None if place is None else place.incarnation

    def record(self, slot: int, copy: str | None, *, epoch: int = 0) -> bool:
        return self.copies.record(
            slot,
            copy=copy,
            guard=self.copies.of(slot).guard if copy else None,
            epoch=epoch,
            incarnation_of=self.incarnation_of,
            now_s=self.now_s,
        )

    def due(self, *away: int) -> Due:
        """A minute and more after these were heard of."""
        self.now_s += 61.0
        heard = {slot: self.now_s - 61.0 * (slot in away) for slot in range(len(self.places))}
        here = {s: self.place(s, p.node) for s, p in self.places.items() if s not in away}
        return self.copies.due(heard, here, self.now_s)


def test_on_one_node_each_guards_the_one_before_it() -> None:
    assert Service("a", "a", "a").guards == {0: 1, 1: 2, 2: 0}
    assert Service("a").guards == {0: None}


@pytest.mark.parametrize("nodes", ["aabb", "abc", "abab", "aaabbbccc", "aabc"])
def test_a_guard_is_on_another_node_and_each_guards_as_many(nodes: str) -> None:
    guards = Service(*nodes).guards
    for home, guard in guards.items():
        assert guard is not None
        assert nodes[home] != nodes[guard]
    assert max(Counter(guards.values()).values()) <= 1 + (nodes == "aabc")


def test_one_that_joins_on_another_node_becomes_the_guard_of_those_that_have_none_there() -> None:
    service = Service("a", "a")
    assert service.record(0, "all of it")
    service.places[2] = service.place(2, "b")
    assert service.copies.choose_guards(service.places)
    assert service.guards == {0: 2, 1: 2, 2: 0}
    assert service.copies.of(0).copy is None, "until it is there too"
    assert not service.copies.choose_guards(service.places), "and nothing moves again"


def test_a_guard_that_is_away_is_kept_and_one_that_is_lost_is_replaced() -> None:
    service = Service("a", "b", "c")
    del service.places[1]
    assert not service.copies.choose_guards(service.places)
    service.copies.lose(1)
    service.copies.choose_guards(service.places)
    assert service.guards == {0: 2, 2: 0}


def test_who_is_about_to_go_guards_nobody_else_if_there_is_another() -> None:
    service = Service("a", "b")
    service.places[1] = service.place(1, "b", is_draining=True)
    service.places |= {2: service.place(2, "c"), 3: service.place(3, "a")}
    service.copies.choose_guards(service.places)
    assert service.guards[3] == 2


def test_two_slots_of_one_process_do_not_guard_one_another() -> None:
    service = Service("a", "a")
    service.places[1] = service.places[0]
    service.copies.choose_guards(service.places)
    assert service.guards == {0: None, 1: None}


def test_a_home_goes_on_alone_only_when_nobody_reads_from_its_mirror() -> None:
    service = Service("a", "b")
    assert service.record(0, "all of it")
    assert not service.copies.rely_on(0, "another", "1.0", service.now_s)
    assert not service.copies.rely_on(0, "all of it", "1.1", service.now_s)
    assert service.copies.rely_on(0, "all of it", "1.0", service.now_s)
    assert not service.record(0, None)
    service.now_s += LEASE_S
    assert service.record(0, None)
    assert not service.copies.rely_on(0, "all of it", "1.0", service.now_s)


def test_who_reads_on_from_a_mirror_does_not_hold_its_home_up() -> None:
    service = Service("a", "b")
    assert service.record(0, "all of it")
    began_s = service.now_s
    assert service.copies.rely_on(0, "all of it", "1.0", service.now_s)
    while not service.record(0, None):
        assert service.now_s < began_s + 2 * LEASE_S
        assert not service.copies.rely_on(0, "all of it", "1.0", service.now_s)
        service.now_s += LEASE_S / 4


def test_a_mirror_is_read_again_when_its_home_asks_no_more_to_go_on_alone() -> None:
    service = Service("a", "b")
    for _ in range(2):
        assert service.record(0, "all of it")
        assert service.copies.rely_on(0, "all of it", "1.0", service.now_s)
        assert not service.record(0, None)
        assert not service.copies.rely_on(0, "all of it", "1.0", service.now_s)
    service.now_s += FRESH_S  # nothing is heard of the home
    assert service.copies.rely_on(0, "all of it", "1.0", service.now_s)


def test_a_mirror_ends_with_the_process_of_its_guard() -> None:
    service = Service("a", "b")
    service.record(0, "all of it")
    service.copies.came(1, "1.0", "")
    assert service.copies.of(0).copy == Copy(guard=1, incarnation="1.0", generation="all of it")
    service.copies.came(1, "1.1", "")
    assert service.copies.of(0).copy is None
    assert service.due(0).lost == [0]


def test_a_guard_with_everything_takes_the_place_and_the_one_before_is_refused() -> None:
    service = Service("a", "b", "c")
    for slot in range(3):
        service.record(slot, f"of {slot}")
    guard = service.copies.of(0).guard
    due = service.due(0)
    assert (due.taken_over, due.lost) == ([0], [])
    (hosted,) = service.copies.at(guard or 0).hosted
    assert hosted == 0
    with pytest.raises(SlotTakenOver, match="slot 0"):
        service.copies.came(0, "0.0", "")
    service.copies.came(0, "0.7", service.copies.of(0).lineage)
    kept_by_it = [slot for slot in (1, 2) if service.copies.of(slot).copy is None]
    assert [service.guards[slot] for slot in kept_by_it] == [None], "its mirrors went with it"


def test_the_one_before_stays_refused_when_the_one_that_took_its_place_is_lost_too() -> None:
    service = Service("a", "b", "c")
    service.record(0, "all of it")
    service.due(0)
    lineage = service.copies.of(0).lineage
    service.copies.lose(0)
    assert all(0 not in service.copies.at(shard).hosted for shard in range(3))
    again = SecondCopies(
        replicas=2,
        slots={s: SlotCopies.from_plain(k.to_plain()) for s, k in service.copies.slots.items()},
    )
    for copies in (service.copies, again):
        with pytest.raises(SlotTakenOver, match="slot 0"):
            copies.came(0, "0.0", "")
        copies.came(0, "0.7", lineage)
        copies.came(1, "1.0", "")


def test_nothing_is_taken_over_while_the_guard_is_away_too_and_nothing_is_lost() -> None:
    service = Service("a", "b", "c")
    service.record(0, "all of it")
    guard = service.copies.of(0).guard
    assert guard is not None
    due = service.due(0, guard)
    assert 0 not in due.lost + due.taken_over or service.copies.of(0).copy is None
    service = Service("a", "b", takeover_s=None)
    service.record(0, "all of it")
    assert service.due(0) == Due()


def test_what_is_written_down_says_it_all() -> None:
    service = Service("a", "b")
    service.record(0, "all of it")
    assert service.copies.take_changed() == {0, 1}
    service.due(0)
    for known in service.copies.slots.values():
        again = SlotCopies.from_plain(known.to_plain())
        again.relied_on_s = known.relied_on_s
        assert again == known
    assert FRESH_S < 60


def test_each_process_of_a_host_begins_with_a_number_that_no_other_had() -> None:
    service = Service("a", "b", "c")
    service.record(0, "all of it")
    service.due(0)
    assert [service.copies.begin(0, "1.0") for _ in range(3)] == [1, 1, 1]
    assert 0 in service.copies.take_changed()
    assert service.copies.begin(0, "1.1") == 2, "the first was killed before it was on record"
    again = SecondCopies(
        replicas=2,
        slots={s: SlotCopies.from_plain(k.to_plain()) for s, k in service.copies.slots.items()},
    )
    assert again.begin(0, "1.2") == 3, "also by what another coordinator knows"


def test_a_number_counts_when_its_process_has_come_though_it_waits_to_be_on_record() -> None:
    service = Service("a", "b", "c")
    service.record(0, "all of it")
    assert service.copies.rely_on(0, "all of it", "1.0", service.now_s)
    service.copies.take_changed()
    assert not service.record(0, None, epoch=5)
    assert service.copies.of(0).epoch == 0
    assert service.copies.take_changed() == {0}
    assert service.due(0).taken_over == [0]
    assert service.copies.begin(0, "1.0") == 6
