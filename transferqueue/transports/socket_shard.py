"""The shard's end of `sockets`: a thread that accepts, and one a connection."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transferqueue.errors import ConfigError, TransportFailed
from transferqueue.process_id import boot_id
from transferqueue.transports import sealing
from transferqueue.transports.base import EndConfig, ShardEnd
from transferqueue.transports.socket_connection import GOES_ON, REFUSED, ShardConnection
from transferqueue.transports.socket_request import READ, WRITE, Request, Ticket
from transferqueue.transports.socket_seats import Seats
from transferqueue.transports.window import Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.transports.passages import Passage

NAME = "sockets"

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
"""A thread each. Who goes for one more is decided by `socket_seats`."""

MAX_STRANGERS = 256
"""Of these, those that have not shown a ticket."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """A window, and the connections whose threads look at its memory now."""

    window: Window
    secret: bytes = field(repr=False)
    users: set[socket.socket] = field(default_factory=set)


class SocketShardEnd(ShardEnd):
    """What goes over a network is sealed unless the service does not encrypt; what stays on the
    host never is."""

    def __init__(self, config: EndConfig) -> None:
        self._is_sealed = config.encrypt and config.host is not None
        if self._is_sealed and (why := sealing.why_not()):
            raise ConfigError(f"transport {NAME!r}: {why}")
        self._listener, self._facts, self._path = _listen(config)
        self._facts["sealed"] = self._is_sealed
        self._windows: dict[bytes, _Open] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._seats = Seats[socket.socket](
            num_seats=MAX_CONNECTIONS, num_for_strangers=MAX_STRANGERS
        )
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
        ticket = Ticket.new()
        opened = _Open(window=Window(pieces, writable=writable), secret=ticket.secret)
        with self._changed:
            if self._closed:
                raise TransportFailed(NAME, "it is closed")
            self._windows[ticket.window_id] = opened
        return bytes(ticket)

    def close_window(self, ticket: bytes) -> None:
        known = Ticket.from_bytes(ticket)
        with self._changed:
            found = None if known is None else self._windows.pop(known.window_id, None)
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
                if self._closed:
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
            _set_up(connection)
            thread.start()
        except (OSError, RuntimeError):
            connection.close()
            return
        self._connections[connection] = thread
        too_many = self._seats.come(connection)
        if too_many is not None:
            _cut(too_many)

    def _serve(self, connection: socket.socket) -> None:
        client = ShardConnection(connection, is_sealed=self._is_sealed)
        try:
            client.greet()
            is_known = self._answer(client, time.monotonic() + STRANGER_S)
            while is_known:
                self._rests(connection)
                connection.settimeout(None)  # it may come back whenever it likes
                is_known = self._answer(client)
        except OSError:
            pass  # the client is gone, or was cut off
        finally:
            with self._changed:
                self._connections.pop(connection, None)
                self._seats.leave(connection)
            connection.close()

    def _answer(self, client: ShardConnection, deadline_s: float | None = None) -> bool:
        """Carry out one request, all of whose header is here by then. Whether there may be
        another."""
        asked = client.next_request(deadline_s)
        client.socket.settimeout(STALLED_S)
        found = None if asked is None else self._begin(client.socket, asked[0].window_id)
        if asked is None or found is None:
            client.socket.sendall(REFUSED)
            return False
        request, proof = asked
        try:
            passage = client.passage(found.secret, request, proof)
            if passage is None or not _allows(found.window, request):
                client.socket.sendall(REFUSED)
                return False
            self._works(client.socket)
            client.socket.sendall(GOES_ON)
            _move(passage, found.window, request)
        finally:
            self._end(client.socket, found)
        if request.operation == WRITE:
            passage.confirm()
        return True

    def _works(self, connection: socket.socket) -> None:
        """It is a client of ours."""
        with self._changed:
            self._seats.work(connection)

    def _begin(self, connection: socket.socket, window_id: bytes) -> _Open | None:
        with self._changed:
            found = self._windows.get(window_id)
            if found is not None:
                found.users.add(connection)
            return found

    def _rests(self, connection: socket.socket) -> None:
        with self._changed:
            self._seats.rest(connection)

    def _end(self, connection: socket.socket, found: _Open) -> None:
        with self._changed:
            found.users.discard(connection)
            self._changed.notify_all()


def _move(passage: Passage, window: Window, request: Request) -> None:
    parts = window.parts(request.offset, request.nbytes)
    if request.operation == READ:
        passage.send(parts)
    else:
        passage.receive(parts)


def _allows(window: Window, request: Request) -> bool:
    if request.operation not in (READ, WRITE):
        return False
    if request.operation == WRITE and not window.writable:
        return False
    return window.holds(request.offset, request.nbytes)


def _set_up(connection: socket.socket) -> None:
    """A peer that vanishes is noticed, so that its thread ends; on one host the kernel says so
    itself. And the rest of a segment does not wait until what went before it is acknowledged: one
    read in 50 took 40 ms longer, which is how long a reader may put that off."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, VANISHED_S // 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_S * 1000)


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


def _cut(connection: socket.socket) -> None:
    """Wake whoever waits in it."""
    with contextlib.suppress(OSError):  # it may not be connected any more
        connection.shutdown(socket.SHUT_RDWR)
