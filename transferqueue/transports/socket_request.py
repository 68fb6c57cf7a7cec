"""What a client's end of `sockets` asks for, and how it shows that it may. No socket in here."""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass, field
from typing import Self

from transferqueue.transports.sealing import (
    SALT_BYTES,
    SECRET_BYTES,
    TAG_BYTES,
    Sealing,
    Tampered,
    sealings,
)

ID_BYTES = 16
TICKET_BYTES = ID_BYTES + SECRET_BYTES
READ, WRITE = 1, 2
HEADER = struct.Struct(f"<4s{ID_BYTES}sBQQ")
MAGIC = b"tqw2"
SEALED_PROOF_BYTES = SALT_BYTES + TAG_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a window is called, and what opens it."""

    window_id: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        return cls(
            window_id=secrets.token_bytes(ID_BYTES), secret=secrets.token_bytes(SECRET_BYTES)
        )

    @classmethod
    def from_bytes(cls, ticket: bytes) -> Self | None:
        if len(ticket) != TICKET_BYTES:
            return None
        return cls(window_id=ticket[:ID_BYTES], secret=ticket[ID_BYTES:])

    def __bytes__(self) -> bytes:
        return self.window_id + self.secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Some bytes of a window, to be read or written."""

    window_id: bytes
    operation: int
    offset: int
    nbytes: int

    @classmethod
    def from_bytes(cls, header: bytes | memoryview) -> Self | None:
        """``None``: of something that is not this protocol."""
        magic, window_id, operation, offset, nbytes = HEADER.unpack(header)
        if magic != MAGIC:
            return None
        return cls(window_id=window_id, operation=operation, offset=offset, nbytes=nbytes)

    def __bytes__(self) -> bytes:
        return HEADER.pack(MAGIC, self.window_id, self.operation, self.offset, self.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a sealed request stands: salt of the connection, and how many went before it there."""

    shard_salt: bytes
    num_before: int


def sealed_proof(ticket: Ticket, request: Request, place: Place) -> tuple[bytes, Sealing, Sealing]:
    """A salt and an empty segment; what seals and unseals the rest: to the shard, to the client."""
    client_salt = secrets.token_bytes(SALT_BYTES)
    upward, downward = _sealings(ticket.secret, request, place, client_salt)
    return client_salt + bytes(upward.seal(memoryview(b""))), upward, downward


def check_sealed_proof(
    proof: memoryview, secret: bytes, request: Request, place: Place
) -> tuple[Sealing, Sealing] | None:
    """As `sealed_proof`. ``None``: whoever made it does not know the secret, or made it for another
    request."""
    client_salt = bytes(proof[:SALT_BYTES])
    upward, downward = _sealings(secret, request, place, client_salt)
    try:
        upward.unseal(proof[SALT_BYTES:], memoryview(bytearray()))
    except Tampered:
        return None
    return upward, downward


def _sealings(
    secret: bytes, request: Request, place: Place, client_salt: bytes
) -> tuple[Sealing, Sealing]:
    return sealings(
        secret,
        shard_salt=place.shard_salt,
        client_salt=client_salt,
        num_before=place.num_before,
        request=bytes(request),
    )
