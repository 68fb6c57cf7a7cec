"""How long a shard waits for clients of other hosts."""

from __future__ import annotations

from transferqueue.net.presence import PROBE_S
from transferqueue.net.server import Request
from transferqueue.shard.deadlines import GONE_AFTER_S, SILENCE_S, Deadlines


def test_nothing_is_given_up_before_the_clients_own_deadline_while_no_chunk_moves() -> None:
    deadlines = Deadlines(lambda request: True)
    deadlines.add(7, final_s=100.0)
    assert deadlines.next_s() == 100.0
    assert deadlines.pass_by(99.9) == []
    assert deadlines.pass_by(100.0) == [7]
    assert deadlines.next_s() is None
    assert len(deadlines) == 0


def test_silence_in_the_middle_ends_a_transfer_early() -> None:
    deadlines = Deadlines(lambda request: True)
    deadlines.add(7, final_s=1000.0)
    deadlines.heard(7, 10.0, more_to_come=True)
    assert deadlines.pass_by(10.0 + SILENCE_S - 0.1) == []
    deadlines.heard(7, 20.0, more_to_come=True)
    assert deadlines.pass_by(10.0 + SILENCE_S) == []
    assert deadlines.pass_by(20.0 + SILENCE_S) == [7]


def test_a_transfer_that_is_through_waits_for_its_client_to_the_end() -> None:
    deadlines = Deadlines(lambda request: True)
    deadlines.add(7, final_s=1000.0)
    deadlines.heard(7, 10.0, more_to_come=True)
    deadlines.heard(7, 11.0, more_to_come=False)
    assert deadlines.pass_by(999.0) == []


def test_no_chunk_puts_a_deadline_beyond_the_clients_own() -> None:
    deadlines = Deadlines(lambda request: True)
    deadlines.add(7, final_s=100.0)
    deadlines.heard(7, 99.0, more_to_come=True)
    assert deadlines.next_s() == 100.0


def test_what_ended_otherwise_is_dropped_and_dropping_twice_is_nothing() -> None:
    deadlines = Deadlines(lambda request: True)
    deadlines.add(7, final_s=100.0)
    deadlines.drop(7)
    deadlines.drop(7)
    assert deadlines.pass_by(1e9) == []


def request(peer: bytes) -> Request:
    return Request(peer=peer, request_id=1, op="put", body={"x": 1}, frames=[b"x"], received_s=0.0)


def test_a_client_without_a_connection_is_given_up_long_before_its_deadline() -> None:
    connected, probed = {b"killed", b"alive"}, []

    def probe(request: Request) -> bool:
        probed.append(request)
        return request.peer in connected

    deadlines = Deadlines(probe)
    for number, peer in enumerate((b"alive", b"killed", b"killed")):
        deadlines.add(number, 1000.0, request(peer))
    deadlines.add(3, 1000.0)  # of a client whose connection is not known
    assert deadlines.pass_by(10.0) == []
    assert deadlines.next_s() == 10.0 + PROBE_S
    assert probed == [], "most are through by then"
    connected.remove(b"killed")
    now_s = 10.0
    while now_s < 11.0 + GONE_AFTER_S:
        assert deadlines.pass_by(now_s) == []
        now_s += PROBE_S
    assert deadlines.pass_by(now_s) == [1, 2]
    assert len(deadlines) == 2
    assert deadlines.pass_by(999.0) == []


def test_a_client_that_is_back_in_time_keeps_what_it_has() -> None:
    connected: set[bytes] = set()
    deadlines = Deadlines(lambda request: request.peer in connected)
    deadlines.add(7, 1000.0, request(b"cut off"))
    for now_s in (9.0, 10.0, 11.0, 12.0):
        assert deadlines.pass_by(now_s) == []
    connected.add(b"cut off")
    assert deadlines.pass_by(13.5) == []
    connected.clear()
    assert deadlines.pass_by(14.5) == []
    assert deadlines.pass_by(16.0) == []


def test_when_a_deadline_passes_and_its_client_is_gone_it_is_named_once() -> None:
    deadlines = Deadlines(lambda request: False)
    deadlines.add(7, 21.0, request(b"killed"))
    for now_s in (10.0, 18.0):
        assert deadlines.pass_by(now_s) == []
    assert deadlines.pass_by(21.5) == [7]
    assert deadlines.next_s() is None


def test_a_cut_counts_from_when_it_began_and_not_from_an_earlier_one() -> None:
    connected: set[bytes] = set()
    deadlines = Deadlines(lambda request: request.peer in connected)
    deadlines.add(1, 100.0, request(b"p"))
    assert deadlines.pass_by(0.0) == deadlines.pass_by(PROBE_S) == []  # cut off for a moment
    deadlines.drop(1)
    assert deadlines.pass_by(2.0) == []
    deadlines.add(2, 1000.0, request(b"p"))
    assert deadlines.pass_by(500.0) == []
    assert deadlines.pass_by(500.0 + PROBE_S) == [], "cut off again, and just now"
    assert deadlines.pass_by(500.0 + PROBE_S + GONE_AFTER_S) == [2]
