"""The limit of a socket: bytes go from memory to memory with ``sendall`` and ``recv_into``.

The holder is a process with a thread a connection and warm buffers that it uses again. It knows
no names, no types and no rows: nothing that moves bytes through a socket can be much faster.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.benchmarks.adapter import Adapter, Unsupported
from tests.benchmarks.peers.layout import Layout, arrays_of, columns_of, sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HEADER_BYTES = 4096
"""Every request begins with JSON padded to this."""


def connect(address: str) -> socket.socket:
    """``address``: ``host:port``, or the path of a Unix socket."""
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    else:
        host, _, port = address.rpartition(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def send_header(connection: socket.socket, header: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(header).encode().ljust(HEADER_BYTES))


def receive_into(connection: socket.socket, buffer: memoryview) -> None:
    """Fill the buffer. EOFError when the other end closes."""
    while len(buffer):
        received = connection.recv_into(buffer)
        if received == 0:
            raise EOFError
        buffer = buffer[received:]


class RawSocket(Adapter):
    """``settings``: ``transport``, ``"tcp"`` or else a Unix socket. ``warm``: a get receives into
    memory that it used before, which a system that hands out tensors can not do in general."""

    def start(self) -> str:
        self._folder = Path(tempfile.mkdtemp(prefix="bench-socket-"))
        where = "tcp" if self.settings.get("transport") == "tcp" else str(self._folder / "socket")
        self._holder = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.peers.raw_socket", where],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        address = self._holder.stdout.readline().strip()
        self.join(address)
        return address

    def join(self, address: str) -> None:
        self._connection = connect(address)
        self._ids = itertools.count(os.getpid() << 20)
        self._warm: dict[tuple[int, ...], list[np.ndarray]] = {}

    def prepare(self, columns: Any) -> tuple[Layout, list[np.ndarray]]:
        return arrays_of(columns)

    def put(self, prepared: tuple[Layout, list[np.ndarray]]) -> tuple[int, Layout]:
        layout, arrays = prepared
        number = next(self._ids)
        sizes = [array.nbytes for array in arrays]
        send_header(self._connection, {"op": "put", "id": number, "sizes": sizes})
        for array in arrays:
            self._connection.sendall(memoryview(array).cast("B"))
        receive_into(self._connection, memoryview(bytearray(1)))
        return number, layout

    def token(self, reference: tuple[int, Layout]) -> str:
        return json.dumps(reference)

    def reference(self, token: str) -> tuple[int, Layout]:
        number, layout = json.loads(token)
        return number, layout

    def get(
        self,
        reference: tuple[int, Layout],
        *,
        fields: Sequence[str] | None,
        rows: Sequence[int] | None,
    ) -> Mapping[str, Any]:
        number, layout = reference
        if rows is not None:
            raise Unsupported("moves whole columns only")
        wanted = [k for k, (name, _, _) in enumerate(layout) if fields is None or name in fields]
        layout = [layout[k] for k in wanted]
        send_header(self._connection, {"op": "get", "id": number, "columns": wanted})
        buffers = self._buffers(sizes_of(layout))
        for buffer in buffers:
            receive_into(self._connection, memoryview(buffer))
        return columns_of(layout, buffers)

    def _buffers(self, sizes: list[int]) -> list[np.ndarray]:
        if not self.settings.get("warm"):
            return [np.empty(size, dtype=np.uint8) for size in sizes]
        key = tuple(sizes)
        if key not in self._warm:
            self._warm[key] = [np.zeros(size, dtype=np.uint8) for size in sizes]
        return self._warm[key]

    def clear(self, reference: tuple[int, Layout]) -> None:
        send_header(self._connection, {"op": "clear", "id": reference[0]})
        receive_into(self._connection, memoryview(bytearray(1)))

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self._connection.close()
        holder = getattr(self, "_holder", None)
        if holder is not None:
            holder.kill()
            holder.communicate()
            (self._folder / "socket").unlink(missing_ok=True)
            self._folder.rmdir()


class Holder:
    """The process that holds what was put."""

    def __init__(self) -> None:
        self._held: dict[int, list[np.ndarray]] = {}
        self._spare: dict[int, list[np.ndarray]] = {}

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(EOFError, ConnectionError), connection:
            while True:
                header = bytearray(HEADER_BYTES)
                receive_into(connection, memoryview(header))
                request = json.loads(header)
                getattr(self, "on_" + request["op"])(connection, request)

    def on_put(self, connection: socket.socket, request: Mapping[str, Any]) -> None:
        buffers = [self._take(size) for size in request["sizes"]]
        for buffer in buffers:
            receive_into(connection, memoryview(buffer))
        self._held[request["id"]] = buffers
        connection.sendall(b"k")

    def on_get(self, connection: socket.socket, request: Mapping[str, Any]) -> None:
        buffers = self._held[request["id"]]
        for k in request["columns"]:
            connection.sendall(memoryview(buffers[k]))

    def on_clear(self, connection: socket.socket, request: Mapping[str, Any]) -> None:
        for buffer in self._held.pop(request["id"]):
            self._spare.setdefault(len(buffer), []).append(buffer)
        connection.sendall(b"k")

    def _take(self, size: int) -> np.ndarray:
        spare = self._spare.get(size)
        return spare.pop() if spare else np.zeros(size, dtype=np.uint8)


def main(where: str) -> None:
    """Hold until stdin closes; ``where``: ``tcp``, or the path of a Unix socket."""
    if where == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where)
        listener.listen()
        print(where, flush=True)
    holder = Holder()
    threading.Thread(target=_exit_at_eof, daemon=True).start()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=holder.serve, args=(connection,), daemon=True).start()


def _exit_at_eof() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
