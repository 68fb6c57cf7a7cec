"""How every socket of this package is made: no silent drops, short lingering, quick reconnects."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq

from transferqueue.errors import CannotListen, WireError
from transferqueue.wire.format import Buffer, Message, decode_message, encode_message
from transferqueue.wire.ops import WAS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transferqueue.net.calls import Call
    from transferqueue.net.keys import ClientKeys

IDENTITY_BYTES = 16

LINGER_MS = 200
"""Long enough for a farewell to leave on a healthy connection."""

MAX_FRAME_BYTES = 256 << 20
"""Whoever sends a longer frame is cut off before it is read. Payload comes in frames of about
1 MiB; the largest frame that is sent is one 8-byte number a row for 2**24 rows."""

PING_MS = 5_000
SILENCE_MS = 15_000
"""A TCP connection on which nothing has come for so long, pings included, is made anew. Without
that a connection over a link that was down waits out TCP's own doubling retries, for minutes."""

CONNECT_MS = 5_000


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A context whose encryption is not bound to one core where there are many: each connection
    belongs to one I/O thread, and CURVE moves about 1 GB/s a thread."""
    return zmq.Context(max(1, min(4, len(os.sched_getaffinity(0)) // 4)))


def bind_to(sock: zmq.Socket[bytes], endpoint: str) -> str:
    """Have a socket listen; returns where, with the port that it was given. `CannotListen`."""
    try:
        sock.bind(endpoint)
    except zmq.ZMQError as error:
        raise CannotListen(endpoint, error.strerror) from error
    last = sock.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(last, bytes)
    return last.decode().rstrip("\0")


def common_options(socket: zmq.Socket[bytes]) -> None:
    """Options of both ends. Queues are unbounded: bytes in flight are bounded by the protocol
    above (a client waits for its answer), and a full queue would drop messages at a ROUTER."""
    socket.sndhwm = 0
    socket.rcvhwm = 0
    socket.linger = LINGER_MS
    socket.reconnect_ivl = 50
    socket.reconnect_ivl_max = 1000
    socket.maxmsgsize = MAX_FRAME_BYTES


BACKLOG = 4096
"""Connections that may wait to be accepted: every client of a large job connects at once."""


def new_router(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """The ROUTER of a server, not bound yet."""
    router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    common_options(router)
    router.backlog = BACKLOG
    router.router_handover = True
    router.router_mandatory = True  # a send says whether its peer is connected at all
    router.handshake_ivl = 10_000
    # A client says with its first ping, after PING_MS, when to hang up. One whose host fails before
    # that is known by what it does not acknowledge: else TCP goes on trying for 15 minutes.
    router.tcp_maxrt = SILENCE_MS + PING_MS
    return router


def connect_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ClientKeys | None
) -> zmq.Socket[bytes]:
    """A DEALER with an identity of its own, so that a reconnect is still the same peer."""
    socket = context.socket(zmq.DEALER)
    common_options(socket)
    socket.routing_id = b"\x01" + os.urandom(IDENTITY_BYTES - 1)  # libzmq reserves a leading zero
    if endpoint.startswith("tcp://"):
        _watch_connection(socket)
        if keys is not None:
            keys.apply(socket)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise
    return socket


def said_where_it_was(call: Call, sockets: Mapping[str, zmq.Socket[bytes]]) -> Call:
    """A call that went to other peers before says by which name each of them knew this one: whoever
    has their place may know of it."""
    been = [sockets[endpoint] for endpoint in call.moved_from if endpoint in sockets]
    if not been:
        return call
    return call.with_more(WAS, [socket.getsockopt(zmq.ROUTING_ID) for socket in been])


def _watch_connection(socket: zmq.Socket[bytes]) -> None:
    """This end pings, and the other end learns from the ping after what silence to hang up."""
    socket.heartbeat_ivl = PING_MS
    socket.heartbeat_timeout = SILENCE_MS
    socket.heartbeat_ttl = SILENCE_MS + PING_MS
    socket.connect_timeout = CONNECT_MS


def descriptor(socket: zmq.Socket[bytes]) -> int:
    """The file descriptor that turns readable when something happened to the socket."""
    fd = socket.getsockopt(zmq.FD)
    assert isinstance(fd, int)
    return fd


def milliseconds(wait_s: float) -> int:
    """A wait for ``poll``, rounded up: rounding down would spin through the last millisecond."""
    return max(0, math.ceil(wait_s * 1000))


@dataclass(slots=True)
class WireBytes:
    """Bytes of all messages that went through some sockets, headers and payload."""

    sent: int = 0
    received: int = 0


ZERO_COPY_FROM_BYTES = 64 << 10
"""A frame of fewer bytes is copied: libzmq tells when it is done with the others, which costs a
few µs each."""

# As plain numbers: combining members of an IntFlag takes as long as sending a small frame.
_NOW = int(zmq.DONTWAIT)
_MORE = int(zmq.SNDMORE)
_EVENTS, _IN = int(zmq.EVENTS), int(zmq.POLLIN)


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Buffer]) -> int:
    """Send one message without ever waiting; how many bytes it has. ``zmq.Again``: not taken."""
    num_bytes = 0
    last = len(frames) - 1
    for number, frame in enumerate(frames):
        size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
        flags = _NOW if number == last else _NOW | _MORE
        socket.send(frame, flags, copy=size < ZERO_COPY_FROM_BYTES)
        num_bytes += size
    return num_bytes


def send_or_drop(
    socket: zmq.Socket[bytes], message: Message, count: WireBytes | None = None
) -> bool:
    """Send without ever waiting; whether it was taken.

    Queues are unbounded, so a DEALER refuses a message only when it has no connection left: its
    peer refused its key, and libzmq does not try again.
    """
    try:
        num_bytes = send_frames(socket, encode_message(message))
    except zmq.Again:
        return False
    if count is not None:
        count.sent += num_bytes
    return True


def receive_frames(socket: zmq.Socket[bytes]) -> list[memoryview]:
    """The frames of the next message, not copied. ``zmq.Again`` when there is none."""
    return [frame.buffer for frame in _receive(socket)]


def _receive(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    frames = [socket.recv(_NOW, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(_NOW, copy=False))
    return frames


def may_receive(socket: zmq.Socket[bytes]) -> bool:
    """Whether there is a message now. To ask takes less than half of what ``zmq.Again`` does."""
    events: Any = socket.getsockopt(_EVENTS)
    return bool(events & _IN)


def receive_with_key(
    socket: zmq.Socket[bytes], *, may_have_key: bool
) -> tuple[list[memoryview], str | None]:
    """Frames as `receive_frames` gives them, and the name of the key that their connection showed;
    ``None`` for one of this host. To ask costs 0.3 µs, and 6 where there is none."""
    frames = _receive(socket)
    name = None
    if may_have_key:
        with contextlib.suppress(zmq.ZMQError):
            name = str(frames[-1].get("User-Id"))
    return [frame.buffer for frame in frames], name


def receive_or_none(socket: zmq.Socket[bytes], count: WireBytes | None = None) -> Message | None:
    """The next message that has arrived at a DEALER; what is not ours is passed over.

    Only a peer of another version sends such a thing; the deadline of the call tells.
    """
    while True:
        try:
            frames = receive_frames(socket)
        except zmq.Again:
            return None
        if count is not None:
            count.received += sum([frame.nbytes for frame in frames])
        try:
            return decode_message(frames)
        except WireError:
            continue
