"""Every transport that comes with the package keeps the contract, and what breaks it is caught."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from transferqueue.testing.broken import ContractBroken
from transferqueue.testing.leaks import no_leaks
from transferqueue.testing.transport_contract import TRANSPORT_CHECKS, check_transport
from transferqueue.testing.transport_probe import Subject
from transferqueue.transports.sockets import SocketClientEnd, SocketShardEnd, SocketTransport
from transferqueue.transports.window import PART_BYTES, Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from transferqueue.testing.transport_probe import Check
    from transferqueue.transports.base import ClientEnd, EndConfig, ShardEnd

HOSTS = {"over TCP": "127.0.0.1", "within a host": None}


@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("host", HOSTS)
def test_sockets_keep_the_contract(host: str, check: Check) -> None:
    with no_leaks():
        check(Subject(transport=SocketTransport, options={}, host=HOSTS[host]))


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


class StaysOpen(SocketShardEnd):
    def close_window(self, ticket: bytes) -> None:
        pass


class LetsAnybodyWrite(SocketShardEnd):
    def open_window(self, pieces: Sequence[memoryview], *, writable: bool) -> bytes:
        mine = [np.frombuffer(piece, np.uint8).copy().data for piece in pieces]
        return super().open_window(pieces if writable else mine, writable=True)


class SameTicket(SocketShardEnd):
    def open_window(self, pieces: Sequence[memoryview], *, writable: bool) -> bytes:
        ticket, same = super().open_window(pieces, writable=writable), bytes(range(32))
        self._windows[same] = self._windows.pop(ticket)
        return same


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
