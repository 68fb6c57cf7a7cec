"""The folder of checkpoints on disk: one finished at most, one under way at most.

::

    manifest      names the folder of the finished one, and each of its files
    cut-<id>/     the files of the finished one, or of one that is under way or was interrupted
    lock          held by the coordinator that writes
    life          the highest life that was restored from here (``lives.py``)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING

from transferqueue.checkpoint import manifest as manifests
from transferqueue.checkpoint.files import TEMPORARY_FLAGS, sync_folder, write_all
from transferqueue.checkpoint.lives import next_life
from transferqueue.checkpoint.manifest import Manifest
from transferqueue.errors import (
    CheckpointBusy,
    CheckpointDamaged,
    CheckpointMissing,
    CheckpointUnreachable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "cut-"
_LOCK, _LIFE, _PROBE = "lock", "life", "probe"


class CheckpointWriter:
    """A checkpoint under way. Ends with `publish`, or with `close` alone, which leaves nothing."""

    def __init__(self, path: str) -> None:
        """``OSError``, or `CheckpointBusy`. Deletes what interrupted ones have left."""
        self.path = path
        self.id = secrets.token_hex(8)
        self.token = secrets.token_hex(16)
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._lock_fd = _lock(path)
        self._is_published = False
        try:
            delete_leftovers(path)
            os.mkdir(self.folder, 0o700)
            _replace(os.path.join(self.folder, _PROBE), self.token.encode())
        except BaseException:
            self.close()
            raise

    @property
    def folder(self) -> str:
        return os.path.join(self.path, PREFIX + self.id)

    def publish(self, manifest: Manifest) -> None:
        """Make this the finished one, and delete the one before it. ``OSError``, and no change,
        when that cannot be: every file of it is synced by who wrote it."""
        os.unlink(os.path.join(self.folder, _PROBE))
        sync_folder(self.folder)
        _replace(os.path.join(self.path, manifests.NAME), manifest.encode())
        self._is_published = True
        sync_folder(self.path)
        with contextlib.suppress(OSError):
            delete_leftovers(self.path)

    def close(self) -> None:
        """Idempotent."""
        if self._lock_fd < 0:
            return
        if not self._is_published:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock_fd)
        self._lock_fd = -1


def check_token(folder: str, token: str, host: str) -> None:
    """`CheckpointUnreachable` unless this is the folder that the coordinator made."""
    try:
        with open(os.path.join(folder, _PROBE)) as probe:
            found = probe.read()
    except OSError as error:
        raise CheckpointUnreachable(folder, host, str(error)) from error
    if found != token:
        raise CheckpointUnreachable(folder, host, "it has another folder of that name")


def read_manifest(path: str) -> Manifest:
    """What is finished there. `CheckpointMissing`, `CheckpointFormat`; `CheckpointDamaged` also
    when a file is not there or not as long as it was: their bytes are checked by who reads them."""
    try:
        with open(os.path.join(path, manifests.NAME), "rb") as file:
            found = Manifest.decode(file.read(), path)
    except FileNotFoundError:
        raise CheckpointMissing(path) from None
    except OSError as error:
        raise CheckpointDamaged(path, manifests.NAME, f"cannot be read: {error}") from error
    for saved in found.files:
        at = os.path.join(path, found.folder, saved.name)
        try:
            nbytes = os.stat(at).st_size
        except OSError as error:
            raise CheckpointDamaged(path, saved.name, f"cannot be read: {error}") from error
        if nbytes != saved.nbytes:
            raise CheckpointDamaged(
                path, saved.name, f"it has {nbytes:,} bytes, {saved.nbytes:,} were written"
            )
    return found


def begin_life(path: str, saved_life: int, *, host_folder: str) -> int:
    """The number of the life that begins with a restore from here. It is noted, here and in
    ``host_folder``, which all restores on this host share, so that none gets it again."""
    with contextlib.ExitStack() as stack:
        noted = [stack.enter_context(_open_number(at)) for at in (host_folder, path)]
        numbers = [_read_number(fd) for fd in noted]
        number = next_life(saved=saved_life, noted=max(numbers), now_unix_s=time.time())
        for fd in noted:
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.pwrite(fd, str(number).encode(), 0)  # rises: never fewer digits than before
                    os.fsync(fd)
    return number


@contextlib.contextmanager
def _open_number(folder: str) -> Iterator[int | None]:
    """The file of the highest life, held for a moment against others that restore; ``None`` where
    nothing can be written: then the clock alone tells lives apart."""
    fd = None
    with contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(os.path.join(folder, _LIFE), flags, 0o600)
    try:
        if fd is not None:
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _read_number(fd: int | None) -> int:
    text = b"" if fd is None else os.pread(fd, 32, 0)
    return int(text) if text.isdigit() else 0


def delete_leftovers(path: str) -> None:
    """Delete the folders that the manifest does not name. The lock is held."""
    try:
        with open(os.path.join(path, manifests.NAME), "rb") as file:
            finished = Manifest.decode(file.read(), path).folder
    except FileNotFoundError:
        finished = None
    except CheckpointDamaged:
        return  # somebody may want to look at what is there
    for folder in _cuts(path):
        if os.path.basename(folder) != finished:
            shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(path, f"{manifests.NAME}.new"))


def files_of_cuts(path: str) -> dict[str, int]:
    """How large the files of all cuts are now; none where the folder cannot be seen from here."""
    found = {}
    with contextlib.suppress(OSError):
        for cut in _cuts(path):
            for name in os.listdir(cut):
                file = os.path.join(cut, name)
                with contextlib.suppress(OSError):  # it was renamed, or the cut is gone
                    found[file] = os.stat(file).st_size
    return found


def _cuts(path: str) -> Iterator[str]:
    with os.scandir(path) as entries:
        for entry in list(entries):
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                yield entry.path


def _lock(path: str) -> int:
    fd = os.open(
        os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise CheckpointBusy(path, "another service is writing a checkpoint there") from None
    except OSError:
        os.close(fd)
        raise
    return fd


def _replace(path: str, content: bytes) -> None:
    """A file with this content, synced, in the place of the one that was there, at once."""
    new_path = f"{path}.new"
    fd = os.open(new_path, TEMPORARY_FLAGS, 0o600)
    try:
        write_all(fd, memoryview(content))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(new_path, path)
