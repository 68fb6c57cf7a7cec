"""Pins, cleared bytes that wait for them, and the promise that no reader sees other bytes."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from transferqueue.memory.allocator import RangeAllocator, extents
from transferqueue.shard.leases import FreedRanges, Leases
from transferqueue.shard.slabs import SlabTable


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def add_slab(table: SlabTable, address: int, rows: int, unit: int, padding: int = 0) -> int:
    slab = table.add(
        address=ints(address),
        extent_bytes=ints(rows * unit + padding),
        unit_bytes=ints(unit),
        num_rows=ints(rows),
        spec_id=ids(0),
        put_id=ints(1),
        place=ids(0),
    )
    return int(slab[0])


def pairs(freed: FreedRanges) -> list[tuple[int, int]]:
    return sorted(zip(freed.addresses.tolist(), freed.nbytes.tolist(), strict=True))


def test_cells_of_a_slab_nobody_looks_at_are_free_at_once() -> None:
    table = SlabTable()
    leases = Leases(table)
    slab = add_slab(table, 1000, rows=3, unit=10, padding=34)
    freed = leases.free(ids(slab, slab), ints(1000, 1020), ints(10, 10))
    assert pairs(freed) == [(1000, 10), (1020, 10)]
    assert len(freed.slab_ids) == 0
    assert table.live_rows[slab] == 1
    assert table.live_bytes[slab] == 44


def test_the_last_cell_takes_the_padding_and_the_slab_with_it() -> None:
    table = SlabTable()
    leases = Leases(table)
    slab = add_slab(table, 1000, rows=3, unit=10, padding=34)
    leases.free(ids(slab), ints(1000), ints(10))
    freed = leases.free(ids(slab, slab), ints(1010, 1020), ints(10, 10))
    assert pairs(freed) == [(1010, 10), (1020, 10), (1030, 34)]
    assert freed.slab_ids.tolist() == [slab]
    assert len(table) == 0


def test_a_slab_cleared_in_one_call_comes_back_as_one_range() -> None:
    table = SlabTable()
    leases = Leases(table)
    slab = add_slab(table, 1000, rows=3, unit=10, padding=34)
    other = add_slab(table, 2000, rows=2, unit=8)
    freed = leases.free(
        ids(slab, other, slab, slab), ints(1000, 2000, 1010, 1020), ints(10, 8, 10, 10)
    )
    assert pairs(freed) == [(1000, 64), (2000, 8)]


def test_cells_of_a_pinned_slab_wait_for_the_last_lease() -> None:
    table = SlabTable()
    leases = Leases(table)
    slab = add_slab(table, 0, rows=4, unit=16)
    first = leases.acquire("a", ids(slab, slab), now_s=1.0)
    second = leases.acquire("b", ids(slab), now_s=2.0)
    assert not leases.free(ids(slab), ints(16), ints(16))
    assert leases.held_bytes == 16
    assert not leases.release("a", [first])
    freed = leases.release("b", [second])
    assert pairs(freed) == [(16, 16)]
    assert leases.held_bytes == 0
    assert table.live_rows[slab] == 3


def test_a_slab_cleared_under_a_lease_keeps_its_id_until_the_lease_ends() -> None:
    table = SlabTable()
    leases = Leases(table)
    slab = add_slab(table, 0, rows=2, unit=16, padding=32)
    lease = leases.acquire("a", ids(slab), now_s=0.0)
    assert not leases.free(ids(slab, slab), ints(0, 16), ints(16, 16))
    assert add_slab(table, 64, rows=1, unit=1) != slab
    freed = leases.release("a", [lease])
    assert pairs(freed) == [(0, 64)]
    assert freed.slab_ids.tolist() == [slab]
    assert add_slab(table, 0, rows=1, unit=1) == slab


def test_a_release_sent_twice_or_by_another_reader_changes_nothing() -> None:
    table = SlabTable()
    leases = Leases(table)
    slab = add_slab(table, 0, rows=1, unit=64)
    mine = leases.acquire("a", ids(slab), now_s=0.0)
    assert not leases.release("b", [mine])
    leases.release("a", [mine])
    leases.acquire("a", ids(slab), now_s=0.0)
    assert not leases.release("a", [mine, 999])
    assert table.pins[slab] == 1


def test_leases_of_a_reader_that_is_gone_end_together() -> None:
    table = SlabTable()
    leases = Leases(table)
    slabs = ids(*(add_slab(table, 64 * i, rows=1, unit=64) for i in range(3)))
    leases.acquire("gone", slabs[:2], now_s=0.0)
    leases.acquire("gone", slabs[1:], now_s=0.0)
    keeper = leases.acquire("alive", slabs[2:], now_s=0.0)
    leases.free_slabs(slabs)
    freed = leases.reader_gone("gone")
    assert pairs(freed) == [(0, 64), (64, 64)]
    assert len(leases) == 1
    assert pairs(leases.release("alive", [keeper])) == [(128, 64)]
    assert not leases.reader_gone("never seen")


def test_cells_without_bytes_count_as_rows() -> None:
    table = SlabTable()
    leases = Leases(table)
    slab = add_slab(table, 0, rows=2, unit=0)
    lease = leases.acquire("a", ids(slab), now_s=0.0)
    leases.free(ids(slab, slab), ints(0, 0), ints(0, 0))
    freed = leases.release("a", [lease])
    assert freed.slab_ids.tolist() == [slab]
    assert freed.nbytes.sum() == 0


def test_status_says_who_holds_how_much_for_how_long() -> None:
    table = SlabTable()
    leases = Leases(table)
    small, large = add_slab(table, 0, 1, 64), add_slab(table, 64, 1, 640)
    leases.acquire("a", ids(small), now_s=1.0)
    leases.acquire("b", ids(small, large), now_s=2.0)
    leases.acquire("b", ids(large), now_s=3.0)
    held = leases.of_readers(now_s=5.0)
    assert [(r.reader, r.num_leases, r.num_slabs) for r in held] == [("b", 2, 2), ("a", 1, 1)]
    assert [(r.extent_bytes, r.oldest_s) for r in held] == [(704, 3.0), (64, 4.0)]
    assert leases.pinned_bytes() == 704


def test_misuse_is_named() -> None:
    table = SlabTable()
    leases = Leases(table)
    with pytest.raises(ValueError, match="at least one row"):
        add_slab(table, 0, rows=0, unit=1)
    with pytest.raises(ValueError, match="not in use"):
        leases.acquire("a", ids(0), now_s=0.0)


def test_clearing_costs_the_same_number_of_calls_for_any_number_of_rows() -> None:
    def calls_to_clear(rows: int) -> int:
        table = SlabTable()
        leases = Leases(table)
        slab = add_slab(table, 0, rows=2 * rows, unit=8)
        pinned = add_slab(table, 16 * rows, rows=2 * rows, unit=8)
        lease = leases.acquire("a", ids(pinned), now_s=0.0)
        starts = np.arange(rows, dtype=np.int64) * 16
        sizes = np.full(rows, 8, np.int64)
        slabs = np.full(rows, slab, np.int32)
        calls = 0

        def count(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            leases.free(slabs, starts, sizes)
            leases.free(np.full(rows, pinned, np.int32), starts + 16 * rows, sizes)
            leases.release("a", [lease])
        finally:
            sys.setprofile(None)
        return calls

    assert calls_to_clear(1_000) == calls_to_clear(100_000)


CAPACITY = 1 << 14


@dataclass
class Slab:
    """What the model knows of one slab."""

    generation: int
    cells: dict[int, tuple[int, int]]  # row -> (address, nbytes)


class NoReaderSeesAnotherGeneration(RuleBasedStateMachine):
    """Writers fill slabs with a number of their own; readers must always find that number."""

    @initialize()
    def start(self) -> None:
        self.memory = np.zeros(CAPACITY, np.uint32)  # one word for each byte of the arena
        self.allocator = RangeAllocator(CAPACITY)
        self.table = SlabTable()
        self.leases = Leases(self.table)
        self.slabs: dict[int, Slab] = {}
        self.views: dict[int, tuple[str, list[tuple[int, int, int]]]] = {}
        self.generation = 0

    def give_back(self, freed: FreedRanges) -> None:
        self.allocator.free_many(freed.addresses, freed.nbytes)
        for address, nbytes in pairs(freed):
            self.memory[address : address + nbytes] = 0

    @rule(lengths=st.lists(st.integers(0, 90), min_size=1, max_size=12), unit=st.integers(1, 9))
    def put(self, lengths: list[int], unit: int) -> None:
        sizes = np.array(lengths, np.int64) * unit
        got = self.allocator.alloc(int(sizes.sum()))
        if got is None:
            return
        slab = int(
            self.table.add(
                address=ints(got.address),
                extent_bytes=extents(ints(int(sizes.sum()))),
                unit_bytes=ints(unit),
                num_rows=ints(len(sizes)),
                spec_id=ids(0),
                put_id=ints(1),
                place=ids(0),
            )[0]
        )
        self.generation += 1
        self.memory[got.address : got.address + got.nbytes] = self.generation
        ends = got.address + np.cumsum(sizes)
        starts = ends - sizes
        assert slab not in self.slabs
        self.slabs[slab] = Slab(
            self.generation,
            dict(enumerate(zip(starts.tolist(), sizes.tolist(), strict=True))),
        )

    @rule(data=st.data(), reader=st.sampled_from("abc"))
    def get(self, data: st.DataObject, reader: str) -> None:
        live = [s for s, slab in self.slabs.items() if slab.cells]
        if not live:
            return
        chosen = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=4))
        lease = self.leases.acquire(reader, ids(*chosen), now_s=0.0)
        seen = [
            (address, nbytes, self.slabs[s].generation)
            for s in chosen
            for address, nbytes in self.slabs[s].cells.values()
        ]
        self.views[lease] = (reader, seen)

    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        cells = [(s, row) for s, slab in self.slabs.items() for row in slab.cells]
        if not cells:
            return
        chosen = data.draw(st.lists(st.sampled_from(cells), min_size=1, max_size=30, unique=True))
        where = [self.slabs[s].cells.pop(row) for s, row in chosen]
        slab_ids = ids(*(s for s, _ in chosen))
        freed = self.leases.free(
            slab_ids, ints(*(a for a, _ in where)), ints(*(n for _, n in where))
        )
        self.forget(freed)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if not self.views:
            return
        lease = data.draw(st.sampled_from(sorted(self.views)))
        reader, _ = self.views.pop(lease)
        self.forget(self.leases.release(reader, [lease, lease]))

    @rule(reader=st.sampled_from("abc"))
    def die(self, reader: str) -> None:
        self.views = {i: view for i, view in self.views.items() if view[0] != reader}
        self.forget(self.leases.reader_gone(reader))

    def forget(self, freed: FreedRanges) -> None:
        self.give_back(freed)
        for slab in freed.slab_ids.tolist():
            assert not self.slabs.pop(slab).cells

    @invariant()
    def readers_see_their_generation(self) -> None:
        if not hasattr(self, "views"):
            return
        for _, seen in self.views.values():
            for address, nbytes, generation in seen:
                assert (self.memory[address : address + nbytes] == generation).all()

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "views"):
            return
        in_use = self.table.ids()
        assert set(in_use.tolist()) == set(self.slabs)
        kept = int(self.table.live_bytes[in_use].sum()) + self.leases.held_bytes
        assert self.allocator.used_bytes == kept
        if not self.views:
            assert self.leases.held_bytes == 0
            assert not self.table.pins[in_use].any()


NoReaderSeesAnotherGeneration.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None
)
TestNoReaderSeesAnotherGeneration = NoReaderSeesAnotherGeneration.TestCase
