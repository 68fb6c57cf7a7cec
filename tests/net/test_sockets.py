"""What the kernel is told of connections."""

from __future__ import annotations

import contextlib
import os
import socket

from transferqueue.net.sockets import PING_MS, SILENCE_MS, bind_to, new_context, new_router


def user_timeouts_ms(port: int) -> list[int]:
    """Of this process's connections to whoever has connected to a port of its own."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_INET and one.getsockname()[1] == port:
                    one.getpeername()  # else it is the one that listens
                    found.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return found


def test_a_client_whose_host_fails_before_its_first_ping_is_not_waited_for_by_tcp() -> None:
    context = new_context()
    router = new_router(context)
    try:
        port = int(bind_to(router, "tcp://127.0.0.1:*").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.recv(1)  # it has been accepted, and set up
            assert user_timeouts_ms(port) == [SILENCE_MS + PING_MS]
    finally:
        router.close(linger=0)
        context.term()
