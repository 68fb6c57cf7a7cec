"""The transport contract as checks that any implementation can run.

::

    from transferqueue.testing import check_transport

    def test_my_transport() -> None:
        check_transport(MyTransport)

Each check opens ends of its own and closes them. With pytest,
``@pytest.mark.parametrize("check", TRANSPORT_CHECKS)`` makes each a test of its own, of a
`Subject`. The texts are those of `transferqueue.transports.base`.
"""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import TransportFailed
from transferqueue.testing.broken import ContractBroken, expect
from transferqueue.testing.leaks import Leaked, no_leaks
from transferqueue.testing.transport_probe import (
    SHORT_S,
    TIMEOUT_S,
    Check,
    OtherProcess,
    Subject,
    close_window,
    expect_refused,
    pattern,
    read,
    views,
)
from transferqueue.transports.base import MAX_FACTS_BYTES, MAX_TICKET_BYTES, WindowTransport

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TRANSPORT_CHECKS", "check_transport"]

LARGE_BYTES = 8 << 20


def what_clients_are_told_is_small_and_plain(subject: Subject) -> None:
    with subject.shard_end() as shard:
        facts = dict(shard.facts)
        text = json.dumps(facts)
        expect(json.loads(text) == facts, "facts are not the same after JSON")
        expect(len(text) <= MAX_FACTS_BYTES, f"facts of {len(text)} bytes")
        expect(dict(shard.facts) == facts, "facts change")
        why_not = subject.transport.why_not(json.loads(text))
        expect(why_not == "", f"cannot reach an end of this process: {why_not!r}")
    quality = subject.transport.quality
    expect(0 < quality < 100, f"quality {quality!r} is not between 0 and 100")
    expect(isinstance(subject.transport.why_not({}), str), "why_not of strange facts is no string")


def a_window_is_read_in_any_parts(subject: Subject) -> None:
    pieces = [pattern(seed, size) for seed, size in enumerate((1, 70_001, 4096, 300_000))]
    whole = np.concatenate(pieces)
    with subject.pair() as (shard, client):
        ticket = shard.open_window(views(pieces), writable=False)
        for low, high in ((0, len(whole)), (0, 1), (1, 2), (70_000, 70_010), (74_097, 74_098)):
            got = read(client, ticket, low, high - low)
            expect(bool((got == whole[low:high]).all()), f"other bytes at [{low}, {high})")
        client.read(ticket, 5, memoryview(bytearray()), timeout_s=TIMEOUT_S)
        close_window(shard, ticket)


def what_is_written_is_there_when_the_window_is_closed(subject: Subject) -> None:
    pieces = [pattern(9, size) for size in (4096, 1, 200_000, 77)]
    before = np.concatenate(pieces)
    with subject.pair() as (shard, client):
        ticket = shard.open_window(views(pieces, writable=True), writable=True)
        data = pattern(10, 150_000)
        client.write(ticket, 90_000, data[86_000:].data, timeout_s=TIMEOUT_S)
        client.write(ticket, 4_000, data[:86_000].data, timeout_s=TIMEOUT_S)
        close_window(shard, ticket)
    after, expected = np.concatenate(pieces), before.copy()
    expected[4_000 : 4_000 + len(data)] = data
    expect(bool((after == expected).all()), "written bytes are not there, or others changed")


def tickets_are_small_and_unlike_one_another(subject: Subject) -> None:
    data = pattern(1, 1000)
    with subject.shard_end() as shard:
        tickets = [shard.open_window(views([data]), writable=False) for _ in range(50)]
        expect(len(set(tickets)) == 50, "two windows have one ticket")
        longest = max(map(len, tickets))
        expect(16 <= longest <= MAX_TICKET_BYTES, f"a ticket of {longest} bytes")
        for ticket in tickets:
            close_window(shard, ticket)


def several_windows_and_threads_do_not_mix(subject: Subject) -> None:
    slabs = [pattern(seed, 400_000) for seed in range(6)]
    with subject.pair() as (shard, client):
        tickets = [shard.open_window(views([slab]), writable=False) for slab in slabs]

        def whole(number: int) -> bool:
            got = read(client, tickets[number % 6], 0, 400_000)
            return bool((got == slabs[number % 6]).all())

        with ThreadPoolExecutor(6) as threads:
            expect(all(threads.map(whole, range(36))), "bytes of another window came")
        for ticket in tickets:
            close_window(shard, ticket)


def what_a_window_does_not_allow_is_refused(subject: Subject) -> None:
    data, place = pattern(2, 50_000), np.zeros(50_000, np.uint8)
    with subject.pair() as (shard, client):
        readable = shard.open_window(views([data]), writable=False)
        writable = shard.open_window(views([place], writable=True), writable=True)
        some = memoryview(bytearray(b"x" * 100))
        strange = bytes(reversed(readable))
        moves: Mapping[str, tuple[Any, bytes, int]] = {
            "a read past the end": (client.read, readable, 49_901),
            "a read before the start": (client.read, readable, -1),
            "a read with a ticket that was never given": (client.read, strange, 0),
            "a read with no ticket": (client.read, b"", 0),
            "a write past the end": (client.write, writable, 50_000),
            "a write to what is only to be read": (client.write, readable, 0),
        }
        for what, (move, ticket, offset) in moves.items():
            expect_refused(what, partial(move, ticket, offset, some, timeout_s=SHORT_S))
            expect(bool((read(client, readable, 0, 50_000) == data).all()), f"after {what}")
        close_window(shard, readable)
        close_window(shard, writable)
    expect(bool((data == pattern(2, 50_000)).all()), "what is only to be read was changed")
    expect(not place.any(), "a refused write has written")


