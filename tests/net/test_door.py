"""Who is counted as turned away, from what libzmq tells of connections."""

from __future__ import annotations

from collections import Counter

import pytest
import zmq

from transferqueue.net.door import (
    ACCEPTED,
    CUT,
    DISCONNECTED,
    FAILED_AUTH,
    FAILED_NO_DETAIL,
    FAILED_PROTOCOL,
    NOT_OURS,
    SUCCEEDED,
    Handshakes,
)

ENCRYPTED_FOR_ANOTHER = int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
NO_KEY_AT_ALL = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
NONSENSE = int(zmq.PROTOCOL_ERROR_ZMTP_UNEXPECTED_COMMAND)


def heard(*events: tuple[int, int]) -> tuple[dict[str, int], int]:
    """What is counted after these: refusals, and peers without the key."""
    refusals: Counter[str] = Counter()
    handshakes = Handshakes(refusals)
    for event, value in events:
        handshakes.hear(event, value)
    return dict(refusals), handshakes.num_without_key


def test_clients_that_come_and_go_are_nobody_to_count() -> None:
    come = [event for fd in range(9) for event in ((ACCEPTED, fd), (SUCCEEDED, 0))]
    assert heard(*come, *((DISCONNECTED, fd) for fd in range(9))) == ({}, 0)


def test_clients_that_come_at_once_and_go_in_any_order_are_nobody_to_count() -> None:
    come = [*((ACCEPTED, fd) for fd in range(9)), *((SUCCEEDED, 0) for _ in range(9))]
    assert heard(*come, *((DISCONNECTED, fd) for fd in reversed(range(9)))) == ({}, 0)


def test_who_does_not_begin_as_we_do_is_counted_though_libzmq_names_no_failure() -> None:
    assert heard((ACCEPTED, 7), (DISCONNECTED, 7)) == ({NOT_OURS: 1}, 0)


def test_it_is_counted_beside_clients_that_stay_and_clients_that_leave() -> None:
    ours = [(ACCEPTED, 3), (SUCCEEDED, 0), (ACCEPTED, 4), (SUCCEEDED, 0)]
    stranger = [(ACCEPTED, 5), (DISCONNECTED, 5)]
    assert heard(*ours, *stranger, (DISCONNECTED, 3), *stranger) == ({NOT_OURS: 2}, 0)


@pytest.mark.parametrize(
    ("failure", "found"),
    [
        ((FAILED_NO_DETAIL, 104), ({CUT: 1}, 0)),
        ((FAILED_PROTOCOL, NONSENSE), ({NOT_OURS: 1}, 0)),
        ((FAILED_PROTOCOL, ENCRYPTED_FOR_ANOTHER), ({}, 1)),
        ((FAILED_PROTOCOL, NO_KEY_AT_ALL), ({}, 1)),
        ((FAILED_AUTH, 400), ({}, 0)),  # the check of keys has counted it
    ],
)
def test_a_failure_that_is_named_is_counted_once(
    failure: tuple[int, int], found: tuple[dict[str, int], int]
) -> None:
    assert heard((ACCEPTED, 7), failure, (DISCONNECTED, 7)) == found


def test_a_descriptor_that_is_given_out_again_is_another_connection() -> None:
    first = [(ACCEPTED, 7), (SUCCEEDED, 0), (DISCONNECTED, 7)]
    assert heard(*first, (ACCEPTED, 7), (DISCONNECTED, 7)) == ({NOT_OURS: 1}, 0)
