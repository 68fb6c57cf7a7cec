"""A store of which slabs move to the disk does what one does of which none do."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.shard.test_store import BUDGET, Filler, StoreMachine, plan_of
from transferqueue.backends.heap import HeapBackend
from transferqueue.backends.several import ADDRESS_BITS, Member, SeveralBackends
from transferqueue.fields import FieldSpec
from transferqueue.shard.coldness import Marks
from transferqueue.shard.journal import ShardJournal
from transferqueue.shard.moving import Move
from transferqueue.shard.spill import TRY_AGAIN_S, Spill
from transferqueue.shard.store import Store

DENSE = FieldSpec(dtype="uint8", shape=(5,))
DISK_BYTES = BUDGET // 8


DISK = 1 << ADDRESS_BITS


def two(memory_bytes: int, disk_bytes: int) -> SeveralBackends:
    sizes = {"memory": memory_bytes, "spill": disk_bytes}
    return SeveralBackends(
        [Member(name=n, backend=HeapBackend(size), budget_bytes=size) for n, size in sizes.items()]
    )


class SpillingStoreMachine(StoreMachine):
    """The same rules and the same model."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = two(BUDGET, DISK_BYTES)  # type: ignore[assignment]
        self.disk = self.backend.members[1].backend  # type: ignore[attr-defined]
        self.store = Store(slot=3, space=self.backend)
        self.filler = Filler(self.store, self.backend)
        self.wanted = 0
        self.spill = Spill(
            store=self.store,
            backend=self.backend,  # type: ignore[arg-type]
            journal=ShardJournal(None, slot=3, answers={}),
            marks=Marks(high_bytes=BUDGET // 16, low_bytes=BUDGET // 32),
            wanted=lambda: self.wanted,
            on_free=lambda: None,
            min_slab_bytes=1,
        )

    @rule(wanted=st.integers(0, BUDGET))
    def some_slabs_move(self, wanted: int) -> None:
        self.wanted = wanted
        self.now_s += TRY_AGAIN_S
        used = self.backend.used_bytes + self.disk.used_bytes
        self.spill.tick(self.now_s)
        assert abs(self.backend.used_bytes + self.disk.used_bytes - used) <= 64 * 300

    @invariant()
    def what_is_pinned_or_under_way_does_not_move(self) -> None:
        for put in self.under_way:
            assert (self.store.slabs.address[put.reservation.slab_ids] < DISK).all()

    @invariant()
    def the_disk_holds_cells_alone(self) -> None:
        on_disk = self.spill.report()["slabs"]
        assert (self.disk.used_bytes > 0) <= (on_disk > 0)

    def teardown(self) -> None:
        super().teardown()
        assert self.disk.used_bytes == 0


TestSpillingStoreMachine = SpillingStoreMachine.TestCase
TestSpillingStoreMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_rows_that_are_left_are_packed_in_their_order_and_free_what_they_leave() -> None:
    backend = two(BUDGET, BUDGET)
    store = Store(slot=0, space=backend)
    reservation = store.reserve(plan_of("p", 6, {"x": (DENSE, [])}), "w")
    assert reservation is not None
    at = int(reservation.addresses[0])
    backend.write(at, memoryview(bytes(range(30))))
    uids = store.commit(reservation.put_id).uids
    store.clear("p", uids[[0, 3, 4]])
    move = Move(store, store.slabs.movable(0, DISK))
    assert [(s.tolist(), n.tolist()) for s, n in move.ranges()] == [
        ([at + 5, at + 10, at + 25], [5, 5, 5])
    ]
    found = backend.copy_to(1, move.ranges())
    assert found is not None
    backend.free(*move.to(*found))
    assert backend.used_bytes == 0
    runs = store.find("p", uids[[5, 1, 2]], ["x"], [])["x"].runs
    assert backend.read_ranges(runs.starts, runs.sizes).tobytes() == bytes(
        [*range(25, 30), *range(5, 15)]
    )
    assert len(store.slabs.movable(0, DISK)) == 0
    assert len(store.slabs.movable(DISK, 2 * DISK)) == 1
    store.clear("p", None)
    assert backend.members[1].backend.used_bytes == 0
    assert np.count_nonzero(store.slabs.num_rows) == 0
