"""What a restored service is, and what an interrupted checkpoint leaves."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import transferqueue as tq
from tests.e2e.test_roundtrip import COLUMNS, same
from tests.recovery.shard_in_process import in_process
from tests.waiting import wait_until
from transferqueue.checkpoint import files, folder
from transferqueue.checkpoint.folder import PREFIX, read_manifest
from transferqueue.errors import (
    CheckpointBusy,
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMissing,
    CheckpointTooLarge,
    CheckpointUnreachable,
    LeaseExpired,
    NotReady,
    RowsConsumed,
    RowsGone,
    TransferQueueError,
)
from transferqueue.net.calls import Call as NetCall
from transferqueue.net.calls import raise_first
from transferqueue.net.sync_channel import run_blocking
from transferqueue.service import embedded
from transferqueue.service.joining import join
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayWriter
from transferqueue.wire.put import ColumnPlan, PutPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

MIB = 1 << 20


def restored(path: Path, shards: int = 1, budget_bytes: int = 32 * MIB) -> tq.Service:
    return tq.serve(shards=shards, budget_bytes=budget_bytes, restore=path)


@pytest.fixture
def service() -> Iterator[tq.Service]:
    with tq.serve(shards=2, budget_bytes=32 * MIB) as service:
        yield service


@pytest.fixture
def client(service: tq.Service) -> Iterator[tq.Client]:
    with tq.connect(service.address) as client:
        yield client


# -- what comes back ---------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
def test_every_kind_of_column_comes_back_as_it_was_put(
    service: tq.Service, client: tq.Client, tmp_path: Path, shards: int
) -> None:
    handles = [client.put(COLUMNS, partition="p") for _ in range(4)]
    wide = client.put({"wide": torch.randn(64, 3 * MIB // 64)}, partition="p")  # over both shards
    client.clear(handles.pop(1))
    client.clear(wide[::3])
    before = [client.get_columns(handle) for handle in handles]
    wide_before = client.get_columns(wide[1::3])["wide"]
    info = client.checkpoint(tmp_path)
    assert info.num_rows == 3 * 4 + 64 - 22
    client.close()
    service.close()
    with restored(tmp_path, shards) as again, tq.connect(again.address) as client:
        for handle, columns in zip(handles, before, strict=True):
            got = client.get_columns(handle)
            assert got.keys() == columns.keys()
            assert [n for n in got if not same(got[n], columns[n])] == []
        assert torch.equal(client.get_columns(wide[1::3])["wide"], wide_before)
        with pytest.raises(RowsGone):
            client.get_columns(wide[:1])
        used = sum(shard["used_bytes"] for shard in client.status()["shards"])
        assert used < 1.1 * info.num_bytes + 64 * 1024


def test_partitions_tags_acks_deliveries_and_dead_letters_come_back(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    client.create_partition(
        "train", tasks=["a", "b"], retention="consumed", max_deliveries=2, max_rows=100
    )
    handle = client.put(
        {"x": torch.arange(10)},
        partition="train",
        tags={"n": np.arange(10), "name": [f"row {n}" for n in range(10)], "even": [True] * 10},
    )
    client.wait(handle)
    client.claim(task="a", partition="train", fields=["x"], handle=handle[:2]).ack()
    for _ in range(2):
        client.claim(task="a", partition="train", fields=["x"], handle=handle[2:4]).give_back()
    out = client.claim(task="a", partition="train", fields=["x"], handle=handle[4:7], lease_s=600)
    client.claim(task="b", partition="train", fields=["x"], handle=handle[9:]).give_back()
    client.claim(task="b", partition="train", fields=["x"], handle=handle[9:], lease_s=600)
    client.publish("policy", {"w": torch.ones(3)}, version=7)
    client.checkpoint(tmp_path)
    with restored(tmp_path, 3) as again, tq.connect(again.address) as client:
        assert client.select("train", where=tq.tag("n") >= 8).uids.tolist() == (
            handle.uids[8:].tolist()
        )
        assert len(client.select("train", where=tq.tag("name") == "row 3")) == 1
        status = client.status()["partitions"]["train"]["tasks"]
        assert status["a"]["acked"] == 2
        assert status["a"]["claimed"] == status["b"]["claimed"] == 0
        assert client.dead_letters(task="a", partition="train").uids.tolist() == (
            handle.uids[2:4].tolist()
        )
        with pytest.raises(RowsConsumed):
            client.claim(task="a", partition="train", fields=["x"], handle=handle[:1])
        again_claim = client.claim(task="a", partition="train", fields=["x"], handle=handle[4:7])
        assert again_claim.deliveries.tolist() == [2, 2, 2]
        # Delivered twice, which is the limit, but neither failed nor acked: claimed once more.
        last = client.claim(task="b", partition="train", fields=["x"], handle=handle[9:])
        assert last.deliveries.tolist() == [3]
        with pytest.raises(TransferQueueError, match="over the limit 100"):
            client.put({"x": torch.arange(91)}, partition="train", timeout_s=0.3)
        weights = client.fetch("policy")
        assert weights.version == 7
        assert torch.equal(weights.state_dict["w"], torch.ones(3))
    with pytest.raises(TransferQueueError):
        out.ack()
        out.ack()


def test_a_claim_of_the_old_service_is_not_one_of_the_restored(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    client.put({"x": torch.arange(4)}, partition="p")
    old = client.claim(task="t", partition="p", fields=["x"], n=2, lease_s=600)
    client.checkpoint(tmp_path)
    late = client.claim(task="t", partition="p", fields=["x"], n=2, lease_s=600)
    with restored(tmp_path) as again, tq.connect(again.address) as other:
        mine = other.claim(task="t", partition="p", fields=["x"], n=4)
        control = other._ops.control
        with pytest.raises(LeaseExpired):
            other._run(control.ack(old.claim_id))
        with pytest.raises(TransferQueueError, match="no claim"):
            other._run(control.ack(late.claim_id))
        mine.ack()


def test_handles_stay_valid_and_no_uid_is_given_twice(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    saved = client.put({"x": torch.arange(4)}, partition="p")
    kept = saved.to_bytes()
    client.checkpoint(tmp_path / "one")
    client.checkpoint(tmp_path / "two")
    later = client.put({"x": torch.arange(4)}, partition="p")
    given = {*saved.uids.tolist(), *later.uids.tolist()}
    for source in ("one", "two", "one"):
        with restored(tmp_path / source, 2) as again, tq.connect(again.address) as other:
            old = tq.BatchHandle.from_bytes(kept)
            with pytest.raises(RowsGone):
                other.get_columns(later)
            new = other.put({"x": torch.arange(4, 6)}, partition="p")
            both = tq.BatchHandle.concat([old, new])
            assert other.get_columns(both)["x"].tolist() == [0, 1, 2, 3, 4, 5]
            more = other.put({"y": torch.ones(4)}, handle=old)
            assert other.get_columns(more)["y"].tolist() == [1.0] * 4
            assert not given & set(new.uids.tolist())
            given.update(new.uids.tolist())
            other.checkpoint(tmp_path / "next")
            after = other.put({"x": torch.arange(2)}, partition="p")
            given.update(after.uids.tolist())
        with restored(tmp_path / "next", 1) as third, tq.connect(third.address) as other:
            assert other.get_columns(both)["x"].tolist() == [0, 1, 2, 3, 4, 5]
            newest = other.put({"x": torch.arange(2)}, partition="p")
            assert not given & set(newest.uids.tolist())
            given.update(newest.uids.tolist())


def test_a_restored_service_survives_kills_like_any_other(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    handles = [client.put({"x": torch.full((8, 2000), n)}, partition="p") for n in range(6)]
    client.create_partition("q", tasks=["t"])
    client.put({"x": torch.arange(6)}, partition="q")
    client.checkpoint(tmp_path)
    with restored(tmp_path, 3) as again, tq.connect(again.address) as other:
        other.claim(task="t", partition="q", fields=["x"], n=2).ack()
        other.clear(handles[0])
        new = other.put({"x": torch.full((2, 2000), 9)}, partition="p")
        for name, pid in again.pids.items():
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda n=name, p=pid: again.pids[n] != p, timeout_s=20)  # type: ignore[misc]
        for n, handle in enumerate(handles[1:], start=1):
            assert (other.get_columns(handle)["x"] == n).all()
        assert (other.get_columns(new)["x"] == 9).all()
        with pytest.raises(RowsGone):
            other.get_columns(handles[0])
        assert len(other.claim(task="t", partition="q", fields=["x"], n=4).handle) == 4
        with pytest.raises(NotReady):
            other.claim(task="t", partition="q", fields=["x"], n=1, timeout_s=0.2)


def test_an_empty_service_and_one_without_restarts_can_be_saved(tmp_path: Path) -> None:
    with (
        tq.serve(budget_bytes=MIB * 4, restart=False) as service,
        tq.connect(service.address) as client,
    ):
        assert client.checkpoint(tmp_path).num_rows == 0
    with (
        tq.serve(budget_bytes=4 * MIB, restart=False, restore=tmp_path) as service,
        tq.connect(service.address) as client,
    ):
        assert client.get_columns(client.put({"x": [1]}))["x"].tolist() == [1]


async def test_the_asynchronous_client_does_it_too(service: tq.Service, tmp_path: Path) -> None:
    client = await tq.connect_async(service.address)
    await client.put({"x": torch.arange(3)})
    assert (await client.checkpoint(tmp_path)).num_rows == 3
    await client.close()


# -- what is refused ---------------------------------------------------------------------------


def test_a_budget_that_is_too_small_is_refused_at_once_with_both_numbers(
    service: tq.Service, client: tq.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put({"x": torch.ones(8, MIB // 8)})  # 4 MiB
    client.checkpoint(tmp_path)
    started: list[object] = []
    monkeypatch.setattr(embedded, "Service", lambda *arguments: started.append(arguments))
    with pytest.raises(CheckpointTooLarge, match=r"takes 4,194,304 bytes.* is 2,097,152"):
        tq.serve(shards=2, budget_bytes=MIB, restore=tmp_path)
    assert not started


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing):
        restored(tmp_path)


@pytest.mark.parametrize("how", ["a flipped bit", "cut short", "missing"])
@pytest.mark.parametrize("which", ["manifest", "coordinator", "shard-1.rows", "shard-1.cells"])
def test_a_damaged_file_is_refused_by_name(
    service: tq.Service, client: tq.Client, tmp_path: Path, which: str, how: str
) -> None:
    for n in range(8):
        client.put({"x": torch.full((4, 3000), n)})
    client.checkpoint(tmp_path)
    cut = tmp_path / read_manifest(str(tmp_path)).folder
    path = tmp_path / which if which == "manifest" else cut / which
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "cut short":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    expected = CheckpointMissing if (which, how) == ("manifest", "missing") else CheckpointDamaged
    with pytest.raises(expected, match=which if expected is CheckpointDamaged else "manifest"):
        restored(tmp_path, 3)


def test_a_host_that_does_not_see_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_process(tmp_path) as running:
        handle = running.client.put({"x": torch.arange(3)})
        # On another host the path leads to another folder, or to none.
        monkeypatch.setattr(
            "transferqueue.shard.checkpoints.check_token",
            lambda path, token, host: folder.check_token(f"{path}-elsewhere", token, host),
        )
        monkeypatch.setattr("platform.node", lambda: "node-17")
        with pytest.raises(CheckpointUnreachable, match="host node-17 does not see"):
            running.client.checkpoint(tmp_path / "c")
        monkeypatch.undo()
        assert os.listdir(tmp_path / "c") == ["lock"]
        running.client.put({"y": torch.arange(3)}, handle=handle)
        assert running.client.checkpoint(tmp_path / "c").num_rows == 3


# -- interrupted -------------------------------------------------------------------------------


class Interrupted:
    """A good checkpoint, and a second one that is stopped in the middle: one shard does not run."""

    def __init__(self, service: tq.Service, client: tq.Client, path: Path) -> None:
        self.service, self.client, self.path = service, client, path
        self.handles = [client.put({"x": torch.full((8, 3000), n)}) for n in range(6)]
        client.checkpoint(path)
        self.good = read_manifest(str(path))
        self.later = client.put({"x": torch.full((8, 3000), 7)})
        self.stopped = service.pids["shard-1"]

    def begin(self) -> None:
        os.kill(self.stopped, signal.SIGSTOP)

    def wait_for_folder(self) -> None:
        wait_until(lambda: len(self.cuts()) == 2, timeout_s=20)

    def cuts(self) -> list[str]:
        return [name for name in os.listdir(self.path) if name.startswith(PREFIX)]

    def resume(self) -> None:
        os.kill(self.stopped, signal.SIGCONT)

    def check_good(self) -> None:
        """The last good one is intact, and holds what it did."""
        assert read_manifest(str(self.path)) == self.good
        copy = self.path.with_name("copy")
        shutil.copytree(self.path, copy)
        with restored(copy, 3) as again, tq.connect(again.address) as other:
            for n, handle in enumerate(self.handles):
                assert (other.get_columns(handle)["x"] == n).all()
            with pytest.raises(RowsGone):
                other.get_columns(self.later)

    def check_next(self, client: tq.Client) -> None:
        """The service works on; the next one is good, and clears away what was left."""
        more = client.put({"x": torch.full((8, 3000), 8)})
        client.checkpoint(self.path)
        assert self.cuts() == [read_manifest(str(self.path)).folder]
        with restored(self.path, 1) as again, tq.connect(again.address) as other:
            for n, handle in enumerate([*self.handles, self.later, more]):
                wanted = n if n < 6 else n + 1
                assert (other.get_columns(handle)["x"] == wanted).all()


@pytest.fixture
def interrupted(service: tq.Service, client: tq.Client, tmp_path: Path) -> Iterator[Interrupted]:
    made = Interrupted(service, client, tmp_path / "c")
    made.begin()
    yield made
    try:
        made.resume()
    except ProcessLookupError:
        return  # it was killed


class Call(threading.Thread):
    """A checkpoint in a thread."""

    def __init__(self, address: str, path: Path, **more: Any) -> None:
        super().__init__()
        self.error: TransferQueueError | None = None
        self._arguments = (address, path, more)
        self.start()

    def run(self) -> None:
        address, path, more = self._arguments
        with tq.connect(address) as client:
            try:
                client.checkpoint(path, **more)
            except TransferQueueError as error:
                self.error = error


def test_a_killed_shard_leaves_the_last_checkpoint(interrupted: Interrupted) -> None:
    call = Call(interrupted.service.address, interrupted.path)
    interrupted.wait_for_folder()
    with pytest.raises(CheckpointBusy):
        interrupted.client.checkpoint(interrupted.path)
    os.kill(interrupted.stopped, signal.SIGKILL)
    call.join(30)
    assert isinstance(call.error, CheckpointFailed)
    assert "shard 1: was started again" in str(call.error)
    interrupted.check_good()
    interrupted.check_next(interrupted.client)


def test_a_killed_coordinator_leaves_the_last_checkpoint_and_its_successor_makes_the_next(
    interrupted: Interrupted,
) -> None:
    call = Call(interrupted.service.address, interrupted.path)
    interrupted.wait_for_folder()
    os.kill(interrupted.service.pids["coordinator"], signal.SIGKILL)
    interrupted.check_good()
    interrupted.resume()
    call.join(60)
    assert call.error is None  # the client asked again
    assert read_manifest(str(interrupted.path)) != interrupted.good
    interrupted.check_next(interrupted.client)


def test_a_killed_client_changes_nothing(interrupted: Interrupted) -> None:
    program = (
        "import sys, transferqueue as tq\n"
        "with tq.connect(sys.argv[1]) as client: client.checkpoint(sys.argv[2])\n"
    )
    command = [sys.executable, "-c", program, interrupted.service.address, str(interrupted.path)]
    process = subprocess.Popen(command)
    interrupted.wait_for_folder()
    process.kill()
    process.wait()
    interrupted.check_good()
    interrupted.resume()
    wait_until(lambda: read_manifest(str(interrupted.path)) != interrupted.good, timeout_s=20)
    wait_until(lambda: _is_free(interrupted.path), timeout_s=20)
    interrupted.check_next(interrupted.client)


def test_a_deadline_that_passes_leaves_the_last_checkpoint(interrupted: Interrupted) -> None:
    call = Call(interrupted.service.address, interrupted.path, timeout_s=1.0)
    call.join(20)
    assert isinstance(call.error, TransferQueueError)
    interrupted.resume()
    interrupted.check_good()
    interrupted.check_next(interrupted.client)


def test_puts_go_on_when_the_coordinator_is_killed_while_shards_are_held(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    client.put({"x": torch.arange(3)})
    os.kill(service.pids["shard-1"], signal.SIGSTOP)
    call = Call(service.address, tmp_path / "c")
    wait_until(lambda: (tmp_path / "c").exists(), timeout_s=20)
    os.kill(service.pids["coordinator"], signal.SIGKILL)
    os.kill(service.pids["shard-1"], signal.SIGCONT)
    start_s = time.monotonic()
    with tq.connect(service.address, transport="ipc") as other:
        for _ in range(4):  # to each of the shards
            assert len(other.put({"x": torch.arange(3)})) == 3
    assert time.monotonic() - start_s < 20
    call.join(60)
    assert call.error is None


def test_a_full_disk_at_any_write_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th write or sync of a checkpoint fails, for every n there is."""
    path = tmp_path / "c"
    with in_process(tmp_path) as running:
        handle = running.client.put({"x": torch.arange(8000).reshape(8, 1000)}, tags={"n": 1})
        running.client.wait(handle)
        running.client.checkpoint(path)
        good = read_manifest(str(path))
        num_failed, reasons = 0, set()
        while True:
            failing = _FailAt(num_failed)
            with monkeypatch.context() as patched:
                for module in (files, folder):
                    patched.setattr(module, "write_all", failing.instead_of(files.write_all))
                patched.setattr(os, "fsync", failing.instead_of(os.fsync))
                patched.setattr(os, "rename", failing.instead_of(os.rename))
                patched.setattr(
                    "transferqueue.checkpoint.cells.write_all",
                    failing.instead_of(files.write_all),
                )
                try:
                    running.client.checkpoint(path)
                    break
                except CheckpointFailed as error:
                    reasons.add(error.args[2])
            is_new = read_manifest(str(path)) != good
            assert not is_new or failing.name == "fsync"  # of the folder, after the rename
            good = read_manifest(str(path))
            num_failed += 1
        assert num_failed > 12
        assert reasons == {"[Errno 28] no space left on device"}
        assert read_manifest(str(path)) != good
        assert len([name for name in os.listdir(path) if name.startswith(PREFIX)]) == 1
        assert running.client.get_columns(handle)["x"].tolist()[7][-1] == 7999
        wait_until(lambda: len(running.shard._store.leases) == 0)


