"""Whether those who wait are still there."""

from __future__ import annotations

from transferqueue.coordinator.parked import GONE_AFTER_S, ParkedRequests
from transferqueue.net.presence import PROBE_S
from transferqueue.net.server import Request


def _request(peer: bytes, number: int) -> Request:
    return Request(peer=peer, request_id=number, op="claim", body={}, frames=(), received_s=0.0)


class Peers:
    """Who is connected, and who was told."""

    def __init__(self, *connected: bytes) -> None:
        self.connected = set(connected)
        self.told: list[bytes] = []

    def probe(self, request: Request) -> bool:
        self.told.append(request.peer)
        return request.peer in self.connected


def test_all_requests_of_a_peer_that_stays_away_are_named() -> None:
    peers = Peers(b"here")
    parked = ParkedRequests(peers.probe)
    for number, peer in enumerate((b"here", b"gone", b"gone")):
        parked.add(_request(peer, number))
    assert parked.gone(10.0) == []
    assert parked.gone(10.0 + PROBE_S / 2) == []
    assert sorted(peers.told) == [b"gone", b"here"]  # once a peer, and not before it is time
    named = parked.gone(10.0 + max(PROBE_S, GONE_AFTER_S))
    assert [request.key for request in named] == [(b"gone", 1), (b"gone", 2)]


def test_a_peer_that_comes_back_in_time_keeps_its_place() -> None:
    peers = Peers()
    parked = ParkedRequests(peers.probe)
    parked.add(_request(b"cut off", 1))
    now_s = 5.0
    for connected in (False, True, False, True):
        peers.connected = {b"cut off"} if connected else set()
        assert parked.gone(now_s) == []
        now_s += PROBE_S


def test_nobody_is_asked_when_nobody_waits() -> None:
    peers = Peers()
    parked = ParkedRequests(peers.probe)
    parked.add(_request(b"a", 1))
    assert parked.next_s() is not None
    assert parked.pop((b"a", 1)) is not None
    assert parked.pop((b"a", 1)) is None
    assert parked.next_s() is None
    assert parked.gone(5.0) == []
    assert peers.told == []
