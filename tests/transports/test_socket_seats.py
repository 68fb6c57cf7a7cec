"""Who has to go when one more connection comes than there may be."""

from __future__ import annotations

import contextlib
import socket

import pytest

from tests.waiting import wait_until
from transferqueue.transports import socket_shard
from transferqueue.transports.base import EndConfig
from transferqueue.transports.socket_client import SocketClientEnd
from transferqueue.transports.socket_seats import Seats
from transferqueue.transports.socket_shard import SocketShardEnd


def seats(num: int = 4, strangers: int = 2) -> Seats[str]:
    return Seats(num_seats=num, num_for_strangers=strangers)


def test_of_too_many_strangers_the_one_goes_that_was_here_longest() -> None:
    four = seats()
    assert [four.come(one) for one in "abcd"] == [None, None, "a", "b"]
    four.leave("c")
    assert four.come("e") is None


def known(four: Seats[str], names: str) -> None:
    for one in names:
        assert four.come(one) is None
        four.work(one)
        four.rest(one)


def test_who_has_shown_a_ticket_goes_only_when_it_is_idle_and_no_seat_is_left() -> None:
    four = seats()
    known(four, "abcd")
    four.work("a")
    assert four.come("e") == "b"
    four.work("e")
    four.rest("a")
    assert four.come("f") == "c"
    assert four.come("g") == "d"
    assert four.come("h") == "f"  # of strangers there are enough


def test_where_all_are_busy_who_comes_is_not_served() -> None:
    two = seats(num=2)
    for one in "ab":
        two.come(one)
        two.work(one)
    assert two.come("c") == "c"
    two.leave("a")
    assert two.come("d") is None


def test_who_is_to_be_cut_off_does_not_come_back_by_a_request_that_was_under_way() -> None:
    two = seats(num=2)
    known(two, "ab")
    assert two.come("c") == "a"
    two.work("a")
    two.rest("a")
    two.leave("c")
    assert two.come("d") is None


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> SocketShardEnd:
    monkeypatch.setattr(socket_shard, "MAX_CONNECTIONS", 8)
    monkeypatch.setattr(socket_shard, "MAX_STRANGERS", 4)
    return SocketShardEnd(EndConfig(service_id="seats", slot=0, host="127.0.0.1"))


def read(shard: SocketShardEnd, client: SocketClientEnd) -> bytes:
    out = bytearray(3)
    ticket = shard.open_window([memoryview(b"abc")], writable=False)
    client.read(ticket, 0, memoryview(out), timeout_s=10.0)
    shard.close_window(ticket)
    return bytes(out)


def test_somebody_who_opens_connections_only_to_hold_them_keeps_no_client_out(
    shard: SocketShardEnd,
) -> None:
    at = str(shard.facts["host"]), int(shard.facts["port"])
    with contextlib.closing(shard), contextlib.ExitStack() as held:
        for _ in range(20):
            held.enter_context(socket.create_connection(at, 5.0))
        client = held.enter_context(SocketClientEnd(shard.facts))
        assert read(shard, client) == b"abc"
        for _ in range(20):
            held.enter_context(socket.create_connection(at, 5.0))
        assert read(shard, client) == b"abc"
        wait_until(lambda: len(shard._connections) == 5)  # 4 strangers, and the same connection


def test_more_clients_than_there_are_seats_are_all_served(shard: SocketShardEnd) -> None:
    with contextlib.closing(shard), contextlib.ExitStack() as connected:
        clients = [connected.enter_context(SocketClientEnd(shard.facts)) for _ in range(20)]
        for _ in range(2):
            assert [read(shard, client) for client in clients] == [b"abc"] * 20
        wait_until(lambda: len(shard._connections) <= 8)
