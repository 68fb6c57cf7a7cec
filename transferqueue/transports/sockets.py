"""Bytes as they are, over a plain socket beside that of the requests: the built-in transport.

For a network of one's own, where the service is started with ``encrypt=False``: a thread of the
shard sends straight from the arena, and the client receives straight into the tensor, without
messages between. On one host, for processes that cannot map the arena, it is a Unix socket.

A connection carries one request after the other::

    client:  header: magic, ticket, operation, offset, bytes  [ bytes of a write ]
    shard:   one byte: 0 goes on, 1 refused                   [ bytes of a read ]  [ 0: written ]

Whoever has no ticket of an open window is refused and cut off, and so is who says nothing for
`STRANGER_S` before it has shown one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transferqueue.backends.arena_address import boot_id
from transferqueue.errors import ConfigError, TransportFailed
from transferqueue.transports.base import ClientEnd, EndConfig, ShardEnd, WindowTransport
from transferqueue.transports.window import Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "sockets"
TICKET_BYTES = 32
READ, WRITE = 1, 2
GOES_ON, REFUSED = b"\0", b"\1"
HEADER = struct.Struct(f"<4s{TICKET_BYTES}sBQQ")
MAGIC = b"tqw1"

STRANGER_S = 10.0
"""How long a connection may stay that has not shown a ticket."""

VANISHED_S = 60
"""A peer on another host that does not even acknowledge for so long is gone: its host has failed,
or the way there."""

STALLED_S = 30.0
"""A transfer in which nothing moves for so long is cut off."""

LEAVE_S = 0.01
"""How long a window that is closed waits for a thread that has just sent its last byte. After that
its connection is cut off, which ends the wait of any thread at once."""

MAX_CONNECTIONS = 1024


class SocketTransport(WindowTransport):
    """Option: ``port``, 0 for any."""

    quality = 10

    @classmethod
    def open_shard_end(cls, config: EndConfig) -> ShardEnd:
        unknown = set(config.options) - {"port"}
        if unknown:
            raise ConfigError(f"transport {NAME!r} has no options {sorted(unknown)}")
        if config.host is not None and config.encrypt:
            raise ConfigError(
                f"transport {NAME!r} moves bytes in the clear; start the service with "
                f"encrypt=False (--no-encryption), on a network where nobody else can listen"
            )
        return SocketShardEnd(config)

    @classmethod
    def why_not(cls, facts: Mapping[str, Any]) -> str:
        path = facts.get("path")
        if path is None:
            return "" if "host" in facts else "the shard says nothing of where it listens"
        if facts.get("boot_id") != boot_id():
            return "the shard serves its own host only"
        return "" if Path(str(path)).exists() else f"{path} is not here"

    @classmethod
    def open_client_end(cls, facts: Mapping[str, Any]) -> ClientEnd:
        return SocketClientEnd(facts)


# -- the shard ----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Open:
    """A window, and the connections whose threads look at its memory now."""

    window: Window
    users: set[socket.socket] = field(default_factory=set)


class SocketShardEnd(ShardEnd):
    """A thread that accepts, and one a connection."""

    def __init__(self, config: EndConfig) -> None:
        self._listener, self._facts, self._path = _listen(config)
        self._windows: dict[bytes, _Open] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._acceptor = threading.Thread(
            target=self._accept, name=f"transferqueue-sockets-{config.slot}", daemon=True
        )
        self._acceptor.start()

    @property
    def facts(self) -> Mapping[str, Any]:
        return self._facts

    def open_window(self, pieces: Sequence[memoryview], *, writable: bool) -> bytes:
        ticket = secrets.token_bytes(TICKET_BYTES)
        with self._changed:
            if self._closed:
                raise TransportFailed(NAME, "it is closed")
            self._windows[ticket] = _Open(window=Window(pieces, writable=writable))
        return ticket

    def close_window(self, ticket: bytes) -> None:
        with self._changed:
            found = self._windows.pop(ticket, None)
            if found is None:
                return
            if not self._changed.wait_for(lambda: not found.users, LEAVE_S):
                for connection in found.users:
                    _cut(connection)
                self._changed.wait_for(lambda: not found.users)

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            threads = [self._acceptor, *self._connections.values()]
            _cut(self._listener)
            for connection in self._connections:
                _cut(connection)
        for thread in threads:
            thread.join()
        self._listener.close()
        self._windows.clear()
        if self._path is not None:
            Path(self._path).unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.05)  # no descriptors left: one may come free
                continue
            with self._changed:
                if self._closed or len(self._connections) >= MAX_CONNECTIONS:
                    connection.close()
                    continue
                self._begin_to_serve(connection)

    def _begin_to_serve(self, connection: socket.socket) -> None:
        """In a thread of its own, which waits for the lock before it ends. Without one more thread
        to be had the connection is cut off."""
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="transferqueue-window", daemon=True
        )
        try:
            _notice_when_it_vanishes(connection)
            thread.start()
        except (OSError, RuntimeError):
            connection.close()
            return
        self._connections[connection] = thread

    def _serve(self, connection: socket.socket) -> None:
        try:
            is_known = self._answer(connection, time.monotonic() + STRANGER_S)
            while is_known:
                connection.settimeout(None)  # it may come back whenever it likes
                is_known = self._answer(connection)
        except OSError:
            pass  # the client is gone, or was cut off
        finally:
            with self._changed:
                self._connections.pop(connection, None)
            connection.close()

    def _answer(self, connection: socket.socket, deadline_s: float | None = None) -> bool:
        """Carry out one request, all of whose header is here by then. Whether there may be
        another."""
        header = memoryview(bytearray(HEADER.size))
        if not _receive(connection, header, deadline_s):
            return False
        magic, ticket, operation, offset, nbytes = HEADER.unpack(header)
        found = self._begin(connection, ticket) if magic == MAGIC else None
        try:
            if found is None or not _allows(found.window, operation, offset, nbytes):
                connection.sendall(REFUSED)
                return False
            connection.settimeout(STALLED_S)
            connection.sendall(GOES_ON)
            for part in found.window.parts(offset, nbytes):
                if operation == READ:
                    connection.sendall(part)
                elif not _receive(connection, part):
                    return False
        finally:
            if found is not None:
                self._end(connection, found)
        if operation == WRITE:
            connection.sendall(GOES_ON)
        return True

    def _begin(self, connection: socket.socket, ticket: bytes) -> _Open | None:
        with self._changed:
            found = self._windows.get(ticket)
            if found is not None:
                found.users.add(connection)
            return found

    def _end(self, connection: socket.socket, found: _Open) -> None:
        with self._changed:
            found.users.discard(connection)
            self._changed.notify_all()


def _notice_when_it_vanishes(connection: socket.socket) -> None:
    """So that its thread ends; on one host the kernel says so itself."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, VANISHED_S // 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_S * 1000)


