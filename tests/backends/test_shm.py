"""The shared-memory arena: its files, its room, and what is done with what dead services left."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from transferqueue.backends import arena_owner
from transferqueue.backends.arena_address import ArenaAddress
from transferqueue.backends.arena_owner import LockRecord, remove_leftovers
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.segments import STEP_BYTES
from transferqueue.backends.shm import ShmBackend
from transferqueue.errors import ArenaTooSmall, ConfigError, Malformed
from transferqueue.process_id import ProcessId
from transferqueue.testing.leaks import no_leaks

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_leaks(tmp_path: Path) -> Iterator[None]:
    with no_leaks(str(tmp_path)):
        yield


def config(directory: Path, **changes: Any) -> BackendConfig:
    return replace(
        BackendConfig(service_id="svc", slot=0, budget_bytes=MIB, directory=str(directory)),
        **changes,
    )


def put(backend: ShmBackend, data: bytes) -> int:
    addresses = backend.reserve([len(data)])
    assert addresses is not None
    backend.write(int(addresses[0]), memoryview(data))
    return int(addresses[0])


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


LIVE_UNTIL_KILLED = """
import sys
from transferqueue.backends.base import BackendConfig
from transferqueue.backends.shm import ShmBackend
directory, service_id, guardian = sys.argv[1:]
backend = ShmBackend.open(BackendConfig(
    service_id=service_id, slot=0, budget_bytes=1 << 20, directory=directory,
    guardian_pid=int(guardian) or None))
