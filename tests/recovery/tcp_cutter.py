"""A TCP proxy that breaks a connection after some number of ZMTP frames, or in the middle of one.

Of an encrypted connection it sees the frames, whose sizes are sent in clear, and not what is in
them. Source of the format: ZMTP 3.1 (rfc.zeromq.org/spec/37), a greeting of 64 bytes each way,
then frames of a flag byte, a size of 1 byte or 8, and the body.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

GREETING_BYTES = 64
IS_LONG = 0x02


class TcpCutter:
    """Listens at ``endpoint`` for clients of the server at ``server`` (``tcp://host:port``)."""

    def __init__(self, server: str) -> None:
        host, port = server.removeprefix("tcp://").rsplit(":", 1)
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_frames = 0
        """That went through, either way, since `arm`."""
        self.num_cuts = 0
        self._cut_at: int | None = None
        self._in_the_middle = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def arm(self, frame: int | None, *, in_the_middle: bool = False) -> None:
        """Count from here on, and break the connection after that many frames, or within the last
        of them. Once; ``None``: only count."""
        with self._lock:
            self.num_frames = self.num_cuts = 0
            self._cut_at, self._in_the_middle = frame, in_the_middle

    def close(self) -> None:
        self._closing = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _reset(end)
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *args: socket.socket) -> None:
        self._threads.append(threading.Thread(target=target, args=args, name="cutter"))
        self._threads[-1].start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._server)
            except OSError:
                near.close()
                continue
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._start(self._pump, source, sink)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            _pass_greeting(source, sink)
            while self._passes(_read_frame(source), sink):
                pass
        self._open -= {source, sink}
        for end in (source, sink):
            _reset(end)

    def _passes(self, frame: bytes, sink: socket.socket) -> bool:
        with self._lock:
            self.num_frames += 1
            is_last = self.num_frames == self._cut_at
            if is_last:
                self._cut_at = None
                self.num_cuts += 1
        if is_last and self._in_the_middle:
            frame = frame[: len(frame) // 2]
        sink.sendall(frame)
        return not is_last


def _pass_greeting(source: socket.socket, sink: socket.socket) -> None:
    """Each side sends the rest of its own when it has the beginning of the other's."""
    left = GREETING_BYTES
    while left:
        part = source.recv(left)
        if not part:
            raise EOFError
        left -= len(part)
        sink.sendall(part)


def _exactly(source: socket.socket, num_bytes: int) -> bytes:
    parts = []
    while num_bytes:
        part = source.recv(min(num_bytes, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def _read_frame(source: socket.socket) -> bytes:
    flags = _exactly(source, 1)
    size = _exactly(source, 8 if flags[0] & IS_LONG else 1)
    return flags + size + _exactly(source, int.from_bytes(size, "big"))


def _reset(end: socket.socket) -> None:
    """What the other side has not read yet is gone, as when a host or a link goes down."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    end.close()