def a_closed_window_is_closed(subject: Subject) -> None:
    data, place = pattern(3, 50_000), np.zeros(50_000, np.uint8)
    with subject.pair() as (shard, client):
        readable = shard.open_window(views([data]), writable=False)
        writable = shard.open_window(views([place], writable=True), writable=True)
        read(client, readable, 0, 100)
        for ticket in (readable, writable, readable, b"nobody's"):
            close_window(shard, ticket)
        out = np.zeros(100, np.uint8)
        expect_refused("a read", lambda: client.read(readable, 0, out.data, timeout_s=SHORT_S))
        expect_refused("a write", lambda: client.write(writable, 0, data.data, timeout_s=SHORT_S))
        expect(not place.any(), "a closed window was written to")
        again = shard.open_window(views([data]), writable=False)
        expect(bool((read(client, again, 0, 50_000) == data).all()), "after a window was closed")
        close_window(shard, again)


def a_shard_that_has_ended_is_noticed(subject: Subject) -> None:
    data = pattern(4, 50_000)
    with subject.shard_end() as shard:
        ticket = shard.open_window(views([data]), writable=False)
        client = subject.client_end(shard)
        read(client, ticket, 0, 100)
    out = np.zeros(100, np.uint8)
    with client:
        expect_refused(
            "a read from a shard that has ended",
            lambda: client.read(ticket, 0, out.data, timeout_s=SHORT_S),
        )
    shard.close()
    client.close()


def a_client_that_stands_still_keeps_no_window_open(subject: Subject) -> None:
    place = np.zeros(LARGE_BYTES, np.uint8)
    with subject.shard_end() as shard:
        ticket = shard.open_window(views([place], writable=True), writable=True)
        with OtherProcess.moving(subject, shard, ticket, LARGE_BYTES, writes=True) as other:
            time.sleep(0.005)  # into the middle of a later write
            other.signal(signal.SIGSTOP)
            close_window(shard, ticket)
            place[:] = 0
            other.signal(signal.SIGCONT)
            expect(other.wait() == 0, "a write to a window that was closed is not refused")
        expect(not place.any(), "a client has written to a window that is closed")


def a_client_that_is_killed_harms_nobody(subject: Subject) -> None:
    data = pattern(5, LARGE_BYTES)
    with subject.pair() as (shard, client):
        ticket = shard.open_window(views([data]), writable=False)
        with OtherProcess.moving(subject, shard, ticket, LARGE_BYTES, writes=False) as other:
            time.sleep(0.005)
            other.signal(signal.SIGKILL)
            got = read(client, ticket, 0, LARGE_BYTES)
        expect(bool((got == data).all()), "another client gets other bytes")
        close_window(shard, ticket)


def a_client_end_that_is_closed_says_so(subject: Subject) -> None:
    data = pattern(6, 1000)
    with subject.shard_end() as shard:
        ticket = shard.open_window(views([data]), writable=False)
        client = subject.client_end(shard)
        client.close()
        client.close()
        out = np.zeros(10, np.uint8)
        try:
            client.read(ticket, 0, out.data, timeout_s=SHORT_S)
        except TransportFailed:
            pass
        else:
            raise ContractBroken("a client's end that is closed still reads")
        close_window(shard, ticket)


TRANSPORT_CHECKS: list[Check] = [
    what_clients_are_told_is_small_and_plain,
    a_window_is_read_in_any_parts,
    what_is_written_is_there_when_the_window_is_closed,
    tickets_are_small_and_unlike_one_another,
    several_windows_and_threads_do_not_mix,
    what_a_window_does_not_allow_is_refused,
    a_closed_window_is_closed,
    a_shard_that_has_ended_is_noticed,
    a_client_that_stands_still_keeps_no_window_open,
    a_client_that_is_killed_harms_nobody,
    a_client_end_that_is_closed_says_so,
]


def check_transport(
    transport: type[WindowTransport],
    options: Mapping[str, Any] | None = None,
    *,
    host: str | None = "127.0.0.1",
    encrypt: bool = False,
) -> None:
    """Run every check, faults included. `ContractBroken` names the first that fails.

    Ends are opened on ``host``, with a folder, as of a service that has to ``encrypt`` or not. Two
    checks start a process that imports the transport's module.
    """
    subject = Subject(transport=transport, options=options or {}, host=host, encrypt=encrypt)
    for check in TRANSPORT_CHECKS:
        try:
            with no_leaks():
                check(subject)
        except (ContractBroken, Leaked) as broken:
            raise ContractBroken(f"{check.__name__}: {broken}") from broken
