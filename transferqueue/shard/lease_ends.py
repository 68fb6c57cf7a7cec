"""What readers do not look at any more: said by a request of its own, or along with another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.errors import Malformed
from transferqueue.net.server import Reply
from transferqueue.wire import ops
from transferqueue.wire.arrays import ArrayReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transferqueue.net.server import Handler, Request
    from transferqueue.shard.device_loans import DeviceLoans
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.peers import MappingPeers
    from transferqueue.shard.store import Store


class LeaseEnds:
    """``on_free`` hears that space came free."""

    def __init__(
        self,
        *,
        store: Store,
        peers: MappingPeers,
        journal: ShardJournal,
        loans: DeviceLoans,
        on_free: Callable[[], None],
    ) -> None:
        self._store = store
        self._peers = peers
        self._journal = journal
        self._loans = loans
        self._on_free = on_free

    def release(self, request: Request) -> Reply:
        """Body: ``reader``, ``lease_ids``. Nothing of them is looked at any more. ``refs``: slots
        that were copied from, to be checked before: what is not right any more is an error."""
        lease_ids = ArrayReader(request.frames).int64s(request.body["lease_ids"])
        try:
            self._loans.check(request.body.get("refs", ()))
        finally:
            self._end(request.body["reader"], lease_ids.tolist())
        return Reply(body={})

    def along(self, handler: Handler) -> Handler:
        """The handler of a request that may say first which leases have ended."""

        def handle(request: Request) -> Reply | None:
            ended = request.body.get(ops.ENDED)
            # A key that only reads was lent no memory, and ends nobody's lease.
            if ended is not None and not request.is_reader:
                self._end(ended["reader"], _lease_ids(ended["lease_ids"]))
            return handler(request)

        return handle

    def _end(self, reader: Mapping[str, Any], lease_ids: Sequence[int]) -> None:
        key = self._peers.key_of(reader)
        self._loans.end(key, lease_ids, time.monotonic())
        self._journal.released(key, lease_ids)
        self._store.release(key, lease_ids)
        self._on_free()


def _lease_ids(packed: object) -> list[int]:
    if not isinstance(packed, bytes) or len(packed) % 8:
        raise Malformed("lease_ids are 8 bytes each")
    ids: list[int] = np.frombuffer(packed, np.int64).tolist()
    return ids
