"""A shard's edge for spilling: slabs of the default backend move to the disk, some bytes at a turn
of the loop. What a partition has sent elsewhere stays there, and so does what somebody has leased,
so nobody's memory moves.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.backends.several import ADDRESS_BITS
from transferqueue.config import SPILL_NAME
from transferqueue.errors import BytesDamaged, ServiceFailed
from transferqueue.shard.coldness import Marks, Surplus, coldest
from transferqueue.shard.relocation import Relocation

if TYPE_CHECKING:
    from collections.abc import Callable

    from transferqueue.backends.base import Backend
    from transferqueue.backends.several import SeveralBackends
    from transferqueue.config import SpillConfig
    from transferqueue.shard.journal import ShardJournal
    from transferqueue.shard.store import Store

STEP_BYTES = 16 << 20
"""Moved at one turn of the loop, or one slab: 10 to 50 ms on two busy cores, for which other
requests wait."""

STEP_SLABS = 512
"""At most so many of them: each costs some calls of the kernel."""

MIN_SLAB_BYTES = 16 << 10
"""Smaller slabs stay while no put waits for space: a page of the disk and a turn of the loop are
much for what they free."""

TRY_AGAIN_S = 0.25
"""After the disk was full or failed, or nothing could be moved."""

_log = logging.getLogger(__name__)


class Spill:
    """``wanted`` says how many bytes the first put that waits for space needs, ``on_free`` hears
    that space came free."""

    def __init__(
        self,
        *,
        store: Store,
        backend: SeveralBackends,
        journal: ShardJournal,
        marks: Marks,
        wanted: Callable[[], int],
        on_free: Callable[[], None],
        min_slab_bytes: int | None = None,
    ) -> None:
        self._min_slab_bytes = MIN_SLAB_BYTES if min_slab_bytes is None else min_slab_bytes
        to = backend.number_of(SPILL_NAME)
        assert to is not None, "no disk to spill to"
        self._store = store
        self._backend = backend
        self._to = to
        self._relocation = Relocation(store=store, backend=backend, journal=journal)
        self._surplus = Surplus(marks)
        self._wanted = wanted
        self._on_free = on_free
        self._not_before_s = 0.0
        self._is_due = False
        self._num_moved = 0
        self._has_failed = False

    @classmethod
    def of(
        cls, backend: SeveralBackends, config: SpillConfig | None, budget_bytes: int, **edges: Any
    ) -> Spill | None:
        """``None`` for a shard that keeps all in memory."""
        if config is None:
            return None
        marks = Marks.of(budget_bytes, config.high, config.low)
        return cls(backend=backend, marks=marks, **edges)

    def tick(self, now_s: float) -> None:
        """Move some slabs, if there is need."""
        surplus = self._surplus.now(self._backend.used_bytes, self._wanted())
        self._is_due = surplus > 0
        if not self._is_due or now_s < self._not_before_s:
            return
        if self._step(surplus):
            self._on_free()
        else:
            self._not_before_s = now_s + TRY_AGAIN_S

    def next_s(self) -> float | None:
        """When `tick` is due."""
        return self._not_before_s if self._is_due else None

    def report(self) -> dict[str, Any]:
        """For ``status``."""
        disk, slabs = self._disk, self._store.slabs
        numbers = slabs.address[slabs.ids()] >> ADDRESS_BITS
        return {
            **disk.facts(),
            "used_bytes": disk.used_bytes,
            "budget_bytes": disk.capacity_bytes,
            "slabs": int(np.count_nonzero(numbers == self._to)),
            "moved": self._num_moved,
        }

    @property
    def _disk(self) -> Backend:
        return self._backend.members[self._to].backend

    def _step(self, surplus: int) -> bool:
        """Whether anything was moved."""
        try:
            num_moved = self._relocation.move(self._chosen(surplus), self._to)
        except (ServiceFailed, BytesDamaged) as error:
            if not self._has_failed:  # once, until it works again
                _log.warning("spilling stopped, slabs stay in memory: %s", error)
            self._has_failed = True
            return False
        if num_moved:
            self._num_moved += num_moved
            self._has_failed = False
        return num_moved > 0

    def _chosen(self, surplus: int) -> np.ndarray:
        """No more than the disk has room for, so that what there is of it is used."""
        slabs, disk, of = self._store.slabs, self._disk, self._backend.default
        ids = slabs.movable(of << ADDRESS_BITS, (of + 1) << ADDRESS_BITS)
        under_way = [reservation.slab_ids for reservation in self._store.reservations()]
        if under_way:
            ids = ids[~np.isin(ids, np.concatenate(under_way))]
        nbytes = slabs.live_bytes[ids]
        # Rather a page of the disk for each small slab than a put that waits for ever.
        least = 1 if self._wanted() else self._min_slab_bytes
        ids = ids[(nbytes >= least) & (nbytes <= disk.largest_free)]
        most = min(STEP_BYTES, disk.capacity_bytes - disk.used_bytes)
        chosen = coldest(slabs.live_bytes[ids], slabs.last_use[ids], surplus, most)
        return ids[chosen[:STEP_SLABS]]
