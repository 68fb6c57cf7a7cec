"""What a shard's journal says is what the shard holds, whatever was done and however often it was
rewritten; and what its successor makes of it."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.recovery.shard_in_process import InProcess, in_process
from tests.waiting import wait_until
from transferqueue.errors import FieldSpecMismatch, RowsGone, RowsLost, StorageFull
from transferqueue.journal.file import read_journal
from transferqueue.memory.allocator import RangeAllocator
from transferqueue.shard.recovery import Recovery

if TYPE_CHECKING:
    import transferqueue as tq
    from transferqueue.shard.store import Store


def cells_of(store: Store) -> dict[str, Any]:
    """Where every cell lies, and of what spec it is."""
    found: dict[str, Any] = {}
    for name, table in store.partitions.items():
        uids = table.uids()
        for field, present, cells in table.columns():
            specs = [str(store.specs[int(spec)]) for spec in store.slabs.spec_id[cells.slabs]]
            places = zip(
                uids[present].tolist(),
                cells.starts.tolist(),
                cells.lengths.tolist(),
                specs,
                strict=True,
            )
            found[f"{name}.{field}"] = list(places)
    return found


def account_of(store: Store) -> dict[str, Any]:
    slabs = store.slabs
    return {
        "rows": {name: table.uids().tolist() for name, table in store.partitions.items()},
        "cells": cells_of(store),
        "leases": {
            lease_id: sorted(np.stack([slabs.put_id[ids], slabs.place[ids]], axis=1).tolist())
            for lease_id, _, ids in store.leases.each()
        },
        "held": store.leases.held_bytes,
        "next": store.next_uid,
        "slabs": len(slabs),
    }


def replayed(running: InProcess) -> tuple[Recovery, RangeAllocator]:
    records = read_journal(running.journal_path)
    assert records is not None
    found = Recovery(0)
    found.replay(records)
    capacity = running.shard._backend.capacity_bytes
    return found, RangeAllocator.from_used(capacity, *found.ranges_in_use())


def is_told(running: InProcess) -> bool:
    found, allocator = replayed(running)
    shard = running.shard
    return (
        account_of(found.store) == account_of(shard._store)
        and allocator.used_bytes == shard._backend.used_bytes
    )


class Worker:
    """Does what clients do, at random."""

    def __init__(self, running: InProcess, seed: int) -> None:
        self._running = running
        self._client = running.client
        self._dice = random.Random(seed)
        self._handles: list[tq.BatchHandle] = []
        self._held: list[Any] = []
        self._fields = 0

    def step(self) -> None:
        does = [self.put, self.put, self.add, self.replace, self.hold, self.let_go, self.clear]
        self._dice.choice(
            [*does, self.clear_all, self.rewrite] if self._dice.random() < 0.3 else does
        )()

    def put(self) -> None:
        rows = self._dice.choice([1, 3, 40])
        width = self._dice.choice([1, 10, 3000])
        columns = {"x": torch.rand(rows, width), "o": [["a", None]] * rows}
        if self._dice.random() < 0.5:
            lengths = [self._dice.randrange(0, 2000) for _ in range(rows)]
            parts = [torch.zeros(n, dtype=torch.uint8) for n in lengths]
            columns["r"] = torch.nested.nested_tensor(parts, layout=torch.jagged)
        try:
            partition = self._dice.choice(["p", "q"])
            handle = self._client.put(columns, partition=partition, tags={"v": 1}, timeout_s=0.05)
            self._handles.append(handle)
        except StorageFull:
            self._held.clear()
            self.clear()

    def _some(self) -> tq.BatchHandle | None:
        if not self._handles:
            return None
        handle = self._dice.choice(self._handles)
        chosen = [i for i in range(len(handle)) if self._dice.random() < 0.6]
        return handle[np.array(chosen, dtype=np.int64)]

    def add(self) -> None:
        handle = self._some()
        self._fields += 1
        if handle is not None:
            name = f"y{self._fields % 4}"
            with contextlib.suppress(RowsGone):
                self._client.put({name: torch.ones(len(handle), 7)}, handle=handle, overwrite=True)

    def replace(self) -> None:
        handle = self._some()
        if handle is not None:
            with contextlib.suppress(RowsGone, StorageFull):
                new = torch.zeros(len(handle), self._dice.choice([2, 5000]))
                self._client.put({"x": new}, handle=handle, overwrite=True, timeout_s=0.05)

    def hold(self) -> None:
        handle = self._some()
        if handle is not None:
            with contextlib.suppress(RowsGone, FieldSpecMismatch):
                self._held.append(self._client.get(handle, fields=["x"]))

    def let_go(self) -> None:
        if self._held:
            self._held.pop(self._dice.randrange(len(self._held)))

    def clear(self) -> None:
        handle = self._some()
        if handle is not None:
            self._client.clear(handle)

    def clear_all(self) -> None:
        self._client.clear(partition="q")

    def rewrite(self) -> None:
        shard = self._running.shard
        shard._journal._is_behind = True  # as after a write that found no room
        shard._journal._next_check_s = 0.0
        wait_until(lambda: not shard._journal._is_behind)

    def close(self) -> None:
        self._held.clear()


@pytest.mark.parametrize("seed", range(6))
def test_a_journal_says_what_the_shard_holds(tmp_path: Path, seed: int) -> None:
    with in_process(tmp_path) as running:
        worker = Worker(running, seed)
        for step in range(120):
            worker.step()
            if step % 10 == 9:
                wait_until(lambda: is_told(running))
        running.restart_shard(1)
        wait_until(lambda: is_told(running))
        for _ in range(30):
            worker.step()
        wait_until(lambda: is_told(running))
        worker.close()


def test_a_journal_stays_as_long_as_what_is_alive(tmp_path: Path) -> None:
    with in_process(tmp_path) as running:
        kept = running.client.put({"x": torch.ones(64, 4)})
        for _ in range(400):
            lengths = [torch.zeros(n % 7 + 1) for n in range(600)]
            handle = running.client.put(
                {"r": torch.nested.nested_tensor(lengths, layout=torch.jagged)}
            )
            running.client.clear(handle)
        assert running.shard._journal.num_bytes < 4 << 20
        wait_until(lambda: running.shard._journal.num_bytes < 1 << 20)
        assert is_told(running)
        assert running.client.get(kept)["x"].sum() == 256


def test_a_successor_never_gives_a_uid_or_a_number_again(tmp_path: Path) -> None:
    with in_process(tmp_path) as running:
        seen: set[int] = set()
        for epoch in range(1, 4):
            handle = running.client.put({"x": torch.ones(5)})
            assert not seen & set(handle.uids.tolist())
            seen |= set(handle.uids.tolist())
            running.client.clear(handle)
            put_ids = running.shard._store._next_put_id
            running.restart_shard(epoch)
            assert running.shard.epoch == epoch
            assert running.shard._store._next_put_id > put_ids


@pytest.mark.parametrize("what", ["missing", "damaged", "foreign"])
def test_without_its_journal_a_shard_begins_anew_and_says_which_rows_are_lost(
    tmp_path: Path, what: str
) -> None:
    with in_process(tmp_path) as running:
        client = running.client
        handle = client.put({"x": torch.rand(8, 50_000)})
        later = client.put({"x": torch.rand(8, 3)})
        held = client.get(handle)["x"]
        before = held.sum().item()

        def spoil() -> None:
            path = Path(running.journal_path)
            data = bytearray(path.read_bytes())
            if what == "missing":
                path.unlink()
            elif what == "damaged":
                data[40] ^= 1
                path.write_bytes(data)
            else:
                path.write_bytes(b"something else")

        running.restart_shard(1, spoil)
        for gone in (handle, later):
            with pytest.raises(RowsLost, match="8 of 8 rows"):
                client.get(gone)
        assert held.sum() == before, "what was mapped stays"
        again = client.put({"x": torch.full((8, 50_000), 7.0)})
        assert not set(again.uids.tolist()) & {*handle.uids.tolist(), *later.uids.tolist()}
        assert client.get(again)["x"].mean() == 7.0
        assert held.sum() == before
        wait_until(lambda: client.status()["partitions"]["default"]["rows"] == 8)
        del held


def test_a_journal_cut_anywhere_in_its_last_record_is_as_if_that_had_not_been(
    tmp_path: Path,
) -> None:
    with in_process(tmp_path) as running:
        first = running.client.put({"x": torch.ones(4, 3)})
        whole = Path(running.journal_path).read_bytes()
        second = running.client.put({"x": torch.zeros(4, 3)})
        longer = Path(running.journal_path).read_bytes()
        assert longer[: len(whole)] == whole
        step = max(1, (len(longer) - len(whole)) // 9)
        for epoch, end in enumerate(range(len(whole), len(longer), step), start=1):
            running.restart_shard(
                epoch, lambda end=end: Path(running.journal_path).write_bytes(longer[:end])
            )
            assert running.client.get(first)["x"].sum() == 12
            with pytest.raises(RowsGone):
                running.client.get(second)
