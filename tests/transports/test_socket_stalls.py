"""Peers that stop in the middle, or never begin: nobody waits for them longer than was said."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.waiting import wait_until
from transferqueue.errors import TransportFailed
from transferqueue.transports.base import EndConfig
from transferqueue.transports.sealing import SEGMENT_BYTES
from transferqueue.transports.socket_client import SocketClientEnd
from transferqueue.transports.socket_connection import ClientConnection
from transferqueue.transports.socket_request import READ, WRITE, Request, Ticket
from transferqueue.transports.socket_shard import SocketShardEnd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transferqueue.transports.passages import Passage

NUM_BYTES = 32 * SEGMENT_BYTES
"""More than the kernel keeps of a connection."""


@pytest.fixture(params=[False, True], ids=["clear", "sealed"])
def shard(request: pytest.FixtureRequest) -> Iterator[SocketShardEnd]:
    config = EndConfig(service_id="stalls", slot=0, host="127.0.0.1", encrypt=request.param)
    with contextlib.closing(SocketShardEnd(config)) as end:
        yield end


class Recorder:
    """Takes what a `Passage` sends, to send only some of it."""

    def __init__(self) -> None:
        self.sent = bytearray()

    def gettimeout(self) -> None:
        return None

    def settimeout(self, timeout_s: float | None) -> None:
        pass

    def setsockopt(self, *option: object) -> None:
        pass

    def sendall(self, data: memoryview) -> None:
        self.sent += data

    def send(self, data: memoryview) -> int:
        taken = data[: SEGMENT_BYTES // 2 + 1]  # a socket takes what it has room for
        self.sent += taken
        return len(taken)


@contextlib.contextmanager
def asking(
    shard: SocketShardEnd, ticket: bytes, operation: int
) -> Iterator[tuple[socket.socket, Passage]]:
    """A client that was let in and has moved nothing."""
    known = Ticket.from_bytes(ticket)
    assert known is not None
    deadline_s = time.monotonic() + 10.0
    at = str(shard.facts["host"]), int(shard.facts["port"])
    with socket.create_connection(at, 10.0) as connected:
        client = ClientConnection(
            connected, is_sealed=bool(shard.facts["sealed"]), deadline_s=deadline_s
        )
        request = Request(
            window_id=known.window_id, operation=operation, offset=0, nbytes=NUM_BYTES
        )
        passage = client.asked(known, request, open_by_s=deadline_s, deadline_s=deadline_s)
        assert passage is not None
        yield connected, passage


def close_soon(shard: SocketShardEnd, ticket: bytes) -> None:
    begun_s = time.monotonic()
    shard.close_window(ticket)
    assert time.monotonic() - begun_s < 1.0


def test_a_writer_that_stops_within_a_segment_keeps_no_window_open(shard: SocketShardEnd) -> None:
    place = np.zeros(NUM_BYTES, np.uint8)
    ticket = shard.open_window([place.data], writable=True)
    with asking(shard, ticket, WRITE) as (connected, passage):
        recorder = Recorder()
        passage._connection = recorder  # type: ignore[attr-defined]
        passage.send([np.ones(2 * SEGMENT_BYTES, np.uint8).data])
        half = len(recorder.sent) - SEGMENT_BYTES // 2
        connected.sendall(recorder.sent[:half])
        wait_until(lambda: place[SEGMENT_BYTES - 1] == 1)
        close_soon(shard, ticket)
        place[:] = 0
        with contextlib.suppress(OSError):
            connected.sendall(recorder.sent[half:])
        wait_until(lambda: not shard._connections)
    assert not place.any()


def test_a_reader_that_stops_within_a_segment_keeps_no_window_open(shard: SocketShardEnd) -> None:
    ticket = shard.open_window([np.ones(NUM_BYTES, np.uint8).data], writable=False)
    with asking(shard, ticket, READ) as (connected, _):
        connected.recv(SEGMENT_BYTES // 2, socket.MSG_WAITALL)
        close_soon(shard, ticket)
        wait_until(lambda: not shard._connections)


TIMEOUT_S = 1.0


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("sealed", [False, True], ids=["clear", "sealed"])
def test_of_a_listener_that_says_nothing_half_of_the_time_is_left_for_another_way(
    *, write: bool, sealed: bool
) -> None:
    """It may be a wall that lets connections through and nothing else."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        host, port = listener.getsockname()
        facts = {"host": host, "port": port, "sealed": sealed}
        client = stack.enter_context(contextlib.closing(SocketClientEnd(facts)))
        move = client.write if write else client.read
        begun_s = time.monotonic()
        with pytest.raises(TransportFailed):
            move(bytes(Ticket.new()), 0, memoryview(bytearray(10)), timeout_s=TIMEOUT_S)
        assert time.monotonic() - begun_s < 0.75 * TIMEOUT_S