def _allows(window: Window, operation: int, offset: int, nbytes: int) -> bool:
    if operation not in (READ, WRITE) or (operation == WRITE and not window.writable):
        return False
    return window.holds(offset, nbytes)


def _listen(config: EndConfig) -> tuple[socket.socket, dict[str, Any], str | None]:
    """A socket, what clients are told of it, and the file that is to be removed."""
    if config.host is not None:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        at: Any = (config.host, int(config.options.get("port", 0)))
        path = None
    elif config.directory is not None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = at = os.path.join(config.directory, f"windows-{config.slot}.sock")
        Path(path).unlink(missing_ok=True)  # of an earlier process of this slot
    else:
        raise ConfigError(f"transport {NAME!r} needs host=, or a folder for its socket")
    try:
        listener.bind(at)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(f"transport {NAME!r} cannot listen at {at}: {error}") from error
    if path is not None:
        os.chmod(path, 0o600)
        return listener, {"path": path, "boot_id": boot_id()}, path
    host, port = listener.getsockname()[:2]
    return listener, {"host": host, "port": port}, None


# -- the client ---------------------------------------------------------------------------------


class SocketClientEnd(ClientEnd):
    """As many connections as there are calls at once."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self._facts = dict(facts)
        self._idle: list[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False

    def read(self, ticket: bytes, offset: int, out: memoryview, *, timeout_s: float) -> None:
        self._move(READ, ticket, offset, out, timeout_s)

    def write(self, ticket: bytes, offset: int, data: memoryview, *, timeout_s: float) -> None:
        self._move(WRITE, ticket, offset, data, timeout_s)

    def _move(
        self, operation: int, ticket: bytes, offset: int, memory: memoryview, timeout_s: float
    ) -> None:
        if len(ticket) != TICKET_BYTES or offset < 0:
            raise TransportFailed(NAME, "no ticket or offset of its own")
        deadline_s = time.monotonic() + timeout_s
        header = HEADER.pack(MAGIC, ticket, operation, offset, memory.nbytes)
        try:
            connection = self._opened(header, deadline_s)
        except OSError as error:
            raise TransportFailed(NAME, f"cannot connect: {error}") from error
        try:
            _carry_out(connection, operation, memory, deadline_s)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError):
                raise TransportFailed(NAME, str(error) or "cut off") from error
            raise
        self._put_back(connection)

    def _opened(self, header: bytes, deadline_s: float) -> socket.socket:
        """A connection over which the header has gone and been allowed. One that was used before
        may have been cut off since."""
        while True:
            with self._lock:
                if self._closed:
                    raise TransportFailed(NAME, "this end is closed")
                earlier = self._idle.pop() if self._idle else None
            connection = earlier or self._connected(deadline_s)
            try:
                if _is_allowed(connection, header, deadline_s):
                    return connection
            except TimeoutError:
                connection.close()
                raise
            except OSError:
                connection.close()
                if earlier is None:
                    raise
                continue
            connection.close()
            if earlier is None:
                raise TransportFailed(NAME, "the window is closed, or does not hold these bytes")

    def _connected(self, deadline_s: float) -> socket.socket:
        path = self._facts.get("path")
        if path is None:
            at = str(self._facts["host"]), int(self._facts["port"])
            connection = socket.create_connection(at, _left_s(deadline_s))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_left_s(deadline_s))
            connection.connect(str(path))
        except OSError:
            connection.close()
            raise
        return connection

    def _put_back(self, connection: socket.socket) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _is_allowed(connection: socket.socket, header: bytes, deadline_s: float) -> bool:
    connection.settimeout(_left_s(deadline_s))
    connection.sendall(header)
    answer = connection.recv(1)
    if not answer:
        raise ConnectionResetError("cut off")
    return answer == GOES_ON


def _carry_out(
    connection: socket.socket, operation: int, memory: memoryview, deadline_s: float
) -> None:
    connection.settimeout(_left_s(deadline_s))
    if operation == WRITE:
        connection.sendall(memory)
        memory = memoryview(bytearray(1))
    if not _receive(connection, memory, deadline_s):
        raise ConnectionResetError("cut off before the last byte")


# -- both ---------------------------------------------------------------------------------------


def _receive(connection: socket.socket, out: memoryview, deadline_s: float | None = None) -> bool:
    """Fill it; ``False`` when the other end closed before."""
    at = 0
    while at < out.nbytes:
        if deadline_s is not None:
            connection.settimeout(_left_s(deadline_s))
        came = connection.recv_into(out[at:])
        if not came:
            return False
        at += came
    return True


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("its time was up")
    return left_s


def _cut(connection: socket.socket) -> None:
    """Wake whoever waits in it."""
    with contextlib.suppress(OSError):  # it may not be connected any more
        connection.shutdown(socket.SHUT_RDWR)
