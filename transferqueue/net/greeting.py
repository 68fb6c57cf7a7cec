"""Whether there is a service at a TCP address, and whether it takes our key.

A peer that refuses a key says nothing, so a request to it ends like one to nobody. libzmq knows
better: it reports each step of a handshake to whoever watches the socket.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import parse_monitor_message

from transferqueue.net.sockets import common_options, milliseconds, new_context

if TYPE_CHECKING:
    from transferqueue.net.keys import ClientKeys


class Greeting(StrEnum):
    """What came of it."""

    WELCOME = "welcome"
    """A service is there, and takes the key."""
    REFUSED = "refused"
    """Something is there, and does not take the key."""
    SILENT = "silent"
    """Something accepts connections there and does not speak as a service does."""
    ABSENT = "absent"
    """Nobody listens there, or nothing gets through."""


_DECIDES = {
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): Greeting.WELCOME,
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): Greeting.REFUSED,
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): Greeting.REFUSED,
    # So ends a handshake with the wrong public key of the server: it cannot read a word.
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): Greeting.REFUSED,
}


def greet(endpoint: str, keys: ClientKeys | None, *, timeout_s: float) -> Greeting:
    """Shake hands and leave. Sends no request. Blocks for ``timeout_s`` at most."""
    context = new_context()
    socket = context.socket(zmq.DEALER)
    try:
        common_options(socket)
        if keys is not None:
            keys.apply(socket)
        monitor = socket.get_monitor_socket()
        try:
            socket.connect(endpoint)
            return _watch(monitor, time.monotonic() + timeout_s)
        finally:
            socket.disable_monitor()
            monitor.close()
    finally:
        socket.close(linger=0)
        context.term()


def _watch(monitor: zmq.Socket[bytes], deadline_s: float) -> Greeting:
    found = Greeting.ABSENT
    while (left_s := deadline_s - time.monotonic()) > 0:
        if not monitor.poll(milliseconds(left_s)):
            continue
        event = int(parse_monitor_message(monitor.recv_multipart())["event"])
        if event in _DECIDES:
            return _DECIDES[event]
        if event == int(zmq.EVENT_CONNECTED):
            found = Greeting.SILENT
    return found


def library_facts() -> dict[str, object]:
    """What of libzmq is installed."""
    return {
        "pyzmq": zmq.pyzmq_version(),
        "libzmq": zmq.zmq_version(),
        "curve": bool(zmq.has("curve")),
    }
