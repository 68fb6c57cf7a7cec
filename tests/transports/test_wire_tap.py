"""Somebody on the way between a client and a shard: what they see, change and play again."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.errors import ConfigError, TransportFailed
from transferqueue.transports import passages
from transferqueue.transports.base import EndConfig
from transferqueue.transports.sealing import SALT_BYTES, SEGMENT_BYTES, TAG_BYTES
from transferqueue.transports.socket_client import SocketClientEnd
from transferqueue.transports.socket_connection import REFUSED
from transferqueue.transports.socket_request import HEADER, SEALED_PROOF_BYTES, Ticket
from transferqueue.transports.socket_shard import SocketShardEnd
from transferqueue.transports.sockets import SocketTransport

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_BYTES = SEGMENT_BYTES + 1000
UP, DOWN = 0, 1


class Tap:
    """Carries a connection on to a shard; keeps what went each way, and flips one bit."""

    def __init__(
        self,
        to: tuple[str, int],
        flip: tuple[int, int] | None = None,
        swallow: tuple[int, int] | None = None,
    ) -> None:
        """``flip``: direction, and which of its bytes. ``swallow``: direction, and from about which
        of its bytes on nothing arrives, while the connection stays."""
        self._to = to
        self._flip = flip
        self._swallow = swallow
        self.seen = [bytearray(), bytearray()]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def facts(self) -> dict[str, object]:
        host, port = self._listener.getsockname()
        return {"host": host, "port": port, "sealed": True}

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            shard = socket.create_connection(self._to)
            self._ends += [client, shard]
            for direction, ends in ((UP, (client, shard)), (DOWN, (shard, client))):
                self._threads.append(threading.Thread(target=self._carry, args=(direction, *ends)))
                self._threads[-1].start()

    def _carry(self, direction: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                self._change(direction, data)
                self.seen[direction] += data
                if not self._is_swallowed(direction):
                    target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _is_swallowed(self, direction: int) -> bool:
        if self._swallow is None or self._swallow[0] != direction:
            return False
        return len(self.seen[direction]) >= self._swallow[1]

    def _change(self, direction: int, data: bytearray) -> None:
        if self._flip is not None and self._flip[0] == direction:
            at = self._flip[1] - len(self.seen[direction])
            if 0 <= at < len(data):
                data[at] ^= 1

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()


@pytest.fixture
def shard() -> Iterator[SocketShardEnd]:
    config = EndConfig(service_id="tap", slot=0, host="127.0.0.1")
    with contextlib.closing(SocketShardEnd(config)) as end:
        yield end


def address(shard: SocketShardEnd) -> tuple[str, int]:
    return str(shard.facts["host"]), int(shard.facts["port"])


def text() -> bytearray:
    return bytearray(np.resize(np.frombuffer(b"a secret of ours; ", np.uint8), NUM_BYTES))


def move(
    shard: SocketShardEnd, tap: Tap, *, write: bool, timeout_s: float = 10.0
) -> tuple[bytes, bytes]:
    """What was sent, and what arrived at the other end."""
    mine, theirs = text(), bytearray(NUM_BYTES)
    ticket = shard.open_window([memoryview(theirs if write else mine)], writable=write)
    try:
        with contextlib.closing(SocketClientEnd(tap.facts)) as client:
            if write:
                client.write(ticket, 0, memoryview(mine), timeout_s=timeout_s)
            else:
                client.read(ticket, 0, memoryview(theirs), timeout_s=timeout_s)
    finally:
        shard.close_window(ticket)
    return bytes(mine), bytes(theirs)


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_who_listens_sees_neither_bytes_nor_secrets(shard: SocketShardEnd, *, write: bool) -> None:
    secrets = []
    open_window = shard.open_window

    def noted(*args: object, **options: object) -> bytes:
        ticket = open_window(*args, **options)  # type: ignore[arg-type]
        known = Ticket.from_bytes(ticket)
        assert known is not None
        secrets.append(known.secret)
        return ticket

    shard.open_window = noted  # type: ignore[method-assign]
    with contextlib.closing(Tap(address(shard))) as tap:
        sent, arrived = move(shard, tap, write=write)
    assert sent == arrived
    seen = bytes(tap.seen[UP]), bytes(tap.seen[DOWN])
    assert len(seen[UP if write else DOWN]) > NUM_BYTES
    assert secrets
    for stream in seen:
        assert b"secret" not in stream
        assert secrets[0] not in stream


HELLO = HEADER.size + SEALED_PROOF_BYTES
FLIPS = {
    "salt of the shard": (DOWN, 0),
    "magic": (UP, 0),
    "window": (UP, 4),
    "operation": (UP, 20),
    "offset": (UP, 21),
    "number of bytes": (UP, 29),
    "salt of the client": (UP, HEADER.size),
    "proof": (UP, HELLO - 1),
}
DATA = {"first byte": 0, "a tag": SEGMENT_BYTES, "last byte": NUM_BYTES + 2 * TAG_BYTES - 1}
CASES = [
    *((write, flip) for write in (False, True) for flip in FLIPS.values()),
    *((False, (DOWN, SALT_BYTES + 1 + at)) for at in DATA.values()),
    *((True, (UP, HELLO + at)) for at in DATA.values()),
    (True, (DOWN, SALT_BYTES + 1)),  # that all has come
]


@pytest.mark.parametrize(("write", "flip"), CASES)
def test_a_bit_that_is_changed_anywhere_is_noticed(
    shard: SocketShardEnd, *, write: bool, flip: tuple[int, int]
) -> None:
    with contextlib.closing(Tap(address(shard), flip)) as tap, pytest.raises(TransportFailed):
        move(shard, tap, write=write)


def test_who_cannot_seal_says_so_before_anything_is_asked(
    shard: SocketShardEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    assert "pip install cryptography" in SocketTransport.why_not(shard.facts)
    assert SocketTransport.why_not({**shard.facts, "sealed": False}) == ""
    config = EndConfig(service_id="tap", slot=1, host="127.0.0.1")
    with pytest.raises(ConfigError, match="pip install cryptography"):
        SocketTransport.open_shard_end(config)
    SocketTransport.open_shard_end(replace(config, encrypt=False)).close()


@pytest.mark.parametrize(("write", "direction"), [(False, DOWN), (True, UP), (True, DOWN)])
def test_a_way_that_lets_nothing_more_through_is_left_long_before_the_deadline(
    shard: SocketShardEnd, monkeypatch: pytest.MonkeyPatch, *, write: bool, direction: int
) -> None:
    monkeypatch.setattr(passages, "QUIET_S", 0.3)
    at_byte = HELLO + 1 if direction == UP else SALT_BYTES + 2
    tap = Tap(address(shard), swallow=(direction, at_byte))
    begun_s = time.monotonic()
    with contextlib.closing(tap), pytest.raises(TransportFailed):
        move(shard, tap, write=write, timeout_s=60.0)
    assert time.monotonic() - begun_s < 30.0


def test_a_write_that_is_played_again_changes_nothing(shard: SocketShardEnd) -> None:
    memory = bytearray(NUM_BYTES)
    ticket = shard.open_window([memoryview(memory)], writable=True)
    with (
        contextlib.closing(Tap(address(shard))) as tap,
        contextlib.closing(SocketClientEnd(tap.facts)) as client,
    ):
        client.write(ticket, 0, memoryview(text()), timeout_s=10.0)
    assert memory == text()
    memory[:] = bytes(NUM_BYTES)
    with socket.create_connection(address(shard), 10.0) as thief:
        thief.recv(SALT_BYTES, socket.MSG_WAITALL)
        thief.sendall(tap.seen[UP][:HELLO])
        assert thief.recv(1) == REFUSED
    shard.close_window(ticket)
    assert memory == bytes(NUM_BYTES)
