"""A transport of your own: another way for large bytes between clients and shards of other hosts.

This one goes through a folder that all hosts see (NFS, Lustre, …): a window is a file there, as a
template for "leave these bytes there, fetch them from here". A way that moves bytes itself, such as
RDMA, keeps ``pieces`` registered in place of copying them. `transferqueue.transports.base` is the
manual.

In a package of its own, this is what makes it known (pyproject.toml)::

    [project.entry-points."transferqueue.transports"]
    folder = "own_transport:FolderTransport"

and ``tq.serve(host=…, transports={"folder": {"path": "/mnt/shared"}})`` what uses it. Before that:
``python own_transport.py`` runs the whole contract, kills and all, against it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from typing import Any

from transferqueue.errors import ConfigError, TransportFailed
from transferqueue.transports.base import ClientEnd, EndConfig, ShardEnd, WindowTransport
from transferqueue.transports.window import Window


class FolderTransport(WindowTransport):
    quality = 5  # slower than most

    @classmethod
    def open_shard_end(cls, config: EndConfig) -> ShardEnd:
        return FolderShardEnd(config)

    @classmethod
    def why_not(cls, facts: Any) -> str:
        return "" if os.path.isdir(facts.get("folder", "")) else "the folder is not here"

    @classmethod
    def open_client_end(cls, facts: Any) -> ClientEnd:
        return FolderClientEnd(facts["folder"])


class FolderShardEnd(ShardEnd):
    def __init__(self, config: EndConfig) -> None:
        if "path" not in config.options:
            raise ConfigError("transport 'folder' needs the option path, a folder all hosts see")
        self._folder = tempfile.mkdtemp(
            prefix=f"windows-{config.slot}-", dir=config.options["path"]
        )
        self._windows: dict[bytes, Window] = {}

    @property
    def facts(self) -> dict[str, Any]:
        return {"folder": self._folder}

    def open_window(self, pieces: Any, *, writable: bool) -> bytes:
        ticket = secrets.token_hex(16).encode() + (b"w" if writable else b"r")
        window = self._windows[ticket] = Window(pieces, writable=writable)
        try:
            with open(os.path.join(self._folder, ticket.decode()), "wb") as file:
                file.writelines(window.parts(0, window.nbytes))
        except OSError as error:
            raise TransportFailed("folder", f"no window to be had: {error}") from error
        return ticket

    def close_window(self, ticket: bytes) -> None:
        window = self._windows.pop(ticket, None)
        if window is None:
            return
        path = os.path.join(self._folder, ticket.decode())
        try:
            with open(path, "rb") as file:
                for part in window.parts(0, window.nbytes) if window.writable else ():
                    file.readinto(part)
            os.unlink(path)  # who still writes to it writes to nothing
        except OSError as error:
            raise TransportFailed("folder", f"what was written is gone: {error}") from error

    def close(self) -> None:
        self._windows.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


class FolderClientEnd(ClientEnd):
    def __init__(self, folder: str) -> None:
        self._folder: str | None = folder

    def _open(self, ticket: bytes, nbytes: int, offset: int, kinds: str) -> int:
        name = ticket.decode("ascii", "replace")
        if self._folder is None or len(name) != 33 or name[-1] not in kinds or "/" in name:
            raise TransportFailed("folder", "no such window")
        try:
            fd = os.open(os.path.join(self._folder, name), os.O_RDWR)
        except OSError as error:
            raise TransportFailed("folder", f"the window is closed: {error}") from error
        if offset < 0 or offset + nbytes > os.fstat(fd).st_size:
            os.close(fd)
            raise TransportFailed("folder", "the window does not hold these bytes")
        return fd

    def read(self, ticket: bytes, offset: int, out: memoryview, *, timeout_s: float) -> None:
        fd = self._open(ticket, out.nbytes, offset, "rw")
        try:
            came = os.preadv(fd, [out], offset) if out.nbytes else 0
        finally:
            os.close(fd)
        if came != out.nbytes:
            raise TransportFailed("folder", f"{came} of {out.nbytes} bytes came")

    def write(self, ticket: bytes, offset: int, data: memoryview, *, timeout_s: float) -> None:
        fd = self._open(ticket, data.nbytes, offset, "w")
        try:
            went = os.pwrite(fd, data, offset)
            gone = os.fstat(fd).st_nlink == 0  # closed meanwhile
        finally:
            os.close(fd)
        if went != data.nbytes or gone:
            raise TransportFailed("folder", "the window was closed, or the folder is full")

    def close(self) -> None:
        self._folder = None


if __name__ == "__main__":
    from transferqueue.testing import check_transport

    with tempfile.TemporaryDirectory() as shared:
        check_transport(FolderTransport, {"path": shared})
    print("FolderTransport keeps the contract")
