"""All that a shard does for second copies: of its own rows, as their home, and as a guard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transferqueue.net.listening import is_listening
from transferqueue.replication.guard_link import GuardLink
from transferqueue.replication.home import TwoCopies
from transferqueue.replication.keeper import Keeper
from transferqueue.replication.mirror_gets import MirrorGets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.net.keys import ServiceKeys
    from transferqueue.net.server import Handler, Server
    from transferqueue.replication.changes import Key
    from transferqueue.replication.settings import GuardSettings
    from transferqueue.shard.peers import MappingPeers
    from transferqueue.shard.store import Committed, Store


class ShardPart:
    """``copies`` is what the shard's changes pass through. ``untold``: see `TwoCopies`.
    ``on_free`` hears that space came free."""

    def __init__(
        self,
        guard: GuardSettings,
        *,
        server: Server,
        keys: ServiceKeys | None,
        store: Store,
        backend: SeveralBackends,
        peers: MappingPeers,
        epoch: int,
        answers: Mapping[Key, list[Any]],
        unsent: Callable[[], Sequence[Committed]],
        num_unsent: Callable[[], int],
        budget_bytes: int,
        on_free: Callable[[], None],
    ) -> None:
        self._on_free = on_free
        self._has_freed = False
        self.copies = TwoCopies(
            store,
            guard=guard.slot,
            limit_bytes=budget_bytes // 2,
            own_bytes=lambda: backend.used_bytes - self._keeper.used_bytes,
            answers=lambda: answers,
            tagged=unsent,
            send=lambda: self._link.send(),
            on_free=self._note_free,
            lost_sight=lambda: self._link.lost_sight(),
        )
        self._stream = server.open_stream(guard.endpoint, keys)
        self._link = GuardLink(
            self._stream,
            slot=store.slot,
            epoch=epoch,
            backend=backend,
            copies=self.copies,
            arena=backend.client_access(),
            bytes_per_s=guard.bytes_per_s,
            num_untold=num_unsent,
            is_there=lambda: is_listening(guard.endpoint),
        )
        server.watch(self._stream.socket, self._link.hear)
        self._keeper = Keeper(backend=backend, epoch=epoch, on_free=on_free)
        self._gets = MirrorGets(
            self._keeper, server=server, backend=backend, peers=peers, on_free=on_free
        )

    def handlers(self, own: Mapping[str, Handler]) -> dict[str, Handler]:
        """``own``: those for gets of the shard's own rows."""
        return {**self._keeper.handlers, **self._gets.beside(own)}

    def cancel(self, key: Key) -> None:
        """A client gave a request up."""
        self._gets.cancel(key)

    def tick(self, now_s: float) -> None:
        self._link.tick(now_s)
        self._gets.tick(now_s)
        if self._has_freed:
            self._has_freed = False
            self._on_free()

    def _note_free(self) -> None:
        """A change was made, perhaps on the occasion of a put that had waited: others are let in
        after it, by `tick`, which is called before the loop waits."""
        self._has_freed = True

    def next_s(self) -> float:
        """When `tick` is due."""
        due = self._gets.next_s()
        return self._link.next_s() if due is None else min(due, self._link.next_s())

    def report(self) -> dict[str, Any]:
        """For `status`."""
        return {**self._link.report(), "kept": self._keeper.report()}

    def close(self) -> None:
        self._stream.close()
        self._keeper.close()
