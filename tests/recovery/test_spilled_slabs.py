"""A shard that is killed while a slab moves: its successor has the slab, whole, in one place."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.recovery.shard_in_process import InProcess, in_process
from tests.recovery.test_shard_journal import Worker, account_of
from tests.waiting import wait_until
from transferqueue.backends.several import ADDRESS_BITS, SeveralBackends
from transferqueue.config import SpillConfig
from transferqueue.errors import ConfigError, RowsLost
from transferqueue.journal.file import read_journal
from transferqueue.memory.allocator import RangeAllocator
from transferqueue.shard import spill
from transferqueue.shard.moving import Move
from transferqueue.shard.recovery import Recovery

if TYPE_CHECKING:
    from pathlib import Path

    from transferqueue.backends.base import Backend

MIB = 1 << 20
DISK = 1 << ADDRESS_BITS


def always(folder: Path) -> SpillConfig:
    """Whatever nobody looks at moves at once."""
    return SpillConfig(directory=str(folder), nbytes=16 * MIB, high=0.0, low=0.0)


def never(folder: Path) -> SpillConfig:
    return SpillConfig(directory=str(folder), nbytes=16 * MIB, high=1.0, low=1.0)


def backend_of(running: InProcess) -> SeveralBackends:
    return running.shard._backend


def disk_of(running: InProcess) -> Backend:
    return backend_of(running).members[1].backend


def is_told(running: InProcess) -> bool:
    """Whether the journal says what the shard holds, in memory and on the disk."""
    records = read_journal(running.journal_path)
    assert records is not None
    backend = backend_of(running)
    found = Recovery(0, backend.extents_at)
    found.replay(records)
    addresses, nbytes = found.ranges_in_use()
    on_disk = addresses >= DISK
    memory = RangeAllocator.from_used(backend.capacity_bytes, addresses[~on_disk], nbytes[~on_disk])
    room = disk_of(running).capacity_bytes
    disk = RangeAllocator.from_used(
        room, addresses[on_disk] - DISK, nbytes[on_disk], whole_pages=True
    )
    return (
        account_of(found.store) == account_of(running.shard._store)
        and memory.used_bytes == backend.used_bytes
        and disk.used_bytes == disk_of(running).used_bytes
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_journal_says_where_every_slab_is(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "MIN_SLAB_BYTES", 1)
    with in_process(tmp_path, spill=always(tmp_path)) as running:
        worker = Worker(running, seed)
        for step in range(100):
            worker.step()
            if step % 10 == 9:
                wait_until(lambda: is_told(running))
        assert running.shard._spill is not None
        assert running.shard._spill.report()["moved"] > 0
        running.restart_shard(1)
        wait_until(lambda: is_told(running))
        for _ in range(30):
            worker.step()
        wait_until(lambda: is_told(running))
        worker.close()


@pytest.mark.parametrize("reached", ["copied", "journaled", "pointed at", "done"])
def test_a_kill_in_the_middle_of_a_move_loses_nothing(tmp_path: Path, reached: str) -> None:
    with in_process(tmp_path, spill=never(tmp_path)) as running:
        data = torch.rand(8, 50_000)
        handle = running.client.put({"x": data, "s": [str(i) for i in range(8)]})
        running.client.clear(handle[2:4])
        kept = np.array([0, 1, 4, 5, 6, 7])

        def move() -> None:
            shard, backend = running.shard, backend_of(running)
            moving = Move(shard._store, shard._store.slabs.movable(0, DISK))
            assert len(moving.slab_ids) == 2
            found = backend.copy_to(1, moving.ranges())
            assert found is not None
            if reached == "copied":
                return
            assert shard._journal.moved(shard._store, moving.slab_ids, *found)
            if reached == "journaled":
                return
            old = moving.to(*found)
            if reached == "done":
                backend.free(*old)

        running.restart_shard(1, last=move)
        backend = backend_of(running)
        assert (disk_of(running).used_bytes > 0) == (reached != "copied")
        assert (backend.used_bytes > 0) == (reached == "copied")
        for epoch in (2, 3):
            got = running.client.get_columns(handle[kept])
            assert torch.equal(got["x"], data[kept])
            assert got["s"].tolist() == [str(i) for i in kept]
            del got
            wait_until(lambda: is_told(running))
            running.restart_shard(epoch)
        running.client.clear(handle)
        wait_until(lambda: backend_of(running).used_bytes == 0)  # the last lease is on its way back
        assert disk_of(running).used_bytes == 0


def test_a_move_that_cannot_be_written_down_does_not_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process(tmp_path, spill=always(tmp_path)) as running:
        journal: Any = running.shard._journal

        def full(record: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            append = journal._file.append
            patch.setattr(
                journal._file, "append", lambda r: full(r) if r.kind == "move" else append(r)
            )
            handle = running.client.put({"x": torch.ones(8, 50_000)})
            assert running.client.get(handle)["x"].sum() == 400_000
            assert disk_of(running).used_bytes == 0
            assert backend_of(running).used_bytes > 0
        wait_until(lambda: backend_of(running).used_bytes == 0)
        assert running.client.get(handle)["x"].sum() == 400_000
        assert is_told(running)


def test_without_the_file_on_the_disk_its_rows_alone_are_lost(tmp_path: Path) -> None:
    with in_process(tmp_path, spill=always(tmp_path)) as running:
        spilled = running.client.put({"x": torch.ones(8, 50_000)})
        wait_until(lambda: backend_of(running).used_bytes == 0)
        running.client.get(spilled)  # the first one imports: the next is to be before the spill
        beside = running.client.put({"x": torch.ones(8, 50_000)})
        held = running.client.get(beside)

        def spoil() -> None:
            for path in tmp_path.glob("*.spill-*"):
                path.unlink()

        running.restart_shard(1, spoil)
        with pytest.raises(RowsLost, match="8 of 8"):
            running.client.get(spilled)
        assert held["x"].sum() == 400_000
        assert running.client.get(beside)["x"].sum() == 400_000
        del held
        again = running.client.put({"x": torch.ones(8, 50_000)})
        wait_until(lambda: backend_of(running).used_bytes == 0)
        assert running.client.get(again)["x"].sum() == 400_000


def test_a_spill_folder_that_is_gone_at_a_restart_is_named_as_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "spilled"
    folder.mkdir()
    with in_process(tmp_path, spill=never(folder)) as running:
        with pytest.raises(ConfigError, match=r"spill_dir .*spilled"):
            running.restart_shard(1, before=lambda: shutil.rmtree(folder))
        folder.mkdir()
        running.restart_shard(2)
