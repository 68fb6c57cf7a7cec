"""Every transport that comes with the package keeps the contract, and what breaks it is caught."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.waiting import wait_until
from transferqueue.errors import TransportFailed
from transferqueue.testing.broken import ContractBroken
from transferqueue.testing.leaks import no_leaks
from transferqueue.testing.transport_contract import TRANSPORT_CHECKS, check_transport
from transferqueue.testing.transport_probe import Subject
from transferqueue.transports import socket_shard
from transferqueue.transports.base import EndConfig
from transferqueue.transports.socket_client import SocketClientEnd
from transferqueue.transports.socket_connection import ClientConnection
from transferqueue.transports.socket_request import HEADER, Ticket
from transferqueue.transports.socket_shard import VANISHED_S, SocketShardEnd
from transferqueue.transports.sockets import SocketTransport
from transferqueue.transports.window import PART_BYTES, Window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from transferqueue.testing.transport_probe import Check
    from transferqueue.transports.base import ClientEnd, ShardEnd

ENDS = {
    "over TCP": {"host": "127.0.0.1"},
    "over TCP, encrypted": {"host": "127.0.0.1", "encrypt": True},
    "within a host": {"host": None, "encrypt": True},
}


@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("ends", ENDS)
def test_sockets_keep_the_contract(ends: str, check: Check) -> None:
    settings: dict[str, Any] = ENDS[ends]
    with no_leaks():
        check(Subject(transport=SocketTransport, options={}, **settings))


def test_parts_of_a_window_are_its_pieces_cut_to_size() -> None:
    pieces = [np.arange(n, dtype=np.int64).view(np.uint8) for n in (3, 0, 1, PART_BYTES // 4)]
    window = Window([piece.data for piece in pieces], writable=False)
    whole = np.concatenate(pieces)
    for low, high in ((0, len(whole)), (5, 29), (24, 32), (40, 40), (31, len(whole))):
        parts = list(window.parts(low, high - low))
        assert b"".join(parts) == whole[low:high].tobytes()
        assert all(0 < part.nbytes <= PART_BYTES for part in parts)
    assert not window.holds(0, len(whole) + 1)
    assert not window.holds(-1, 1)


@pytest.fixture
def shard_end() -> Iterator[SocketShardEnd]:
    config = EndConfig(service_id="0123", slot=0, host="127.0.0.1", encrypt=False)
    with contextlib.closing(SocketShardEnd(config)) as end:
        yield end


def read(end: SocketShardEnd, client: ClientEnd) -> bytes:
    out = bytearray(3)
    ticket = end.open_window([memoryview(b"abc")], writable=False)
    client.read(ticket, 0, memoryview(out), timeout_s=10.0)
    end.close_window(ticket)
    return bytes(out)


def test_a_stranger_has_one_deadline_however_slowly_it_talks(
    shard_end: SocketShardEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_shard, "STRANGER_S", 0.2)
    at, num_sent = (shard_end.facts["host"], shard_end.facts["port"]), 0
    with socket.create_connection(at, 5.0) as stranger:

        def is_cut_off() -> bool:
            nonlocal num_sent
            try:
                stranger.sendall(b"t")
                num_sent += 1
                stranger.settimeout(0.05)
                return stranger.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_cut_off)
        assert num_sent < HEADER.size


def test_a_call_that_is_interrupted_leaves_no_connection(
    shard_end: SocketShardEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with contextlib.closing(SocketClientEnd(shard_end.facts)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(ClientConnection, "asked", interrupted)
            with pytest.raises(KeyboardInterrupt) as caught:
                read(shard_end, client)
        wait_until(lambda: not shard_end._connections)
        del caught
        assert read(shard_end, client) == b"abc"


def test_without_a_thread_a_connection_is_cut_off_and_the_next_is_served(
    shard_end: SocketShardEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with contextlib.closing(SocketClientEnd(shard_end.facts)) as client:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(TransportFailed):
                read(shard_end, client)
        assert shard_end._connections == {}
        assert read(shard_end, client) == b"abc"


def test_a_peer_whose_host_has_failed_is_noticed(shard_end: SocketShardEnd) -> None:
    with contextlib.closing(SocketClientEnd(shard_end.facts)) as client:
        assert read(shard_end, client) == b"abc"
        (connection,) = shard_end._connections
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        limit_ms = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert limit_ms == VANISHED_S * 1000


def test_the_end_of_a_read_does_not_wait_for_acknowledgements(shard_end: SocketShardEnd) -> None:
    with contextlib.closing(SocketClientEnd(shard_end.facts)) as client:
        assert read(shard_end, client) == b"abc"
        (connection,) = shard_end._connections
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class StaysOpen(SocketShardEnd):
    def close_window(self, ticket: bytes) -> None:
        pass


class LetsAnybodyWrite(SocketShardEnd):
    def open_window(self, pieces: Sequence[memoryview], *, writable: bool) -> bytes:
        mine = [np.frombuffer(piece, np.uint8).copy().data for piece in pieces]
        return super().open_window(pieces if writable else mine, writable=True)


class SameTicket(SocketShardEnd):
    def open_window(self, pieces: Sequence[memoryview], *, writable: bool) -> bytes:
        same = Ticket(window_id=bytes(16), secret=bytes(32))
        ticket = Ticket.from_bytes(super().open_window(pieces, writable=writable))
        assert ticket is not None
        opened = self._windows.pop(ticket.window_id)
        opened.secret = same.secret
        self._windows[same.window_id] = opened
        return bytes(same)


class ForgetsAByte(SocketClientEnd):
    def read(self, ticket: bytes, offset: int, out: memoryview, *, timeout_s: float) -> None:
        super().read(ticket, offset, out[: max(0, out.nbytes - 1)], timeout_s=timeout_s)


def broken(shard: type[SocketShardEnd], client: type[SocketClientEnd]) -> type[SocketTransport]:
    class Broken(SocketTransport):
        @classmethod
        def open_shard_end(cls, config: EndConfig) -> ShardEnd:
            return shard(config)

        @classmethod
        def open_client_end(cls, facts: Mapping[str, Any]) -> ClientEnd:
            return client(facts)

    return Broken


@pytest.mark.parametrize(
    ("shard", "client", "check"),
    [
        (StaysOpen, SocketClientEnd, "a_closed_window_is_closed"),
        (LetsAnybodyWrite, SocketClientEnd, "what_a_window_does_not_allow_is_refused"),
        (SameTicket, SocketClientEnd, "tickets_are_small_and_unlike_one_another"),
        (SocketShardEnd, ForgetsAByte, "a_window_is_read_in_any_parts"),
    ],
)
def test_a_transport_that_breaks_the_contract_is_caught(
    shard: type[SocketShardEnd], client: type[SocketClientEnd], check: str
) -> None:
    with pytest.raises(ContractBroken, match=f"^{check}: "):
        check_transport(broken(shard, client))
