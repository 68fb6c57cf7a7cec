"""Rows, or some of their fields, that go: asked for by a client or ordered by the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from transferqueue.net.server import Reply
from transferqueue.wire.arrays import ArrayReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transferqueue.net.server import Request, Server
    from transferqueue.replication.home import Copies
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.store import Store

    Key = tuple[bytes, int]


class Clears:
    """``copies`` makes each change when the second copy, if there is one, has it. ``on_clear``
    hears which rows of a partition have gone; ``on_free`` that space came free."""

    def __init__(
        self,
        *,
        server: Server,
        store: Store,
        journal: ShardJournal,
        copies: Copies,
        on_clear: Callable[[str, np.ndarray], None],
        on_free: Callable[[], None],
    ) -> None:
        self._server = server
        self._store = store
        self._journal = journal
        self._copies = copies
        self._on_clear = on_clear
        self._on_free = on_free

    def clear(self, request: Request) -> None:
        """Body: ``partition``, ``uids`` or nil for all. Rows not there are passed over."""
        reference = request.body["uids"]
        uids = None if reference is None else ArrayReader(request.frames).int64s(reference)
        partition = str(request.body["partition"])

        def carry_out() -> None:
            with self._server.answering(request):
                num_gone = self._cleared(partition, uids, request.key)
                self._server.reply(request, Reply(body={"num_rows": num_gone}))

        self._copies.clear(partition, uids, request.key, carry_out=carry_out)

    def clear_rows(self, partition: str, uids: np.ndarray) -> None:
        """Nobody waits for an answer."""

        def carry_out() -> None:
            self._cleared(partition, uids, None)

        self._copies.clear(partition, uids, None, carry_out=carry_out)

    def release_fields(self, partition: str, uids: np.ndarray, fields: Sequence[str]) -> None:
        """The rows stay. The coordinator asked for it, so it needs no telling."""
        uids = np.unique(uids)

        def carry_out() -> None:
            self._journal.stripped(partition, uids, fields)
            self._store.release_fields(partition, uids, fields)
            self._on_free()

        self._copies.strip(partition, uids, fields, carry_out=carry_out)

    def _cleared(self, partition: str, uids: np.ndarray | None, key: Key | None) -> int:
        """How many rows were there."""
        gone = self._store.clear(partition, uids)
        if len(gone):
            self._journal.cleared(partition, gone, key)
            self._on_clear(partition, gone)
            self._on_free()
        return len(gone)
