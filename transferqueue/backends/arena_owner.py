"""Who owns an arena, and clearing away arenas that nobody owns any more.

Each arena has a lock file. Its owner holds an exclusive ``flock`` on it for as long as it lives;
the kernel lets go of it when the owner dies, whatever the reason and in whichever pid namespace.
So an arena is alive exactly while its lock is held, and nobody has to trust a pid.

Between the death of a shard and its restart the lock is free although the arena is wanted. The
lock file therefore names the process that restarts the shard, its *guardian*. While that process
lives, what the dead shard left is kept for ``ORPHAN_GRACE_S`` from when it was first seen dead.

Order of things, so that a crash at any point leaves what the next start can clear away: a lock
file appears already locked and written (made under another name, then renamed) and before the
first segment; when an arena is removed the lock file goes last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
import weakref
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from transferqueue.backends.arena_address import LOCK_SUFFIX, PREFIX, ArenaAddress, parse_stem
from transferqueue.errors import Malformed, ServiceFailed
from transferqueue.process_id import ProcessId

if TYPE_CHECKING:
    from collections.abc import Iterator

ORPHAN_GRACE_S = 60.0
"""How long what a dead shard left is kept for the guardian that should restart it."""

_NEW_SUFFIX = "new"
_ORPHAN_SUFFIX = "orphan"
_NEW_GRACE_S = 60.0
_LOOK_AGAIN_S = 0.02

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """What a lock file says."""

    address: ArenaAddress
    owner: ProcessId | None
    guardian: ProcessId | None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self | None:
        """``None`` when it is not a record of ours."""
        try:
            plain = json.loads(text)
            return cls(
                address=ArenaAddress.from_plain(plain["address"]),
                owner=_process_from(plain["owner"]),
                guardian=_process_from(plain["guardian"]),
            )
        except (ValueError, KeyError, TypeError, Malformed):
            return None


class ArenaLock:
    """The lock file of one arena, held. The arena is this process's until ``close``."""

    def __init__(self, fd: int, record: LockRecord) -> None:
        self._fd = fd
        self.record = record
        _close_locks_in_forked_children()
        _held.add(self)

    @classmethod
    def create(cls, record: LockRecord) -> Self:
        """Make the lock file of a new arena. ``OSError`` if the directory does not take it."""
        path = record.address.lock_path
        new_path = f"{path}.{_NEW_SUFFIX}"
        fd = os.open(new_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, record.to_json())
            os.rename(new_path, path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(new_path)
            raise
        return cls(fd, record)

    @classmethod
    def take(cls, path: str) -> Self | None:
        """Lock an arena that nobody holds. ``None`` when somebody does, or it is gone."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        record = _lock_and_read(fd, path)
        if record is None:
            os.close(fd)
            return None
        return cls(fd, record)

    def rewrite(self, record: LockRecord) -> None:
        """Name a new owner after ``take``."""
        self.record = record
        text = record.to_json()
        os.pwrite(self._fd, text, 0)
        os.ftruncate(self._fd, len(text))
        with contextlib.suppress(OSError):
            os.unlink(_orphan_path(record.address))

    def remove_arena(self) -> None:
        """Delete every file of the arena, the lock file last. Only its holder can."""
        if self._fd < 0:
            return
        address = self.record.address
        directory = Path(address.directory)
        for path in _files_of(directory, address.stem):
            if path.suffix != f".{LOCK_SUFFIX}":
                with contextlib.suppress(OSError):
                    path.unlink()
        with contextlib.suppress(OSError):
            os.unlink(address.lock_path)

    def close(self) -> None:
        """Let go of the lock; the files stay."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def find_arena(
    directory: str, service_id: str, slot: int, *, wait_s: float = 0.0
) -> ArenaLock | None:
    """Lock what an earlier process of this service and slot left, if anything.

    ``wait_s``: how long to wait for that process to end; `ServiceFailed` when it does not.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        held = None
        for path in _lock_files(Path(directory)):
            parsed = parse_stem(path.stem)
            if parsed is not None and parsed[:2] == (service_id, slot):
                lock = ArenaLock.take(str(path))
                if lock is not None:
                    return lock
                held = path
        if held is None or not wait_s:
            return None
        if time.monotonic() >= deadline_s:
            raise ServiceFailed(f"shard {slot}", f"an earlier process still holds {held}")
        time.sleep(_LOOK_AGAIN_S)


def owner_of(address: ArenaAddress) -> ProcessId | None:
    """Whose an arena is, or was last; ``None`` when it is gone. A successor is named before it
    changes anything: what was read before its predecessor is found here was that one's."""
    try:
        record = LockRecord.from_json(Path(address.lock_path).read_bytes())
    except OSError:
        return None
    return None if record is None else record.owner


