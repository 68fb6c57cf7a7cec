"""The client's end of `sockets`: as many connections as there are calls at once."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from transferqueue.errors import TransportFailed
from transferqueue.transports.base import ClientEnd
from transferqueue.transports.passages import left_s
from transferqueue.transports.socket_connection import ClientConnection
from transferqueue.transports.socket_request import READ, WRITE, Request, Ticket
from transferqueue.transports.socket_shard import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.transports.passages import Passage

CONNECT_S = 5.0
"""For a connection. A wall that drops what it does not let through gives no answer at all."""

OPENING_SHARE = 0.5
"""How much of its time a call waits for the shard to let it in. The rest is for another way."""


class SocketClientEnd(ClientEnd):
    """Connections are kept for the next call."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """`TransportFailed` for facts that say nothing of where to connect."""
        match facts:
            case {"path": str()}:
                pass
            case {"host": str(), "port": int() as port} if 0 < port < 1 << 16:
                pass
            case _:
                raise TransportFailed(NAME, f"these are no facts of its own: {facts!r:.80}")
        self._facts = dict(facts)
        self._idle: list[ClientConnection] = []
        self._lock = threading.Lock()
        self._closed = False

    def read(self, ticket: bytes, offset: int, out: memoryview, *, timeout_s: float) -> None:
        self._move(READ, ticket, offset, out, timeout_s)

    def write(self, ticket: bytes, offset: int, data: memoryview, *, timeout_s: float) -> None:
        self._move(WRITE, ticket, offset, data, timeout_s)

    def _move(
        self, operation: int, ticket: bytes, offset: int, memory: memoryview, timeout_s: float
    ) -> None:
        known = Ticket.from_bytes(ticket)
        if known is None or offset < 0:
            raise TransportFailed(NAME, "no ticket or offset of its own")
        deadline_s = time.monotonic() + timeout_s
        request = Request(
            window_id=known.window_id, operation=operation, offset=offset, nbytes=memory.nbytes
        )
        try:
            connection, passage = self._opened(known, request, deadline_s)
        except OSError as error:
            raise TransportFailed(NAME, f"cannot connect: {error}") from error
        try:
            _carry_out(passage, operation, memory)
        except BaseException as error:
            connection.socket.close()
            if isinstance(error, OSError):
                raise TransportFailed(NAME, str(error) or "cut off") from error
            raise
        self._put_back(connection)

    def _opened(
        self, ticket: Ticket, request: Request, deadline_s: float
    ) -> tuple[ClientConnection, Passage]:
        """A connection over which the request has gone and been allowed. One that was used before
        may have been cut off since."""
        open_by_s = time.monotonic() + OPENING_SHARE * left_s(deadline_s)
        while True:
            with self._lock:
                if self._closed:
                    raise TransportFailed(NAME, "this end is closed")
                earlier = self._idle.pop() if self._idle else None
            connection = earlier or self._connected(open_by_s)
            try:
                passage = connection.asked(
                    ticket, request, open_by_s=open_by_s, deadline_s=deadline_s
                )
            except BaseException as error:
                connection.socket.close()
                is_cut = isinstance(error, OSError) and not isinstance(error, TimeoutError)
                if earlier is None or not is_cut:
                    raise
                continue
            if passage is not None:
                return connection, passage
            connection.socket.close()
            if earlier is None:
                raise TransportFailed(NAME, "the window is closed, or does not hold these bytes")

    def _connected(self, open_by_s: float) -> ClientConnection:
        deadline_s = min(open_by_s, time.monotonic() + CONNECT_S)
        with contextlib.ExitStack() as on_error:
            connected = self._socket(deadline_s)
            on_error.callback(connected.close)
            connection = ClientConnection(
                connected, is_sealed=bool(self._facts.get("sealed")), deadline_s=deadline_s
            )
            on_error.pop_all()
        return connection

    def _socket(self, deadline_s: float) -> socket.socket:
        path = self._facts.get("path")
        if path is None:
            at = self._facts["host"], self._facts["port"]
            connected = socket.create_connection(at, left_s(deadline_s))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connected
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.settimeout(left_s(deadline_s))
            connected.connect(str(path))
        except OSError:
            connected.close()
            raise
        return connected

    def _put_back(self, connection: ClientConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.socket.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.socket.close()


def _carry_out(passage: Passage, operation: int, memory: memoryview) -> None:
    if operation == READ:
        passage.receive([memory])
    else:
        passage.send([memory])
        passage.await_confirmation()
