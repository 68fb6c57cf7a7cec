"""The door of a server's TCP endpoints: it asks for the key, and counts who was turned away.

libzmq asks about a key (`KeyCheck`) only when a handshake came so far that one was shown. Who
speaks another protocol, or has the key of another service, is cut off before that, and all that is
known of it is what libzmq tells whoever watches the socket.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
from typing import TYPE_CHECKING, Any

import zmq

from transferqueue.errors import WireError
from transferqueue.net.keys import KeyCheck

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from transferqueue.net.contexts import Contexts
    from transferqueue.net.keys import ServiceKeys

NOT_OURS = WireError.__name__
"""The refusal of who speaks no or another protocol: a browser, a TLS client, noise."""
CUT = "HandshakeCut"
"""The refusal of who left, or said nothing for as long as it may, before it had shown a key. So do
port scans, clients that are killed, and our own looks at whether anybody listens."""

ACCEPTED = int(zmq.EVENT_ACCEPTED)
SUCCEEDED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
FAILED_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
FAILED_AUTH = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
FAILED_NO_DETAIL = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_FAILED = (FAILED_PROTOCOL, FAILED_AUTH, FAILED_NO_DETAIL)

_OTHER_KEY = {
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC),  # it knows another server's public key
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH),  # no key, or encrypted where we are not
}

_EVENT = struct.Struct("=hi")


class Handshakes:
    """Who was turned away, from what libzmq tells. Decides without a socket.

    A failure is told just before the end of its connection; but of who does not even begin as ZMTP
    does only accept and end are told. A success does not say of which connection it is, so one that
    ends is a stranger's where no handshake at all succeeded since it came: one is missed if another
    client's handshake succeeds in its few milliseconds. (The events of libzmq's second version name
    both ends of a connection; pyzmq does not offer them.)
    """

    def __init__(self, refusals: Counter[str]) -> None:
        self._refusals = refusals
        self._num_succeeded = 0
        self._num_told = 0
        """Failures whose connections have not ended yet."""
        self._open: dict[int, int] = {}
        """Descriptor -> how many handshakes had succeeded when it was accepted."""
        self.num_without_key = 0
        """Without those that `KeyCheck` has refused."""

    def hear(self, event: int, value: int) -> None:
        """One event, in order. ``value``: a descriptor, or what was wrong."""
        if event == ACCEPTED:
            self._open[value] = self._num_succeeded
        elif event == SUCCEEDED:
            self._num_succeeded += 1
        elif event in _FAILED:
            self._num_told += 1
            self._count(event, value)
        elif event == DISCONNECTED:
            self._ended(self._open.pop(value, -1))

    def _count(self, event: int, value: int) -> None:
        if event == FAILED_NO_DETAIL:
            self._refusals[CUT] += 1
        elif event == FAILED_PROTOCOL and value in _OTHER_KEY:
            self.num_without_key += 1
        elif event == FAILED_PROTOCOL:
            self._refusals[NOT_OURS] += 1

    def _ended(self, num_succeeded_then: int) -> None:
        if self._num_told:
            self._num_told -= 1
        elif num_succeeded_then == self._num_succeeded:
            self._refusals[NOT_OURS] += 1


class Door:
    """`KeyCheck` and `Handshakes` of one ROUTER, driven by the server's own poll loop. Made before
    the first TCP endpoint is bound: it sets the router's keys, which hold for later binds."""

    def __init__(
        self,
        contexts: Contexts,
        context: zmq.Context[Any],
        router: zmq.Socket[bytes],
        keys: ServiceKeys,
        refusals: Counter[str],
    ) -> None:
        self._router = router
        self._handshakes = Handshakes(refusals)
        self._key_check = KeyCheck(context, keys)
        contexts.keep(self._key_check.socket)
        keys.apply(router)
        self._monitor = contexts.keep(context.socket(zmq.PAIR))
        # libzmq waits where this queue is full, and with it everybody on that I/O thread.
        self._monitor.rcvhwm = 0
        endpoint = f"inproc://door-{secrets.token_hex(8)}"
        router.monitor(endpoint, ACCEPTED | SUCCEEDED | DISCONNECTED | sum(_FAILED))
        self._monitor.connect(endpoint)

    @property
    def num_keys_refused(self) -> int:
        """Peers that came without the key, or with another service's."""
        return self._key_check.num_refused + self._handshakes.num_without_key

    def sockets(self) -> Iterator[tuple[zmq.Socket[bytes], Callable[[], None]]]:
        """What to poll, and what to call when it is readable."""
        yield self._key_check.socket, self._key_check.answer
        yield self._monitor, self._listen

    def _listen(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                told = self._monitor.recv_multipart(zmq.DONTWAIT)
                self._handshakes.hear(*_EVENT.unpack(told[0]))

    def close(self) -> None:
        """Before the router is closed. Idempotent."""
        if not self._router.closed:
            self._router.monitor(None, 0)
        self._monitor.close(linger=0)
        self._key_check.close()