def remove_leftovers(directory: str, *, now_s: float | None = None) -> list[str]:
    """Delete the arenas in ``directory`` whose services are gone. Returns their stems.

    Those of live owners, of other users, and those a guardian may still want, are left alone.
    ``now_s`` is Unix time.
    """
    now = time.time() if now_s is None else now_s
    removed = []
    for path in _lock_files(Path(directory)):
        lock = ArenaLock.take(str(path))
        if lock is None:
            continue
        try:
            if _is_wanted(lock.record, now):
                continue
            lock.remove_arena()
            removed.append(lock.record.address.stem)
        finally:
            lock.close()
    _remove_unfinished(Path(directory), now)
    if removed:
        _log.info("removed %d arenas of dead services in %s: %s", len(removed), directory, removed)
    return removed


def promised_bytes(directory: str, apart_from: str) -> int:
    """Room that this user's other arenas in ``directory`` were promised and have not taken yet."""
    total = 0
    for path in _lock_files(Path(directory)):
        if path.stem == apart_from:
            continue
        with contextlib.suppress(OSError):
            mine = path.lstat().st_uid == os.geteuid()
            record = LockRecord.from_json(path.read_bytes()) if mine else None
            if record is not None:
                total += max(0, record.address.capacity_bytes - taken_bytes(record.address))
    return total


def taken_bytes(address: ArenaAddress) -> int:
    """Bytes of the directory's room that the segments of an arena take."""
    total = 0
    for path in _files_of(Path(address.directory), address.stem):
        if path.suffix[1:].isdigit():
            with contextlib.suppress(OSError):
                total += path.stat().st_blocks * 512
    return total


def _is_wanted(record: LockRecord, now_s: float) -> bool:
    """Whether a guardian may still restart the shard of an arena that nobody holds."""
    guardian = record.guardian
    if guardian is None or guardian.is_alive() is False:
        return False
    marker = _orphan_path(record.address)
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.utime(marker, (now_s, now_s))
    except FileExistsError:
        pass
    return now_s - os.stat(marker).st_mtime < ORPHAN_GRACE_S


def _lock_and_read(fd: int, path: str) -> LockRecord | None:
    """Lock an open lock file and read it; ``None`` if it is held, replaced, or not ours."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened, named = os.fstat(fd), os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    same = (opened.st_dev, opened.st_ino) == (named.st_dev, named.st_ino)
    if not same or opened.st_uid != os.geteuid():
        return None
    record = LockRecord.from_json(os.pread(fd, 1 << 16, 0))
    # A directory may be mounted elsewhere here, so the path decides, not the record.
    return record if record is None or record.address.lock_path == path else _moved(record, path)


def _moved(record: LockRecord, path: str) -> LockRecord | None:
    parsed = parse_stem(Path(path).stem)
    address = record.address
    if parsed != (address.service_id, address.slot, address.token):
        return None
    return replace(record, address=replace(address, directory=str(Path(path).parent)))


def _remove_unfinished(directory: Path, now_s: float) -> None:
    """Lock files whose makers died before the rename."""
    for path in directory.glob(f"{PREFIX}-*.{LOCK_SUFFIX}.{_NEW_SUFFIX}"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if found.st_uid == os.geteuid() and now_s - found.st_mtime > _NEW_GRACE_S:
                path.unlink()


def _lock_files(directory: Path) -> Iterator[Path]:
    return (
        path
        for path in sorted(directory.glob(f"{PREFIX}-*.{LOCK_SUFFIX}"))
        if parse_stem(path.stem) is not None
    )


def _files_of(directory: Path, stem: str) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.startswith(f"{stem}.")]


def _orphan_path(address: ArenaAddress) -> str:
    return f"{address.directory}/{address.stem}.{_ORPHAN_SUFFIX}"


def _process_from(plain: dict[str, Any] | None) -> ProcessId | None:
    return None if plain is None else ProcessId.of_plain(plain)


_held: weakref.WeakSet[ArenaLock] = weakref.WeakSet()


@lru_cache(maxsize=1)
def _close_locks_in_forked_children() -> None:
    """A child made by ``fork`` shares the lock, and would keep it after its parent's death."""

    def close_all() -> None:
        for lock in list(_held):
            lock.close()

    os.register_at_fork(after_in_child=close_all)
