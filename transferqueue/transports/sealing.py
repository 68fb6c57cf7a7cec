"""What makes bytes unreadable, and changes to them noticed, on a connection that anybody may tap.

Both ends hold a secret, which the window's ticket has brought over an encrypted way. Of it, of
random bytes of each end and of the request itself come two keys for this request alone, one a
direction::

    keys     = HKDF-SHA256(secret, salt = shard's salt + client's, info = label + count + request)
    segments = AES-256-GCM under one key, nonce = how many came before, `SEGMENT_BYTES` at most each

HKDF is that of RFC 5869, AES-GCM that of NIST SP 800-38D. That a stream is cut into segments which
are sealed under counted nonces, so that none can be changed, left out, repeated or put elsewhere,
is the construction STREAM (Hoang, Reyhanitabar, Rogaway, Vizár: *Online Authenticated-Encryption
and its Nonce-Reuse Misuse-Resistance*, CRYPTO 2015) under keys made as in Tink's AES-GCM-HKDF
streaming. It needs no mark of the last segment: how many bytes there are is a part of the request,
and so of the keys. A request that is played again, on this connection or another, meets another
count or salt.

TLS through `ssl` hands over 16 KiB at a time: a read of 320 MiB takes 0.37 s that way and 0.11 s
this way, 0.09 s in the clear (two cores of an AMD EPYC, loopback).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SECRET_BYTES = 32
SALT_BYTES = 32
TAG_BYTES = 16
KEY_BYTES = 32
NONCE_BYTES = 12
SEGMENT_BYTES = 1 << 20
"""From about here on larger ones are no faster."""

LABEL = b"transferqueue window 1"


def why_not() -> str:
    """Why nothing can be sealed in this process; "" when it can."""
    try:
        importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        importlib.import_module("cryptography.hazmat.primitives.kdf.hkdf")
    except ImportError as error:
        return f"it cannot encrypt here: {error}; pip install cryptography"
    return ""


class Tampered(ConnectionError):
    """What came was not sealed by the other end of this request, or not in this place."""


class Sealing:
    """One direction of one request. Segments go and come in order."""

    def __init__(self, key: bytes) -> None:
        # Imported where it is used: a shard that is reached within its host never needs it.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(key)
        self._num_segments = 0
        self._sealed = memoryview(b"")

    def seal(self, plain: memoryview) -> memoryview:
        """The segment, `TAG_BYTES` longer. Valid until the next."""
        if self._sealed.nbytes < plain.nbytes + TAG_BYTES:
            self._sealed = memoryview(bytearray(plain.nbytes + TAG_BYTES))
        sealed = self._sealed[: plain.nbytes + TAG_BYTES]
        _encrypt(self._cipher, self._nonce(), plain, sealed)
        return sealed

    def unseal(self, sealed: memoryview, out: memoryview) -> None:
        """Fill ``out``, `TAG_BYTES` shorter. `Tampered`; ``out`` may hold anything then."""
        from cryptography.exceptions import InvalidTag

        try:
            _decrypt(self._cipher, self._nonce(), sealed, out)
        except InvalidTag:
            raise Tampered("bytes were changed on their way") from None

    def _nonce(self) -> bytes:
        nonce = self._num_segments.to_bytes(NONCE_BYTES, "big")
        self._num_segments += 1
        return nonce


def _encrypt(cipher: AESGCM, nonce: bytes, plain: memoryview, out: memoryview) -> None:
    if hasattr(cipher, "encrypt_into"):  # since cryptography 47; a third faster
        cipher.encrypt_into(nonce, plain, None, out)
    else:
        out[:] = cipher.encrypt(nonce, plain, None)


def _decrypt(cipher: AESGCM, nonce: bytes, sealed: memoryview, out: memoryview) -> None:
    if hasattr(cipher, "decrypt_into"):
        cipher.decrypt_into(nonce, sealed, None, out)
    else:
        out[:] = cipher.decrypt(nonce, sealed, None)


def sealings(
    secret: bytes, *, shard_salt: bytes, client_salt: bytes, num_before: int, request: bytes
) -> tuple[Sealing, Sealing]:
    """To the shard and to the client. ``num_before``: requests of this connection."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    keys = HKDF(
        algorithm=SHA256(),
        length=2 * KEY_BYTES,
        salt=shard_salt + client_salt,
        info=LABEL + num_before.to_bytes(8, "big") + request,
    ).derive(secret)
    return Sealing(keys[:KEY_BYTES]), Sealing(keys[KEY_BYTES:])


def segments(parts: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """All bytes of ``parts``, in order, as pieces that are `SEGMENT_BYTES` together; the last may
    be fewer."""
    segment: list[memoryview] = []
    room = SEGMENT_BYTES
    for part in parts:
        at = 0
        while at < part.nbytes:
            piece = part[at : at + room]
            segment.append(piece)
            at, room = at + piece.nbytes, room - piece.nbytes
            if not room:
                yield segment
                segment, room = [], SEGMENT_BYTES
    if segment:
        yield segment


def joined(pieces: Sequence[memoryview]) -> memoryview:
    """As one: itself where it is only one."""
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))
