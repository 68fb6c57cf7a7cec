"""One connection between the ends of `sockets`, which carries one request after the other::

    shard:   [ sealed: its salt, once ]
    client:  header: magic, window, operation, offset, bytes; proof   [ bytes of a write ]
    shard:   one byte: 0 goes on, 1 refused           [ bytes of a read, or "all has come" ]

The proof is the window's secret itself where nothing is encrypted, and else shows that the client
has it (`socket_request`); bytes go as in `passages`.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

from transferqueue.transports.passages import Clear, Passage, Sealed, receive, set_timeout
from transferqueue.transports.sealing import SALT_BYTES, SECRET_BYTES
from transferqueue.transports.socket_request import (
    HEADER,
    SEALED_PROOF_BYTES,
    Place,
    Request,
    Ticket,
    check_sealed_proof,
    sealed_proof,
)

if TYPE_CHECKING:
    import socket

GOES_ON, REFUSED = b"\0", b"\1"


class ShardConnection:
    """As the shard sees it."""

    def __init__(self, socket: socket.socket, *, is_sealed: bool) -> None:
        self.socket = socket
        self._salt = secrets.token_bytes(SALT_BYTES) if is_sealed else None
        self._num_requests = 0

    def greet(self) -> None:
        if self._salt is not None:
            self.socket.sendall(self._salt)

    def next_request(self, deadline_s: float | None) -> tuple[Request, memoryview] | None:
        """And its proof, all of which are here then. ``None``: this is no client of ours."""
        proof_bytes = SECRET_BYTES if self._salt is None else SEALED_PROOF_BYTES
        came = memoryview(bytearray(HEADER.size + proof_bytes))
        receive(self.socket, came, deadline_s)
        request = Request.from_bytes(came[: HEADER.size])
        return None if request is None else (request, came[HEADER.size :])

    def passage(self, secret: bytes, request: Request, proof: memoryview) -> Passage | None:
        """For its bytes. ``None``: whoever asks does not know the secret."""
        if self._salt is None:
            return Clear(self.socket) if hmac.compare_digest(bytes(proof), secret) else None
        place = Place(shard_salt=self._salt, num_before=self._num_requests)
        self._num_requests += 1
        found = check_sealed_proof(proof, secret, request, place)
        if found is None:
            return None
        return Sealed(self.socket, inward=found[0], outward=found[1])


class ClientConnection:
    """As the client sees it. `OSError` from all of it."""

    def __init__(self, socket: socket.socket, *, is_sealed: bool, deadline_s: float) -> None:
        """Waits for the shard's greeting."""
        self.socket = socket
        self._salt: bytes | None = None
        self._num_requests = 0
        if is_sealed:
            salt = bytearray(SALT_BYTES)
            receive(socket, memoryview(salt), deadline_s)
            self._salt = bytes(salt)

    def asked(
        self, ticket: Ticket, request: Request, *, open_by_s: float, deadline_s: float
    ) -> Passage | None:
        """The way for its bytes, which are to have moved by ``deadline_s``. ``None``: refused."""
        passage: Passage
        if self._salt is None:
            proof = ticket.secret
            passage = Clear(self.socket, deadline_s)
        else:
            place = Place(shard_salt=self._salt, num_before=self._num_requests)
            self._num_requests += 1
            proof, upward, downward = sealed_proof(ticket, request, place)
            passage = Sealed(self.socket, outward=upward, inward=downward, deadline_s=deadline_s)
        set_timeout(self.socket, open_by_s)
        self.socket.sendall(bytes(request) + proof)
        answer = memoryview(bytearray(1))
        receive(self.socket, answer, open_by_s)
        return passage if answer == GOES_ON else None
