"""How much room the backends of a shard have for what is put. No bytes, no socket.

Where rows have second copies, half of each backend is for the shard's own: so every guard has room
for a mirror at any time, also after one was lost and rows were put on one copy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transferqueue.errors import StorageFull

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transferqueue.backends.several import SeveralBackends
    from transferqueue.errors import ServiceFailed
    from transferqueue.shard.waiting_puts import WaitingPut


class PutRoom:
    """By number of a backend. ``kept_bytes`` says what mirrors of other shards take of one;
    ``None``: there are no second copies."""

    def __init__(
        self, backend: SeveralBackends, slot: int, kept_bytes: Callable[[int], int] | None = None
    ) -> None:
        self._backend = backend
        self._slot = slot
        self._kept_bytes = kept_bytes

    def limit_bytes(self, number: int) -> int:
        """What there may be at most."""
        budget_bytes = self._backend.members[number].budget_bytes
        return budget_bytes if self._kept_bytes is None else budget_bytes // 2

    def left_bytes(self, number: int) -> int:
        """Of that, what is not taken."""
        used_bytes = self._backend.members[number].backend.used_bytes
        kept_bytes = 0 if self._kept_bytes is None else self._kept_bytes(number)
        return self.limit_bytes(number) - (used_bytes - kept_bytes)

    def may_ever_hold(self, needs: Mapping[int, int]) -> bool:
        return all(nbytes <= self.limit_bytes(at) for at, nbytes in needs.items())

    def lacking(self, needs: Mapping[int, int]) -> tuple[int, ...]:
        """Those of which so much is not to be had now, though it may be there: it is kept free for
        second copies."""
        if self._kept_bytes is None:
            return ()
        return tuple(at for at, nbytes in needs.items() if nbytes > self.left_bytes(at))

    def full(self, put: WaitingPut, waited_s: float) -> StorageFull | ServiceFailed:
        """Of the backend that has least room for what the put brings there; of one that is away,
        if it needs that."""
        for at in put.needs:
            absence = self._backend.absence(at)
            if absence is not None:
                return absence
        left = {at: self.left_bytes(at) for at in put.needs}
        worst = min(put.needs, key=lambda at: left[at] - put.needs[at])
        return StorageFull(
            put.needs[worst],
            left[worst],
            self.limit_bytes(worst),
            waited_s,
            self._slot,
            self._backend.names[worst] if worst != self._backend.default else "",
        )
