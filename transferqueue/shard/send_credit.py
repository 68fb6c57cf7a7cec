"""A bound for what waits to be sent to slow readers. No socket, no clock."""

from __future__ import annotations

import contextlib
from collections import Counter
from queue import Empty, SimpleQueue


class SendCredit:
    """How many bytes of copies may wait to be sent, so that slow readers do not fill the memory.

    Bytes that are sent from where they lie in the arena take no credit. Under the limit anybody is
    served; above it each peer has one chunk at a time, so that readers that have stalled can slow
    the others down but not stop them.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._of_peer: Counter[bytes] = Counter()
        self._returned: SimpleQueue[tuple[bytes, int]] = SimpleQueue()
        self.used_bytes = 0

    def take(self, peer: bytes, nbytes: int) -> bool:
        """Whether the bytes may be copied for this peer now; then they count as used."""
        if self.used_bytes + nbytes > self._limit_bytes and self._of_peer[peer]:
            return False
        self.used_bytes += nbytes
        self._of_peer[peer] += nbytes
        return True

    def give_back(self, peer: bytes, nbytes: int) -> None:
        """The bytes have left. From any thread."""
        self._returned.put((peer, nbytes))

    def settle(self) -> bool:
        """Count what was given back; whether it was anything."""
        if self._returned.empty():
            return False
        before = self.used_bytes
        with contextlib.suppress(Empty):
            while True:
                peer, nbytes = self._returned.get_nowait()
                self.used_bytes -= nbytes
                self._of_peer[peer] -= nbytes
                if not self._of_peer[peer]:
                    del self._of_peer[peer]
        return self.used_bytes < before
