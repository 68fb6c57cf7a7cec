"""How the bytes of one request go over its connection: as they are, or sealed. For both ends."""

from __future__ import annotations

import struct
import time
from socket import SO_SNDTIMEO, SOL_SOCKET
from typing import TYPE_CHECKING, Protocol

from transferqueue.transports.sealing import SEGMENT_BYTES, TAG_BYTES, joined, segments

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from transferqueue.transports.sealing import Sealing

DONE = b"\0"

QUIET_S = 10.0
"""A transfer with a deadline in which nothing moves for so long has failed: a way that lets nothing
through says nothing, and what time is left is for another."""


class Passage(Protocol):
    """`OSError` when the other end hangs up, changes bytes, or is too slow."""

    def send(self, parts: Iterable[memoryview]) -> None: ...

    def receive(self, parts: Iterable[memoryview]) -> None:
        """Fill all of them."""

    def confirm(self) -> None:
        """Tell the other end that all has come."""

    def await_confirmation(self) -> None: ...


class Clear:
    """As they are."""

    def __init__(self, connection: socket.socket, deadline_s: float | None = None) -> None:
        """``deadline_s``: by `time.monotonic`; ``None``: the connection's own timeout, each time
        that something moves."""
        self._connection = connection
        self._deadline_s = deadline_s

    def send(self, parts: Iterable[memoryview]) -> None:
        send(self._connection, parts, self._deadline_s)

    def receive(self, parts: Iterable[memoryview]) -> None:
        for part in parts:
            receive(self._connection, part, self._deadline_s)

    def confirm(self) -> None:
        self._connection.sendall(DONE)

    def await_confirmation(self) -> None:
        receive(self._connection, memoryview(bytearray(len(DONE))), self._deadline_s)


class Sealed:
    """In segments that nobody else can read, and that are noticed when they were changed."""

    def __init__(
        self,
        connection: socket.socket,
        *,
        outward: Sealing,
        inward: Sealing,
        deadline_s: float | None = None,
    ) -> None:
        self._connection = connection
        self._outward = outward
        self._inward = inward
        self._deadline_s = deadline_s

    def send(self, parts: Iterable[memoryview]) -> None:
        sealed = (self._outward.seal(joined(segment)) for segment in segments(parts))
        send(self._connection, sealed, self._deadline_s)

    def receive(self, parts: Iterable[memoryview]) -> None:
        sealed = memoryview(bytearray(SEGMENT_BYTES + TAG_BYTES))
        for segment in segments(parts):
            nbytes = sum(piece.nbytes for piece in segment)
            came = sealed[: nbytes + TAG_BYTES]
            receive(self._connection, came, self._deadline_s)
            if len(segment) == 1:
                self._inward.unseal(came, segment[0])
            else:
                self._scatter(came, nbytes, segment)

    def _scatter(self, came: memoryview, nbytes: int, pieces: Iterable[memoryview]) -> None:
        plain = memoryview(bytearray(nbytes))
        self._inward.unseal(came, plain)
        for piece in pieces:
            piece[:] = plain[: piece.nbytes]
            plain = plain[piece.nbytes :]

    def confirm(self) -> None:
        self._connection.sendall(self._outward.seal(memoryview(b"")))

    def await_confirmation(self) -> None:
        sealed = memoryview(bytearray(TAG_BYTES))
        receive(self._connection, sealed, self._deadline_s)
        self._inward.unseal(sealed, memoryview(bytearray()))


def send(
    connection: socket.socket, parts: Iterable[memoryview], deadline_s: float | None = None
) -> None:
    """All of them. `OSError` when the other end hangs up, or nothing moves for too long: as long as
    the connection's timeout where there is no deadline.

    The kernel waits until there is room for more, not this thread: that takes a fifth less
    processor time, by which a socket between two processes is as much faster.
    """
    timeout_s = connection.gettimeout()
    connection.settimeout(None)
    try:
        for part in parts:
            at = 0
            while at < part.nbytes:
                wait_s = timeout_s if deadline_s is None else _next_s(deadline_s)
                connection.setsockopt(SOL_SOCKET, SO_SNDTIMEO, _timeval(wait_s))
                at += connection.send(part[at:])
    except BlockingIOError as error:
        raise TimeoutError("nothing moved") from error
    finally:
        connection.settimeout(timeout_s)


def _timeval(seconds: float | None) -> bytes:
    """As the kernel takes it; zero for ever."""
    whole, part = divmod(seconds or 0.0, 1.0)
    return struct.pack("@ll", int(whole), int(part * 1e6))


def receive(connection: socket.socket, out: memoryview, deadline_s: float | None = None) -> None:
    """Fill it. `OSError` when the other end hangs up, or time is up."""
    at = 0
    while at < out.nbytes:
        set_timeout(connection, deadline_s)
        came = connection.recv_into(out[at:])
        if not came:
            raise ConnectionResetError("cut off")
        at += came


def set_timeout(connection: socket.socket, deadline_s: float | None) -> None:
    """For what comes next. `TimeoutError` when there is no time left."""
    if deadline_s is not None:
        connection.settimeout(_next_s(deadline_s))


def _next_s(deadline_s: float) -> float:
    """How long the next step may take."""
    return max(min(left_s(deadline_s), QUIET_S), 1e-3)


def left_s(deadline_s: float) -> float:
    """`TimeoutError` when there is none."""
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("its time was up")
    return left_s