address = int(backend.reserve([5])[0])
backend.write(address, memoryview(b"bytes"))
print(address, flush=True)
sys.stdin.read()
"""


@contextmanager
def other_process(
    directory: Path, service_id: str = "other", guardian_pid: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """A process that owns an arena with ``b"bytes"`` at address 0."""
    child = subprocess.Popen(
        [sys.executable, "-c", LIVE_UNTIL_KILLED, str(directory), service_id, str(guardian_pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        yield child
        child.kill()


def test_files_are_private_and_named_for_the_service_and_slot(tmp_path: Path) -> None:
    with ShmBackend.open(config(tmp_path, slot=7)) as backend:
        assert len(names(tmp_path)) == 1  # no segment before there is something to hold
        put(backend, b"x")
        assert len(names(tmp_path)) == 2
        for path in tmp_path.iterdir():
            assert path.name.startswith("transferqueue-svc-7-")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        other = ShmBackend.open(config(tmp_path, slot=8))
        assert other.address.token != backend.address.token
        other.close()
    assert names(tmp_path) == []


def test_segments_are_made_as_the_arena_fills(tmp_path: Path) -> None:
    wanted = config(tmp_path, budget_bytes=3 * MIB, options={"segment_bytes": MIB})
    with ShmBackend.open(wanted) as backend:
        for count in (1, 2, 3):
            put(backend, bytes(MIB - 4096))
            assert len(list(tmp_path.glob("*.0000*"))) == count
        assert backend.facts()["backed_bytes"] == 3 * MIB


def test_room_taken_is_at_most_one_step_more_than_used(tmp_path: Path) -> None:
    with ShmBackend.open(config(tmp_path, budget_bytes=64 * MIB)) as backend:
        put(backend, bytes(MIB))
        blocks = sum(path.stat().st_blocks * 512 for path in tmp_path.glob("*.0000*"))
        assert backend.facts()["backed_bytes"] == STEP_BYTES
        assert MIB <= blocks <= STEP_BYTES + 4096 * 16


def test_prefault_takes_all_room_in_the_background(tmp_path: Path) -> None:
    wanted = config(tmp_path, budget_bytes=40 * MIB, options={"prefault": True})
    with ShmBackend.open(wanted) as backend:
        address = put(backend, b"written meanwhile")
        deadline = time.monotonic() + 20
        while backend.facts()["backed_bytes"] < 40 * MIB:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert bytes(backend.readable(address, 17)) == b"written meanwhile"


def test_a_directory_that_cannot_hold_the_budget_is_refused_with_the_numbers(
    tmp_path: Path,
) -> None:
    with pytest.raises(ArenaTooSmall) as caught:
        ShmBackend.open(config(tmp_path, budget_bytes=1 << 50))
    directory, needed, available, *_ = caught.value.args
    assert (directory, needed) == (str(tmp_path), 1 << 50)
    assert 0 < available < 1 << 50
    assert "arena_dir" in str(caught.value)
    assert names(tmp_path) == []


def test_room_promised_to_another_arena_is_not_promised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    room = 10 * MIB // real.f_frsize
    small = os.statvfs_result((*real[:2], room, room, room, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    with ShmBackend.open(config(tmp_path, budget_bytes=6 * MIB)):
        with pytest.raises(ArenaTooSmall) as caught:
            ShmBackend.open(config(tmp_path, slot=1, budget_bytes=6 * MIB))
        assert caught.value.args[2:4] == (4 * MIB, 10 * MIB)
        assert "(12 MiB in all)" in str(caught.value), "both of them"
        ShmBackend.open(config(tmp_path, slot=1, budget_bytes=4 * MIB)).close()


def test_a_directory_that_cannot_be_written_is_a_setting_to_change(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"arena_dir .*missing"):
        ShmBackend.open(config(tmp_path / "missing"))


@pytest.mark.parametrize(
    "bad",
    [
        {"service_id": "../up"},
        {"service_id": ""},
        {"options": {"segment_bytes": 1000}},
        {"options": {"segment_size": 1}},
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ShmBackend.open(config(tmp_path, **bad))
    with pytest.raises(ConfigError):
        BackendConfig(service_id="a", slot=-1, budget_bytes=1)
    with pytest.raises(ConfigError):
        BackendConfig(service_id="a", slot=0, budget_bytes=0)


def test_a_full_directory_makes_puts_wait_and_breaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ShmBackend.open(config(tmp_path, budget_bytes=64 * MIB)) as backend:
        held = put(backend, b"held")
        full = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(full))
            used = backend.used_bytes
            assert backend.reserve([STEP_BYTES, STEP_BYTES]) is None
            assert backend.used_bytes == used
            assert backend.reserve([MIB]) is not None  # what is backed already can be used
        assert backend.reserve([STEP_BYTES, STEP_BYTES]) is not None
        assert bytes(backend.readable(held, 4)) == b"held"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs")
def test_a_really_full_file_system_is_noticed_at_reserve_not_by_a_signal(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(mounted)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        mounted.rmdir()
        pytest.skip("may not mount")
    try:
        with pytest.raises(ArenaTooSmall):
            ShmBackend.open(config(mounted, budget_bytes=41 * MIB))
        with ShmBackend.open(config(mounted, budget_bytes=36 * MIB)) as backend:
            (mounted / "someone else's").write_bytes(bytes(20 * MIB))
            address = put(backend, bytes(16 * MIB))
            assert backend.reserve([8 * MIB]) is None
            (mounted / "someone else's").unlink()
            assert backend.reserve([8 * MIB]) is not None
            assert not any(backend.readable(address, 16 * MIB)[:: 1 << 16])
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
        mounted.rmdir()


def test_what_a_killed_service_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with other_process(tmp_path) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert len(names(tmp_path)) == 2
    with ShmBackend.open(config(tmp_path)) as backend:
        assert names(tmp_path) == [Path(backend.address.lock_path).name]


def test_a_live_services_arena_is_never_removed(tmp_path: Path) -> None:
    with other_process(tmp_path) as child:
        files = names(tmp_path)
        with ShmBackend.open(config(tmp_path)):
            pass
        # Not even one that says so of itself: same service, same slot.
        with ShmBackend.open(config(tmp_path, service_id="other")):
            pass
        assert names(tmp_path) == files
        child.kill()
        child.wait()
    assert len(remove_leftovers(str(tmp_path))) == 1


def test_a_killed_shards_bytes_are_taken_over_by_its_successor(tmp_path: Path) -> None:
    with other_process(tmp_path) as child:
        child.kill()
        child.wait()
    with ShmBackend.open(config(tmp_path, service_id="other", recover=True)) as backend:
        assert backend.recovered
        backend.adopt(np.array([0]), np.array([64]))
        assert bytes(backend.readable(0, 5)) == b"bytes"
        assert put(backend, b"more") == 64
        assert bytes(backend.readable(0, 5)) == b"bytes"


def test_without_recover_a_successor_begins_anew(tmp_path: Path) -> None:
    with other_process(tmp_path) as child:
        child.kill()
        child.wait()
    with ShmBackend.open(config(tmp_path, service_id="other")) as backend:
        assert not backend.recovered
        assert len(names(tmp_path)) == 1
    with ShmBackend.open(config(tmp_path, service_id="other", recover=True)) as backend:
        assert not backend.recovered


def test_while_its_guardian_lives_a_dead_shards_arena_is_kept_for_a_while(tmp_path: Path) -> None:
    with other_process(tmp_path, guardian_pid=os.getpid()) as child:
        child.kill()
        child.wait()
    now = time.time()
    assert remove_leftovers(str(tmp_path), now_s=now) == []
    assert remove_leftovers(str(tmp_path), now_s=now + arena_owner.ORPHAN_GRACE_S - 1) == []
    with ShmBackend.open(config(tmp_path, service_id="other", recover=True)) as backend:
        assert backend.recovered
        assert not list(tmp_path.glob("*.orphan"))


def test_it_is_removed_when_the_guardian_is_gone_or_takes_too_long(tmp_path: Path) -> None:
    guardian = subprocess.Popen(["sleep", "60"])
    with other_process(tmp_path, guardian_pid=guardian.pid) as child:
        child.kill()
        child.wait()
    assert remove_leftovers(str(tmp_path)) == []
    guardian.kill()
    guardian.wait()
    assert len(remove_leftovers(str(tmp_path))) == 1

    with other_process(tmp_path, guardian_pid=os.getpid()) as child:
        child.kill()
        child.wait()
    now = time.time()
    assert remove_leftovers(str(tmp_path), now_s=now) == []
    assert len(remove_leftovers(str(tmp_path), now_s=now + arena_owner.ORPHAN_GRACE_S)) == 1


def test_a_forked_child_neither_keeps_nor_removes_the_arena(tmp_path: Path) -> None:
    backend = ShmBackend.open(config(tmp_path))
    put(backend, b"x")
    files = names(tmp_path)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        backend.close()
        os.write(tell, b".")
        time.sleep(30)
        os._exit(0)
    try:
        os.read(ready, 1)
        assert names(tmp_path) == files
        backend.close(keep=True)
        assert len(remove_leftovers(str(tmp_path))) == 1  # although the child is still there
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    strangers = ["transferqueue.lock", "transferqueue-a-0-zz.lock", "notes.txt"]
    broken = f"transferqueue-a-0-{'0' * 16}.lock"
    for name in strangers:
        (tmp_path / name).write_text("{}")
    (tmp_path / broken).write_text("not a record")
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / f"transferqueue-a-1-{'0' * 16}.lock").symlink_to(target)
    with ShmBackend.open(config(tmp_path)):
        pass
    assert target.read_text() == "precious"
    for path in tmp_path.iterdir():
        path.unlink()


def test_a_lock_file_whose_maker_died_before_it_was_done_is_removed_later(tmp_path: Path) -> None:
    unfinished = tmp_path / f"transferqueue-a-0-{'0' * 16}.lock.new"
    unfinished.touch()
    remove_leftovers(str(tmp_path))
    assert unfinished.exists()
    remove_leftovers(str(tmp_path), now_s=time.time() + 100)
    assert not unfinished.exists()


def test_a_client_tells_whether_the_arena_is_on_its_host(tmp_path: Path) -> None:
    with ShmBackend.open(config(tmp_path)) as backend:
        address = ArenaAddress.from_plain(backend.client_access())
        assert address == backend.address
        assert address.is_here()
        assert not replace(address, boot_id="another host").is_here()
        assert not replace(address, directory=str(tmp_path / "another")).is_here()
    assert not address.is_here()
    with pytest.raises(Malformed):
        ArenaAddress.from_plain({**address.to_plain(), "token": "../../etc/passwd"})
    with pytest.raises(Malformed):
        ArenaAddress.from_plain({"directory": "/"})


def test_a_lock_record_survives_its_file() -> None:
    address = ArenaAddress(
        directory="/dev/shm",
        service_id="a-1.b",
        slot=12,
        token="0123456789abcdef",
        segment_bytes=4096,
        capacity_bytes=10_000,
        boot_id="b",
    )
    record = LockRecord(address=address, owner=ProcessId.of(os.getpid()), guardian=None)
    assert LockRecord.from_json(record.to_json()) == record
    for text in (b"", b"[]", b"{}", b'{"address": 1, "owner": null, "guardian": null}'):
        assert LockRecord.from_json(text) is None
    assert [address.segment_size(i) for i in range(address.num_segments)] == [4096, 4096, 1808]


def test_processes_are_told_apart_from_later_ones_with_the_same_number() -> None:
    me = ProcessId.of(os.getpid())
    assert me is not None
    assert me.is_alive()
    assert not replace(me, started=me.started + 1).is_alive()
    assert not replace(me, boot_id="before the reboot").is_alive()
    assert replace(me, pid_namespace="another container").is_alive() is None
    assert ProcessId.of(1 << 30) is None
