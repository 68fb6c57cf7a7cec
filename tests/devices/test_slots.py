"""Slots of a device arena: who may read what, and when bytes are given out again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transferqueue.devices.slots import Loan, SlotTable
from transferqueue.errors import Malformed, OwnerLost, StaleGeneration
from transferqueue.memory.allocator import RangeAllocator
from transferqueue.wire.slot_ref import SlotRef

CAPACITY_BYTES = 4096
QUARANTINE_S = 10.0


class Pool:
    """An allocator and its slots, with whole numbers instead of arrays."""

    def __init__(self, *, epoch: int = 1, quarantine_s: float = QUARANTINE_S) -> None:
        self.allocator = RangeAllocator(CAPACITY_BYTES)
        self.slots = SlotTable(self.allocator, pool="pool", epoch=epoch, quarantine_s=quarantine_s)

    def reserve(self, *sizes: int, seal: bool = True) -> list[int]:
        addresses = self.allocator.alloc_many(sizes)
        assert addresses is not None
        self.slots.enter(addresses, self.allocator.extents(sizes))
        if seal:
            self.slots.seal(addresses)
        return [int(address) for address in addresses]

    def free(self, *pieces: tuple[int, int]) -> None:
        starts, sizes = zip(*pieces, strict=True)
        self.slots.free(np.array(starts, np.int64), np.array(sizes, np.int64))

    @property
    def used(self) -> int:
        assert self.slots.live_bytes == self.allocator.used_bytes
        return self.allocator.used_bytes


def test_what_is_lent_is_kept_until_the_last_reader_gives_it_back() -> None:
    pool = Pool()
    (at,) = pool.reserve(128)
    one, two = pool.slots.lend("a", [at]), pool.slots.lend("b", [at + 100])
    pool.free((at, 128))
    assert (pool.used, pool.slots.held_bytes) == (128, 128)
    pool.slots.give_back("a", [one.loan_id], 0.0)
    pool.slots.give_back("a", [two.loan_id], 0.0)  # another's
    assert pool.used == 128
    pool.slots.check(two.refs[0])
    pool.slots.give_back("b", [two.loan_id], 0.0)
    pool.slots.give_back("b", [two.loan_id], 0.0)
    assert (pool.used, len(pool.slots), pool.slots.held_bytes) == (0, 0, 0)


def test_a_ref_is_stale_when_its_bytes_were_given_on() -> None:
    pool = Pool()
    (at,) = pool.reserve(128)
    loan = pool.slots.lend("a", [at])
    (ref,) = loan.refs
    pool.slots.give_back("a", [loan.loan_id], 0.0)
    pool.slots.check(ref)
    pool.free((at, 128))
    with pytest.raises(StaleGeneration, match="nothing is there"):
        pool.slots.check(ref)
    assert pool.reserve(128) == [at]
    with pytest.raises(StaleGeneration, match="generation 2 is there"):
        pool.slots.check(ref)


def test_a_ref_is_stale_when_some_of_its_bytes_were_given_on() -> None:
    pool = Pool()
    (at,) = pool.reserve(256)
    loan = pool.slots.lend("a", [at])
    pool.slots.give_back("a", [loan.loan_id], 0.0)
    pool.free((at + 128, 128))
    with pytest.raises(StaleGeneration):
        pool.slots.check(loan.refs[0])
    (part,) = pool.slots.lend("a", [at]).refs
    assert (part.offset, part.nbytes, part.generation) == (at, 128, loan.refs[0].generation)
    pool.slots.check(part)


def test_a_ref_of_an_earlier_owner_is_lost_whatever_lies_there() -> None:
    before, after = Pool(epoch=1), Pool(epoch=2)
    (at,) = before.reserve(64)
    (ref,) = before.slots.lend("a", [at]).refs
    assert after.reserve(64) == [at]
    with pytest.raises(OwnerLost, match="epoch 1"):
        after.slots.check(ref)


def test_slots_of_a_dead_reader_are_kept_apart_for_a_while() -> None:
    pool = Pool()
    (at,) = pool.reserve(128)
    pool.slots.lend("a", [at])
    pool.slots.process_gone("a", [], 100.0)
    pool.free((at, 128))
    assert (pool.used, pool.slots.quarantined_bytes, pool.slots.num_loans) == (128, 128, 0)
    assert pool.slots.next_s() == 110.0
    pool.slots.tick(109.0)
    assert pool.used == 128
    pool.slots.tick(110.0)
    assert (pool.used, pool.slots.next_s()) == (0, None)


def test_what_a_dead_process_was_writing_is_kept_apart_too() -> None:
    pool = Pool()
    writing, other = pool.reserve(128, 64, seal=False)
    pool.slots.process_gone("a", [writing], 0.0)
    pool.free((writing, 128), (other, 64))
    assert pool.used == 128
    pool.slots.tick(QUARANTINE_S)
    assert pool.used == 0


def test_a_dead_readers_slot_that_another_reads_waits_for_both() -> None:
    pool = Pool()
    (at,) = pool.reserve(128)
    pool.slots.lend("a", [at])
    loan = pool.slots.lend("b", [at])
    pool.slots.process_gone("a", [], 0.0)
    pool.free((at, 128))
    pool.slots.tick(QUARANTINE_S)
    assert pool.used == 128
    pool.slots.give_back("b", [loan.loan_id], 0.0)
    assert pool.used == 0


def test_without_quarantine_bytes_of_the_dead_are_free_at_once() -> None:
    pool = Pool(quarantine_s=0.0)
    (at,) = pool.reserve(128)
    pool.slots.lend("a", [at])
    pool.free((at, 128))
    pool.slots.process_gone("a", [], 0.0)
    assert pool.used == 0


def test_a_loan_that_is_kept_too_long_is_reported_once_and_kept() -> None:
    pool = Pool()
    (at,) = pool.reserve(128)
    loan = pool.slots.lend("a", [at], until_s=5.0)
    assert pool.slots.next_s() == 5.0
    assert pool.slots.tick(5.0) == []
    (overdue,) = pool.slots.tick(7.0)
    assert (overdue.reader, overdue.loan_id, overdue.nbytes, overdue.over_s) == ("a", 1, 128, 2.0)
    assert pool.slots.tick(8.0) == []
    pool.free((at, 128))
    assert pool.used == 128
    assert pool.slots.give_back("a", [loan.loan_id], 9.0) == []
    assert pool.used == 0


def test_a_loan_that_comes_back_late_is_reported_then() -> None:
    pool = Pool()
    (at,) = pool.reserve(128)
    loan = pool.slots.lend("a", [at], until_s=5.0)
    assert pool.slots.of_readers() == {"a": 128}
    (overdue,) = pool.slots.give_back("a", [loan.loan_id], 6.5)
    assert overdue.over_s == 1.5


def test_what_is_not_complete_or_not_there_is_not_lent() -> None:
    pool = Pool()
    (at,) = pool.reserve(128, seal=False)
    with pytest.raises(ValueError, match="not complete"):
        pool.slots.lend("a", [at])
    with pytest.raises(ValueError, match="not in use"):
        pool.slots.lend("a", [at + 128])


def test_freeing_twice_is_refused_also_what_is_held() -> None:
    pool = Pool()
    one, two = pool.reserve(128, 128)
    pool.slots.lend("a", [one])
    pool.free((one, 64), (two, 64))
    for pieces in (
        [(one + 32, 64)],
        [(two, 1)],
        [(one + 64, 64), (two + 10, 1)],
        [(two + 64, 64), (one, 1)],
        [(two + 64, 32), (two + 70, 32)],
        [(two + 64, -1)],
        [(1 << 40, 64)],
    ):
        with pytest.raises(ValueError, match=r"free|twice|negative|not in use"):
            pool.free(*pieces)
        assert (pool.used, pool.slots.held_bytes) == (192, 64)


def test_a_ref_survives_the_wire() -> None:
    ref = SlotRef(pool="p", epoch=1, generation=2, offset=3, nbytes=4)
    assert SlotRef.from_plain(ref.to_plain()) == ref
    for plain in ([], ["p", 1, 2, 3], ["p", 1, 2, 3, "4"], [1, 1, 2, 3, 4], ["p", True, 2, 3, 4]):
        with pytest.raises(Malformed):
            SlotRef.from_plain(plain)


class SlotMachine(RuleBasedStateMachine):
    """Random lives, against memory in which each byte says which generation was written there."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.generation = 0
        self.live: list[tuple[int, int]] = []  # what was not freed, by the user's account
        self.loans: dict[int, tuple[Loan, float]] = {}
        self.returned: list[SlotRef] = []
        self.dead_until: list[tuple[int, int, float]] = []

    @initialize(epoch=st.integers(1, 3))
    def start(self, epoch: int) -> None:
        self.pool = Pool(epoch=epoch)
        self.memory = np.zeros(CAPACITY_BYTES, np.int64)

    @rule(sizes=st.lists(st.integers(0, 600), min_size=1, max_size=4))
    def put(self, sizes: list[int]) -> None:
        found = self.pool.allocator.alloc_many(sizes)
        if found is None:
            return
        extents = self.pool.allocator.extents(sizes)
        self.pool.slots.enter(found, extents)
        self.pool.slots.seal(found)
        for start, extent in zip(found.tolist(), extents.tolist(), strict=True):
            if extent:
                for low, high, until_s in self.dead_until:  # a dead process may write there yet
                    assert high <= start or start + extent <= low or until_s <= self.now_s
                self.generation += 1
                self.memory[start : start + extent] = self.generation
                self.live.append((start, start + extent))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        low, high = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        start = data.draw(st.integers(low, high - 1))
        end = data.draw(st.integers(start + 1, high))
        self.live += [(a, b) for a, b in ((low, start), (end, high)) if a < b]
        self.pool.free((start, end - start))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), reader=st.sampled_from("abc"), lasts_s=st.none() | st.floats(0, 20))
    def lend(self, data: st.DataObject, reader: str, lasts_s: float | None) -> None:
        places = data.draw(st.lists(st.sampled_from(self.live), min_size=1, max_size=3))
        until_s = None if lasts_s is None else self.now_s + lasts_s
        loan = self.pool.slots.lend(reader, [low for low, _ in places], until_s)
        for ref in loan.refs:
            seen = self.memory[ref.offset : ref.offset + ref.nbytes]
            assert (seen == ref.generation).all(), "lent with bytes of another generation"
        self.loans[loan.loan_id] = (loan, until_s if until_s is not None else np.inf)

    @precondition(lambda self: self.loans)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        loan_id = data.draw(st.sampled_from(sorted(self.loans)))
        loan, _ = self.loans.pop(loan_id)
        self.pool.slots.give_back(loan.reader, [loan_id], self.now_s)
        self.returned += loan.refs

    @rule(reader=st.sampled_from("abc"))
    def die(self, reader: str) -> None:
        gone = [i for i, (loan, _) in self.loans.items() if loan.reader == reader]
        for loan_id in gone:
            loan, _ = self.loans.pop(loan_id)
            self.returned += loan.refs
            self.dead_until += [
                (ref.offset, ref.offset + ref.nbytes, self.now_s + QUARANTINE_S)
                for ref in loan.refs
            ]
        self.pool.slots.process_gone(reader, [], self.now_s)

    @rule(seconds=st.floats(0, 15))
    def pass_time(self, seconds: float) -> None:
        before = self.now_s
        self.now_s += seconds
        reported = {overdue.loan_id for overdue in self.pool.slots.tick(self.now_s)}
        late = {i for i, (_, until_s) in self.loans.items() if before <= until_s < self.now_s}
        assert late <= reported | {i for i in late if self.loans[i][1] == before}
        assert reported <= self.loans.keys()

    @invariant()
    def no_byte_is_both_free_and_lent(self) -> None:
        free = np.zeros(CAPACITY_BYTES, bool)
        for start, end in zip(*self.pool.allocator.free_ranges(), strict=True):
            free[start:end] = True
        free[self.pool.allocator.frontier :] = True
        for loan, _ in self.loans.values():
            for ref in loan.refs:
                assert not free[ref.offset : ref.offset + ref.nbytes].any()
        for low, high in self.live:
            assert not free[low:high].any()

    @invariant()
    def no_reader_sees_another_generation(self) -> None:
        for loan, _ in self.loans.values():
            for ref in loan.refs:
                seen = self.memory[ref.offset : ref.offset + ref.nbytes]
                assert (seen == ref.generation).all()
                self.pool.slots.check(ref)

    @invariant()
    def a_ref_that_passes_is_right_and_one_that_was_given_on_does_not(self) -> None:
        for ref in self.returned:
            seen = self.memory[ref.offset : ref.offset + ref.nbytes]
            if not (seen == ref.generation).all():
                with pytest.raises(StaleGeneration):
                    self.pool.slots.check(ref)

    @invariant()
    def used_is_the_sum_of_what_is_live(self) -> None:
        live = sum(high - low for low, high in self.live)
        assert self.pool.used == live + self.pool.slots.held_bytes

    def teardown(self) -> None:
        """When all is given back and freed and time has passed, nothing is left."""
        for loan_id, (loan, _) in self.loans.items():
            self.pool.slots.give_back(loan.reader, [loan_id], self.now_s)
        for low, high in self.live:
            self.pool.free((low, high - low))
        self.pool.slots.tick(self.now_s + QUARANTINE_S + 1)
        assert (self.pool.used, len(self.pool.slots)) == (0, 0)


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
