"""Whatever is put, cleared in parts, given out again and taken over by a successor, what is left is
read as it was put, and the disk has back what nobody needs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transferqueue.backends.base import BackendConfig
from transferqueue.backends.disk import DiskBackend
from transferqueue.memory.allocator import PAGE_BYTES

ROW_BYTES = PAGE_BYTES // 2
BUDGET_BYTES = 1 << 20

Slab = dict[int, bytes]
"""Rows that are left, by address."""


class Disk(RuleBasedStateMachine):
    @initialize(keep_s=st.sampled_from([0, 2.0]))
    def begin(self, keep_s: float) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="transferqueue-disk-")
        self.keep_s = keep_s
        self.now_s = 0.0
        self.slabs: list[Slab] = []
        self.backend = self.open(recover=False)

    def open(self, *, recover: bool) -> DiskBackend:
        config = BackendConfig(
            service_id="svc",
            slot=0,
            budget_bytes=BUDGET_BYTES,
            directory=self.folder.name,
            recover=recover,
            options={"keep_s": self.keep_s},
        )
        return DiskBackend.open(config)

    @rule(seed=st.integers(0, 1 << 30), rows=st.lists(st.integers(1, 80), min_size=1, max_size=3))
    def put(self, seed: int, rows: list[int]) -> None:
        sizes = [num_rows * ROW_BYTES for num_rows in rows]
        found = self.backend.reserve(sizes)
        if found is None:
            return
        dice = np.random.default_rng(seed)
        for address, size in zip(found.tolist(), sizes, strict=True):
            data = dice.bytes(size)
            cut = int(dice.integers(0, size))
            self.backend.write(address + cut, memoryview(data)[cut:])
            self.backend.write(address, memoryview(data)[:cut])
            data += bytes(-size % PAGE_BYTES)  # padding is zeros
            starts = range(0, len(data), ROW_BYTES)
            self.slabs.append({address + at: data[at : at + ROW_BYTES] for at in starts})
        self.backend.seal(found, np.array(sizes))

    @precondition(lambda self: self.slabs)
    @rule(
        which=st.integers(0, 100),
        low=st.integers(0, 79),
        many=st.integers(1, 80),
        step=st.integers(1, 3),
    )
    def clear(self, which: int, low: int, many: int, step: int) -> None:
        slab = self.slabs[which % len(self.slabs)]
        gone = sorted(slab)[low % len(slab) :][:many:step]
        self.backend.free(np.array(gone), np.full(len(gone), ROW_BYTES))
        for row in gone:
            del slab[row]
        if not slab:
            self.slabs.remove(slab)

    @rule()
    def wait(self) -> None:
        self.now_s += 1.5
        self.backend.tick(self.now_s)

    @rule()
    def restart(self) -> None:
        self.backend.close(keep=True)
        self.backend = self.open(recover=True)
        rows = sorted(row for slab in self.slabs for row in slab)
        self.backend.adopt(np.array(rows, np.int64), np.full(len(rows), ROW_BYTES))

    @invariant()
    def all_that_is_left_is_right(self) -> None:
        if not hasattr(self, "backend"):
            return
        for slab in self.slabs:
            rows = sorted(slab)
            got = self.backend.read_ranges(np.array(rows), np.full(len(rows), ROW_BYTES))
            assert got.tobytes() == b"".join(slab[row] for row in rows)
        if not self.slabs:
            self.backend.tick(self.now_s + 10)
            assert self.backend.facts()["kept_bytes"] == 0
            assert self.backend.facts()["stored_bytes"] == 0

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            self.backend.close()
            assert list(Path(self.folder.name).iterdir()) == []
            self.folder.cleanup()


TestDisk = Disk.TestCase
TestDisk.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