class _FailAt:
    """All calls together: the n-th one fails, as on a full disk, and so do those after it."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._lock = threading.Lock()
        self.name = ""

    def instead_of(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with self._lock:
                self._left -= 1
                if self._left < 0:
                    self.name = self.name or real.__name__
                    raise OSError(errno.ENOSPC, "no space left on device")
            return real(*arguments)

        return call


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("may not mount a file system here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_disk_that_is_really_full_leaves_the_last_checkpoint(
    service: tq.Service, client: tq.Client, small_disk: Path
) -> None:
    small = client.put({"x": torch.arange(1000)})
    client.checkpoint(small_disk / "c")
    good = read_manifest(str(small_disk / "c"))
    large = client.put({"x": torch.ones(8, 1 << 18)})  # 8 MiB
    with pytest.raises(CheckpointFailed, match="No space left"):
        client.checkpoint(small_disk / "c")
    assert read_manifest(str(small_disk / "c")) == good
    client.clear(large)
    client.checkpoint(small_disk / "c")
    with restored(small_disk / "c") as again, tq.connect(again.address) as other:
        assert other.get_columns(small)["x"].tolist() == list(range(1000))


def test_bytes_that_are_cleared_while_they_are_written_are_in_and_come_free_after(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    handle = client.put({"x": torch.arange(4 * MIB).reshape(8, -1)})  # 32 MiB over both shards
    first = Call(service.address, tmp_path / "c")
    wait_until(lambda: any(name.startswith(PREFIX) for name in _listed(tmp_path / "c")))
    client.clear(handle)
    first.join(60)
    assert first.error is None
    wait_until(lambda: sum(s["used_bytes"] for s in client.status()["shards"]) == 0)
    with restored(tmp_path / "c", 2) as again, tq.connect(again.address) as other:
        try:  # before the clear or after it, but not in between
            assert torch.equal(other.get_columns(handle)["x"], torch.arange(4 * MIB).reshape(8, -1))
        except RowsGone:
            assert other.status()["partitions"].get("default", {"rows": 0})["rows"] == 0


def _is_free(path: Path) -> bool:
    """Whether nobody writes a checkpoint there."""
    try:
        folder.CheckpointWriter(str(path)).close()
    except CheckpointBusy:
        return False
    return True


def _listed(path: Path) -> list[str]:
    return os.listdir(path) if path.exists() else []


# -- a put over several shards -------------------------------------------------------------------


class SplitPut:
    """The parts of one put, sent and committed one by one, as no client does that lives."""

    def __init__(self, client: tq.Client, handle: tq.BatchHandle | None = None) -> None:
        self._session = client._ops._session
        self._channel = client._channels
        slots = self._session.slots
        uids = (
            [None] * 2 if handle is None else [handle.uids[handle.uids >> 48 == s] for s in slots]
        )
        self._put_ids = {
            slot: int(self._ask(slot, ops.PUT, *self._reserve(mine)).body["put_id"])
            for slot, mine in zip(slots, uids, strict=True)
        }

    def _reserve(self, uids: np.ndarray | None) -> tuple[dict[str, Any], list[Any]]:
        rows = np.full((4 if uids is None else len(uids), 2), 7.0, np.float32)
        column = ColumnPlan(
            name="x" if uids is None else "y",
            spec=tq.FieldSpec(dtype="float32", shape=(2,)),
            lengths=None,
            nbytes=rows.nbytes,
        )
        plan = PutPlan(
            partition="p", num_rows=len(rows), uids=uids, columns=[column], part_of="one put"
        )
        arrays = ArrayWriter()
        body = plan.write(arrays)
        payload = arrays.add_bytes(rows.reshape(-1).view(np.uint8))
        return {**body, "payload": payload, "writer": None, "commit": False}, arrays.frames

    def commit(self, slot: int) -> Any:
        return self._ask(slot, ops.COMMIT, {"put_id": self._put_ids[slot]}, [])

    def abort(self, slot: int) -> None:
        self._ask(slot, ops.ABORT, {"put_id": self._put_ids[slot]}, [])

    def _ask(self, slot: int, op: str, body: dict[str, Any], frames: list[Any]) -> Any:
        body = {**body, "timeout_s": 60.0}
        call = NetCall(endpoint=self._session.shard(slot).endpoint, op=op, body=body, frames=frames)
        return raise_first(run_blocking(self._channel.exchange([call], timeout_s=60)))[0]


@pytest.mark.parametrize("end", ["is never sent", "is given up"])
def test_a_put_of_which_only_one_part_was_committed_is_left_out(
    service: tq.Service, client: tq.Client, tmp_path: Path, end: str
) -> None:
    before = client.put({"x": torch.ones(3)}, partition="p", tags={"n": 1})
    put = SplitPut(client)
    put.commit(0)
    if end == "is given up":
        put.abort(1)
    assert client.checkpoint(tmp_path).num_rows == 3
    wait_until(lambda: len(client.select("p")) == 7)  # the service itself has the half of it
    with restored(tmp_path) as again, tq.connect(again.address) as other:
        assert other.select("p").uids.tolist() == before.uids.tolist()
        assert other.get_columns(before)["x"].tolist() == [1.0] * 3


def test_fields_of_which_only_one_part_was_committed_are_left_out(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    wide = client.put({"wide": torch.randn(8, 5 * MIB // 8)}, partition="p")  # over both shards
    assert len(set((wide.uids >> 48).tolist())) == 2
    put = SplitPut(client, wide)
    put.commit(1)
    client.checkpoint(tmp_path)
    with restored(tmp_path, 3) as again, tq.connect(again.address) as other:
        got = other.get_columns(wide, optional=["y"])
        assert "y" not in got
        assert len(got["wide"]) == 8


def test_a_part_that_is_on_its_way_is_waited_for(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    put = SplitPut(client)
    put.commit(0)
    os.kill(service.pids["shard-0"], signal.SIGSTOP)  # so that the commit comes in the middle
    call = Call(service.address, tmp_path)
    wait_until(lambda: any(name.startswith(PREFIX) for name in _listed(tmp_path)))
    late = threading.Thread(target=put.commit, args=(1,))
    os.kill(service.pids["shard-0"], signal.SIGCONT)
    late.start()
    late.join(30)
    call.join(30)
    assert call.error is None
    with restored(tmp_path) as again, tq.connect(again.address) as other:
        assert len(other.select("p")) in (0, 8)
    put_again = SplitPut(client)
    for slot in (0, 1):
        put_again.commit(slot)
    client.checkpoint(tmp_path)
    with restored(tmp_path) as again, tq.connect(again.address) as other:
        assert len(other.select("p")) == 16


def test_a_shard_serves_while_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def slow_disk(fd: int, view: memoryview) -> None:
        reached.set()
        assert go_on.wait(30)
        files.write_all(fd, view)

    monkeypatch.setattr("transferqueue.checkpoint.cells.write_all", slow_disk)
    with in_process(tmp_path) as running:
        client = running.client
        rows = torch.arange(4 * 50_000.0).reshape(4, -1)
        handle = client.put({"x": rows}, partition="p")
        gone = client.put({"x": rows}, partition="p")
        client.wait(gone)
        call = Call(running.coordinator.endpoints[0], tmp_path / "c")
        assert reached.wait(10)
        late = client.put({"x": rows + 1}, partition="p")
        assert torch.equal(client.get_columns(late)["x"], rows + 1)
        client.clear(gone)
        client.put({"y": torch.ones(4)}, handle=handle)
        client.claim(task="t", partition="p", fields=["y"], n=4).ack()
        # What is being written is not given to others, whatever was cleared.
        for n in range(8):
            client.clear(client.put({"x": torch.full((4, 50_000), float(n))}, partition="q"))
        assert client.get_columns(handle).keys() == {"x"}
        go_on.set()
        call.join(30)
        assert call.error is None
    with restored(tmp_path / "c") as again, tq.connect(again.address) as other:
        for saved in (handle, gone):
            assert torch.equal(other.get_columns(saved)["x"], rows)
        assert len(other.select("p", fields=["x"])) == 8
        assert len(other.select("p", fields=["y"])) == 0


def test_a_shard_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    written: list[bytes] = []

    def hanging_disk(fd: int, view: memoryview) -> None:
        reached.set()
        assert go_on.wait(60)
        written.append(bytes(view[:8]))
        files.write_all(fd, view)

    monkeypatch.setattr("transferqueue.checkpoint.cells.write_all", hanging_disk)
    with in_process(tmp_path) as running:
        client = running.client
        gone = client.put({"x": torch.full((4, 50_000), 1.0)}, partition="p")
        client.wait(gone)
        call = Call(running.coordinator.endpoints[0], tmp_path / "c", timeout_s=1.0)
        assert reached.wait(10)
        client.clear(gone)
        call.join(20)
        assert isinstance(call.error, TransferQueueError)
        for n in range(8):  # served, and not where the thread still looks
            handle = client.put({"x": torch.full((4, 50_000), 2.0 + n)}, partition="q", timeout_s=5)
            assert (client.get_columns(handle, timeout_s=5)["x"] == 2 + n).all()
            client.clear(handle)
        go_on.set()
        wait_until(lambda: client.status()["shards"][0]["used_bytes"] == 0, 10)
        assert written == [np.full(2, 1.0, np.float32).tobytes()]


def test_a_shard_that_joins_while_it_is_made_ends_it_and_the_next_one_has_its_rows(
    interrupted: Interrupted,
) -> None:
    call = Call(interrupted.service.address, interrupted.path)
    interrupted.wait_for_folder()
    joined: list[Any] = []  # returns when the status of every shard is known, the stopped one's too
    joining = threading.Thread(
        target=lambda: joined.append(join(interrupted.service.address, budget_bytes=32 * MIB))
    )
    joining.start()
    call.join(30)
    interrupted.resume()
    joining.join(30)
    with joined[0]:
        assert isinstance(call.error, CheckpointFailed)
        assert f"shard {joined[0].slots[0]}: joined meanwhile" in str(call.error)
        assert read_manifest(str(interrupted.path)) == interrupted.good
        with tq.connect(interrupted.service.address) as client:
            more = [client.put({"x": torch.full((8, 3000), 100 + n)}) for n in range(6)]
            assert len({uid >> 48 for handle in more for uid in handle.uids.tolist()}) == 3
            client.checkpoint(interrupted.path)
        with restored(interrupted.path, 2) as again, tq.connect(again.address) as other:
            for n, handle in enumerate(more):
                assert (other.get_columns(handle)["x"] == 100 + n).all()


def test_a_shard_that_is_not_back_yet_fails_a_checkpoint_and_the_last_one_stays(
    service: tq.Service, client: tq.Client, tmp_path: Path
) -> None:
    """A new coordinator does not know that shard yet, and must not take it for one without rows."""
    for _ in range(4):
        client.put({"x": torch.arange(8)})
    before = client.checkpoint(tmp_path / "saved")
    os.kill(service.pids["shard-1"], signal.SIGSTOP)
    try:
        os.kill(service.pids["coordinator"], signal.SIGKILL)
        with pytest.raises(CheckpointFailed, match=r"shard 1.*not come"):
            client.checkpoint(tmp_path / "saved", timeout_s=60)
    finally:
        os.kill(service.pids["shard-1"], signal.SIGCONT)
    assert read_manifest(tmp_path / "saved").num_rows == before.num_rows == 32


def test_a_hold_ends_by_itself_when_the_order_to_cut_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transferqueue.shard.hold.LIMIT_S", 0.5)
    with in_process(tmp_path) as running:
        handle = running.client.put({"x": torch.arange(3)}, partition="p")
        order = running.coordinator._links.order_step

        def lossy(slot: int, body: dict[str, Any]) -> None:
            if body["step"] != ops.CUT:
                order(slot, body)

        running.coordinator._links.order_step = lossy  # type: ignore[method-assign]
        call = Call(running.coordinator.endpoints[0], tmp_path / "c")
        wait_until(lambda: running.shard._hold.is_on)
        more = running.client.put({"y": torch.ones(3)}, handle=handle)  # waits for its end
        call.join(20)
        assert isinstance(call.error, CheckpointFailed)
        assert "not ordered in time" in str(call.error)
        assert running.client.get_columns(more).keys() == {"x", "y"}
        running.coordinator._links.order_step = order  # type: ignore[method-assign]
        assert running.client.checkpoint(tmp_path / "c").num_rows == 3
