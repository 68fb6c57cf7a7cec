"""What is sealed comes back only whole, in its place, and to whoever has the secret."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from transferqueue.client.windows import Move
from transferqueue.transports.sealing import (
    KEY_BYTES,
    LABEL,
    SALT_BYTES,
    SECRET_BYTES,
    SEGMENT_BYTES,
    TAG_BYTES,
    Sealing,
    Tampered,
    joined,
    sealings,
    segments,
)
from transferqueue.transports.socket_request import (
    READ,
    SEALED_PROOF_BYTES,
    TICKET_BYTES,
    WRITE,
    Place,
    Request,
    Ticket,
    check_sealed_proof,
    sealed_proof,
)
from transferqueue.transports.socket_shard import _Open
from transferqueue.transports.window import Window
from transferqueue.wire.window import OpenWindow

KEY = bytes(range(KEY_BYTES))


def unsealed(sealing: Sealing, sealed: bytes | memoryview) -> bytes:
    out = bytearray(len(sealed) - TAG_BYTES)
    sealing.unseal(memoryview(sealed), memoryview(out))
    return bytes(out)


def test_segments_are_aes_gcm_under_counted_nonces() -> None:
    sealing, cipher = Sealing(KEY), AESGCM(KEY)
    for num in range(3):
        sealed = sealing.seal(memoryview(b"plain"))
        assert cipher.decrypt(num.to_bytes(12, "big"), sealed, None) == b"plain"


def test_what_is_small_costs_no_memory_of_a_whole_segment() -> None:
    """Each request proves itself by an empty segment, and many end with one."""
    sealing = Sealing(KEY)
    tracemalloc.start()
    try:
        sealing.seal(memoryview(b""))
        assert tracemalloc.get_traced_memory()[1] < 4096
    finally:
        tracemalloc.stop()
    assert unsealed_after_empty(sealing.seal(memoryview(bytes(SEGMENT_BYTES)))) == SEGMENT_BYTES


def unsealed_after_empty(sealed: memoryview) -> int:
    reader = Sealing(KEY)
    reader.seal(memoryview(b""))
    return len(unsealed(reader, sealed))


class OlderCipher:
    """As `AESGCM` was before it could write into memory of the caller."""

    def __init__(self, cipher: AESGCM) -> None:
        self.encrypt = cipher.encrypt
        self.decrypt = cipher.decrypt


def test_an_older_library_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = Sealing(KEY), Sealing(KEY)
    monkeypatch.setattr(older, "_cipher", OlderCipher(AESGCM(KEY)))
    for sender, reader in ((older, newer), (newer, older)):
        for text in (b"one", b"", b"two"):
            assert unsealed(reader, bytes(sender.seal(memoryview(text)))) == text


def test_keys_are_those_of_rfc_5869() -> None:
    """Computed here with nothing but HMAC, as section 2 of the RFC has it."""
    import hmac

    secret, up_salt, down_salt = os.urandom(32), os.urandom(32), os.urandom(32)
    upward, downward = sealings(
        secret, shard_salt=up_salt, client_salt=down_salt, num_before=7, request=b"request"
    )
    pseudo_random = hmac.digest(up_salt + down_salt, secret, "sha256")
    info = LABEL + (7).to_bytes(8, "big") + b"request"
    first = hmac.digest(pseudo_random, info + b"\1", "sha256")
    second = hmac.digest(pseudo_random, first + info + b"\2", "sha256")
    assert unsealed(Sealing(first), upward.seal(memoryview(b"up"))) == b"up"
    assert unsealed(Sealing(second), downward.seal(memoryview(b"down"))) == b"down"


@given(at=st.integers(0, 20), bit=st.integers(0, 7))
def test_a_bit_that_was_changed_is_noticed(at: int, bit: int) -> None:
    sealed = bytearray(Sealing(KEY).seal(memoryview(b"plain")))
    sealed[at] ^= 1 << bit
    with pytest.raises(Tampered):
        unsealed(Sealing(KEY), bytes(sealed))


def test_segments_that_are_left_out_repeated_or_swapped_are_noticed() -> None:
    sender = Sealing(KEY)
    first, second = (bytes(sender.seal(memoryview(text))) for text in (b"one", b"two"))
    for order in ([second], [first, first], [second, first]):
        reader = Sealing(KEY)
        with pytest.raises(Tampered):
            for sealed in order:
                unsealed(reader, sealed)


@given(sizes=st.lists(st.integers(0, 2 * SEGMENT_BYTES), max_size=6))
def test_segments_hold_all_bytes_in_order_and_all_but_the_last_are_full(sizes: list[int]) -> None:
    whole = np.arange(sum(sizes), dtype=np.uint32).astype(np.uint8)
    parts = [piece.data for piece in np.split(whole, np.cumsum(sizes)[:-1])] if sizes else []
    found = [bytes(joined(pieces)) for pieces in segments(parts)]
    assert b"".join(found) == whole.tobytes()
    assert all(len(segment) == SEGMENT_BYTES for segment in found[:-1])
    assert all(found)


REQUEST = Request(window_id=bytes(16), operation=READ, offset=64, nbytes=1 << 20)
PLACE = Place(shard_salt=bytes(SALT_BYTES), num_before=0)


def test_a_proof_opens_the_way_in_both_directions() -> None:
    ticket = Ticket.new()
    proof, up, down = sealed_proof(ticket, REQUEST, PLACE)
    assert len(proof) == SEALED_PROOF_BYTES
    assert ticket.secret not in proof
    theirs = check_sealed_proof(memoryview(proof), ticket.secret, REQUEST, PLACE)
    assert theirs is not None
    assert unsealed(theirs[0], up.seal(memoryview(b"up"))) == b"up"
    assert unsealed(down, theirs[1].seal(memoryview(b"down"))) == b"down"


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, operation=WRITE),
        replace(REQUEST, offset=0),
        replace(REQUEST, nbytes=1),
        replace(REQUEST, window_id=bytes([1]) * 16),
    ],
)
def test_a_proof_is_for_one_request_alone(other: Request) -> None:
    ticket = Ticket.new()
    proof, _, _ = sealed_proof(ticket, REQUEST, PLACE)
    assert check_sealed_proof(memoryview(proof), ticket.secret, other, PLACE) is None


@pytest.mark.parametrize(
    "place", [replace(PLACE, num_before=1), replace(PLACE, shard_salt=bytes([1]) * SALT_BYTES)]
)
def test_a_request_that_is_played_again_is_refused(place: Place) -> None:
    ticket = Ticket.new()
    proof, _, _ = sealed_proof(ticket, REQUEST, PLACE)
    assert check_sealed_proof(memoryview(proof), ticket.secret, REQUEST, place) is None


def test_without_the_secret_nothing_is_proven_and_no_proof_is_like_another() -> None:
    ticket = Ticket.new()
    proof, _, _ = sealed_proof(ticket, REQUEST, PLACE)
    assert check_sealed_proof(memoryview(proof), bytes(SECRET_BYTES), REQUEST, PLACE) is None
    assert sealed_proof(ticket, REQUEST, PLACE)[0] != proof


def test_what_is_printed_in_a_log_or_a_traceback_opens_no_window() -> None:
    ticket = Ticket.new()
    window = Window([], writable=False)
    shown = OpenWindow(ticket=bytes(ticket), process="p", facts={})
    move = Move(slot=0, transport="sockets", window=shown, is_write=False, num_bytes=0, pieces=[])
    for value in (ticket, _Open(window=window, secret=ticket.secret), move):
        assert repr(ticket.secret)[2:-1] not in repr(value)


def test_tickets_and_requests_come_back_from_their_bytes() -> None:
    ticket = Ticket.new()
    assert len(bytes(ticket)) == TICKET_BYTES
    assert Ticket.from_bytes(bytes(ticket)) == ticket
    assert Ticket.from_bytes(bytes(ticket)[1:]) is None
    assert Request.from_bytes(bytes(REQUEST)) == REQUEST
    assert Request.from_bytes(b"HTTP" + bytes(REQUEST)[4:]) is None
