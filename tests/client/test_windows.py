"""Bytes that go by a transport, and what becomes of a move that fails."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from transferqueue.client import windows as windows_module
from transferqueue.client.windows import ClientWindows, Move
from transferqueue.errors import TransportFailed
from transferqueue.transports.base import ClientEnd
from transferqueue.transports.sockets import SocketTransport
from transferqueue.wire.window import OpenWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TIMEOUT_S = 0.05


class End(ClientEnd):
    """``act`` is done for each piece."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.timeouts_s: list[float] = []

    def read(self, ticket: bytes, offset: int, out: memoryview, *, timeout_s: float) -> None:
        raise NotImplementedError

    def write(self, ticket: bytes, offset: int, data: memoryview, *, timeout_s: float) -> None:
        self.timeouts_s.append(timeout_s)
        self._act()

    def close(self) -> None:
        pass


class Shard:
    slot = 0


def carried_out(
    monkeypatch: pytest.MonkeyPatch, end: End, *, required: str | None = None, pieces: int = 3
) -> bool:
    class Transport:
        @classmethod
        def open_client_end(cls, facts: Mapping[str, Any]) -> End:
            return end

    monkeypatch.setattr(windows_module, "load_transport", lambda name: Transport)
    windows = ClientWindows(is_on=True, required=required)

    def cut() -> Iterator[tuple[int, memoryview]]:
        for number in range(pieces):
            yield number, memoryview(b"x")

    move = Move(
        slot=0,
        transport="mine",
        window=OpenWindow(ticket=b"t", process="p", facts={}),
        is_write=True,
        num_bytes=pieces,
        pieces=cut(),
    )
    return windows.carry_out(Shard(), move, TIMEOUT_S)  # type: ignore[arg-type]


def test_a_transport_is_not_called_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    end = End(lambda: time.sleep(1.5 * TIMEOUT_S))
    assert not carried_out(monkeypatch, end)
    assert len(end.timeouts_s) == 1
    assert min(end.timeouts_s) > 0
    with pytest.raises(TransportFailed, match=r"not done in 0\.1 s"):
        carried_out(monkeypatch, end, required="mine")


def test_an_error_of_the_system_that_a_transport_lets_through_is_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks() -> None:
        raise ConnectionResetError("cut off")

    assert not carried_out(monkeypatch, End(breaks))
    with pytest.raises(TransportFailed, match="cut off"):
        carried_out(monkeypatch, End(breaks), required="mine")


@pytest.mark.parametrize(
    "facts", [{}, {"host": "127.0.0.1", "port": 1 << 20}, {"host": 7, "port": "x"}, {"path": 7}]
)
def test_facts_of_a_shard_that_are_none_are_a_failure_of_the_transport(
    facts: dict[str, Any],
) -> None:
    with pytest.raises(TransportFailed, match="facts"):
        SocketTransport.open_client_end(facts)
