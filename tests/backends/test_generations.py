"""Arena, leases and views together: no reader ever sees bytes of another generation."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.shm import ShmBackend
from transferqueue.backends.shm_reader import ShmReader
from transferqueue.shard.leases import FreedRanges, Leases
from transferqueue.shard.slabs import SlabTable

if TYPE_CHECKING:
    from transferqueue.backends.private_views import View


@dataclass
class Slab:
    generation: int
    row_bytes: int
    rows: dict[int, int]  # row -> address


@dataclass
class Held:
    """What one reader looks at under one lease."""

    lease_id: int
    reader: int
    arrays: list[np.ndarray] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    shown: list[int] = field(default_factory=list)


class Generations(RuleBasedStateMachine):
    """One shard and two readers, each with mappings of its own."""

    budget_bytes = 3 << 20
    segment_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.backend = ShmBackend.open(
            BackendConfig(
                service_id="generations",
                slot=0,
                budget_bytes=self.budget_bytes,
                directory=self.directory.name,
                options={"segment_bytes": self.segment_bytes},
            )
        )
        self.readers = [ShmReader(self.backend.address) for _ in range(2)]
        self.table = SlabTable()
        self.leases = Leases(self.table)
        self.slabs: dict[int, Slab] = {}
        self.held: list[Held] = []
        self.generation = 0

    @rule(
        rows=st.integers(1, 6),
        row_bytes=st.sampled_from([1, 700, 1024, 5000, 70_000, 300_000]),
        writer=st.integers(0, 1),
    )
    def put(self, rows: int, row_bytes: int, writer: int) -> None:
        nbytes = rows * row_bytes
        addresses = self.backend.reserve([nbytes])
        if addresses is None:
            return
        address = int(addresses[0])
        self.generation = self.generation % 250 + 1
        self.readers[writer].write(address, np.full(nbytes, self.generation, np.uint8))
        slab = self.table.add(
            address=addresses,
            extent_bytes=self.backend.extents([nbytes]),
            unit_bytes=np.array([row_bytes]),
            num_rows=np.array([rows]),
            spec_id=np.zeros(1, np.int32),
            put_id=np.ones(1, np.int64),
            place=np.zeros(1, np.int32),
        )
        self.slabs[int(slab[0])] = Slab(
            self.generation, row_bytes, {row: address + row * row_bytes for row in range(rows)}
        )

    @rule(data=st.data(), reader=st.integers(0, 1))
    def get(self, data: st.DataObject, reader: int) -> None:
        live = sorted(self.slabs)
        if not live:
            return
        chosen = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=3, unique=True))
        lease_id = self.leases.acquire(str(reader), np.array(chosen, np.int32), now_s=0.0)
        held = Held(lease_id, reader)
        for slab in (self.slabs[i] for i in chosen):
            first = data.draw(st.sampled_from(sorted(slab.rows)))
            count = 1
            while first + count in slab.rows:
                count += 1
            nbytes = count * slab.row_bytes
            array, view = self.readers[reader].view(slab.rows[first], nbytes)
            copied = self.readers[reader].readable(view.address, view.address + nbytes)
            assert (copied == slab.generation).all()
            held.arrays.append(array)
            held.views.append(view)
            held.shown.append(slab.generation)
        self.held.append(held)

    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        if self.held:
            held = data.draw(st.sampled_from(self.held))
            at = data.draw(st.integers(0, len(held.arrays) - 1))
            held.arrays[at][:] = held.shown[at] = data.draw(st.integers(251, 255))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            held.arrays.clear()
            self.readers[held.reader].end(held.views)
            self.give_back(self.leases.release(str(held.reader), [held.lease_id]))

    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        cells = [(i, row) for i, slab in self.slabs.items() for row in slab.rows]
        if not cells:
            return
        chosen = data.draw(st.lists(st.sampled_from(cells), min_size=1, max_size=8, unique=True))
        addresses = [self.slabs[i].rows.pop(row) for i, row in chosen]
        sizes = [self.slabs[i].row_bytes for i, _ in chosen]
        for slab_id in {i for i, _ in chosen if not self.slabs[i].rows}:
            del self.slabs[slab_id]
        slab_ids = np.array([i for i, _ in chosen], np.int32)
        self.give_back(self.leases.free(slab_ids, np.array(addresses), np.array(sizes)))

    def give_back(self, freed: FreedRanges) -> None:
        self.backend.free(freed.addresses, freed.nbytes)

    @invariant()
    def every_reader_sees_its_generation_or_its_own_edits(self) -> None:
        for held in self.held:
            for array, shown in zip(held.arrays, held.shown, strict=True):
                assert (array == shown).all()

    def teardown(self) -> None:
        self.held.clear()
        for reader in self.readers:
            reader.close()
        self.backend.close()
        gc.collect()
        self.directory.cleanup()


class GenerationsOnHugePages(Generations):
    """Which readers map as a whole until they edit a part."""

    budget_bytes = 4 << 20
    segment_bytes = 2 << 20


Generations.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
GenerationsOnHugePages.TestCase.settings = settings(
    max_examples=15, stateful_step_count=40, deadline=None
)
TestGenerations = Generations.TestCase
TestGenerationsOnHugePages = GenerationsOnHugePages.TestCase
