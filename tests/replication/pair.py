"""A home and its guard that a test drives step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.replication.two_shards import (
    SLOT,
    Change,
    Guard,
    Home,
    Model,
    Put,
    Register,
    heap,
    state_of,
)

if TYPE_CHECKING:
    from transferqueue.backends.several import SeveralBackends
    from transferqueue.replication.copy_log import Phase

BUDGET = 1 << 16


class Pair:
    """A home and its guard. ``model``: what was acknowledged."""

    def __init__(
        self, *, guard_bytes: int = BUDGET, home_backend: SeveralBackends | None = None
    ) -> None:
        self.guard = Guard(guard_bytes, 0)
        self.home = Home.empty(home_backend or heap(BUDGET))
        self.register = Register()
        self.model = Model(self.home.store.next_uid)
        self.now_s = 0.0
        self.num_puts = 0

    def put(self, *cells: bytes, uids: tuple[int, ...] | None = None) -> None:
        self.num_puts += 1
        self.change(Put(number=self.num_puts, partition="p", uids=uids, cells={"x": cells}))

    def change(self, change: Change) -> None:
        self.home.change(change, lambda made: made.apply(self.model))

    def pass_time(self, seconds: float = 0.6) -> None:
        self.now_s += seconds
        self.home.link.tick(self.now_s)
        self.register.hear(self.home)

    def exchange(self, times: int = 200, *, with_coordinator: bool = True) -> None:
        for _ in range(times):
            self.guard.serve(self.home.wire)
            self.home.wire.arrive()
            self.home.link.hear()
            if with_coordinator:
                self.register.hear(self.home)
            self.home.link.tick(self.now_s)  # as a shard's loop does, before it waits

    def settle(self) -> None:
        self.pass_time()
        self.exchange()
        assert self.home.copies.log.is_complete

    @property
    def phase(self) -> Phase:
        return self.home.copies.log.phase

    @property
    def uids(self) -> tuple[int, ...]:
        return tuple(self.model.rows["p"])

    def mirrored(self) -> object:
        """The rows of a mirror that may be relied on; ``None``: there is none."""
        kept = self.guard.keeper.complete(SLOT)
        if kept is None or kept.generation != self.register.copy:
            return None
        return state_of(kept.mirror.store, self.guard.backend)
