"""Where the changes of a home pass through on their way to be made. No socket.

`Copies` makes them at once; with it a shard does what it would do without this package.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from transferqueue.replication.changes import (
    READER,
    FullCopy,
    clear_steps,
    complete_steps,
    put_steps,
    skip_steps,
    strip_steps,
)
from transferqueue.replication.copy_log import CopyLog, Entry
from transferqueue.wire.chunks import Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from transferqueue.replication.changes import Key, Step
    from transferqueue.shard.store import Committed, Reservation, Store
    from transferqueue.wire.put import PutPlan


class Copies:
    """``carry_out`` makes a change here, once: within the call or later, in the order of calls. So
    it is for rows that have one copy: at once."""

    one_copy: frozenset[str] = frozenset()
    """Partitions whose rows have no second copy."""
    guard: int = -1
    """The slot whose shard has the second copy; -1: there is none."""
    guard_free_bytes: int = 0
    guard_bytes: int = 0
    """The guard's memory, as it was when a put was refused last."""

    @property
    def num_waiting(self) -> int:
        """Changes that are not made yet."""
        return 0

    def declare(self, one_copy: frozenset[str]) -> None:
        """From now on it is these."""
        self.one_copy = one_copy

    def put(
        self,
        reservation: Reservation,
        key: Key,
        *,
        carry_out: Callable[[], None],
        refuse: Callable[[], None],
    ) -> None:
        """A put that has all its bytes. ``refuse`` instead of ``carry_out``: there is no room for
        the second copy."""
        del reservation, key, refuse
        carry_out()

    def clear(
        self,
        partition: str,
        uids: np.ndarray | None,
        key: Key | None,
        *,
        carry_out: Callable[[], None],
    ) -> None:
        """``uids`` ``None``: of all rows."""
        del partition, uids, key
        carry_out()

    def strip(
        self,
        partition: str,
        uids: np.ndarray,
        fields: Sequence[str],
        *,
        carry_out: Callable[[], None],
    ) -> None:
        """Rows lose fields."""
        del partition, uids, fields
        carry_out()

    def after_waiting(self, carry_out: Callable[[], None]) -> None:
        """Do this when all changes that wait now are made."""
        carry_out()

    def start_over(self) -> None:
        """A change could not be made here, and perhaps was at the guard."""


class TwoCopies(Copies):
    """See `Copies`. ``send`` is called when there may be something to send, ``on_free`` when memory
    that was held for the guard is not any more, ``completed`` when the guard knows that it has
    everything; ``answers`` and ``tagged``: see `FullCopy`."""

    def __init__(
        self,
        store: Store,
        *,
        answers: Callable[[], Mapping[Key, list[Any]]],
        tagged: Callable[[], Sequence[Committed]],
        send: Callable[[], None],
        on_free: Callable[[], None],
        lost_sight: Callable[[], None],
        completed: Callable[[], None],
    ) -> None:
        self.log = CopyLog()
        self.piece_bytes: int | None = None
        """See `put_steps`."""
        self.copy: FullCopy | None = None
        """The one that is under way."""
        self._store = store
        self._answers = answers
        self._tagged = tagged
        self._send = send
        self._on_free = on_free
        self._lost_sight = lost_sight
        self._tell_completed = completed

    @property
    def num_waiting(self) -> int:
        return self.log.num_waiting

    def declare(self, one_copy: frozenset[str]) -> None:
        """What the guard has of a partition that is new among them was put beside the declaration:
        it starts over, so that later fields are not missing from rows that it has."""
        new, self.one_copy = one_copy - self.one_copy, one_copy
        has_rows = any(len(table) for name, table in self._store.partitions.items() if name in new)
        if has_rows or any(put.plan.partition in new for put in self._store.reservations()):
            self._lost_sight()

    def put(
        self,
        reservation: Reservation,
        key: Key,
        *,
        carry_out: Callable[[], None],
        refuse: Callable[[], None],
    ) -> None:
        plan = reservation.plan
        if plan.partition in self.one_copy:
            self._put_once(plan, carry_out)
            return
        sizes = np.array([column.nbytes for column in plan.columns], dtype=np.int64)
        bytes_at = Runs.of(reservation.addresses, sizes)
        lease = self._store.leases.acquire(READER, reservation.slab_ids, time.monotonic())
        self.log.submit(
            Entry(
                steps=self._put_steps(plan, bytes_at, key),
                carry_out=carry_out,
                refuse=refuse,
                let_go=lambda: self._let_go(lease),
            )
        )
        self._send()

    def _put_once(self, plan: PutPlan, carry_out: Callable[[], None]) -> None:
        """New rows have their place among the others: uids rise in the order of commits."""
        if plan.uids is not None:
            carry_out()
            return
        steps = skip_steps(plan.partition, plan.num_rows)
        self.log.submit(Entry(steps=steps, carry_out=carry_out))
        self._send()

    def _put_steps(self, plan: PutPlan, bytes_at: Runs, key: Key) -> Generator[Step]:
        """Made when they are sent: then it is known how the bytes go."""
        yield from put_steps(plan, bytes_at, key, piece_bytes=self.piece_bytes)

    def clear(
        self,
        partition: str,
        uids: np.ndarray | None,
        key: Key | None,
        *,
        carry_out: Callable[[], None],
    ) -> None:
        self.log.submit(Entry(steps=clear_steps(partition, uids, key), carry_out=carry_out))
        self._send()

    def strip(
        self,
        partition: str,
        uids: np.ndarray,
        fields: Sequence[str],
        *,
        carry_out: Callable[[], None],
    ) -> None:
        self.log.submit(Entry(steps=strip_steps(partition, uids, fields), carry_out=carry_out))
        self._send()

    def after_waiting(self, carry_out: Callable[[], None]) -> None:
        self.log.after_waiting(carry_out)

    def start_over(self) -> None:
        self._lost_sight()

    def begin_copy(self, free_bytes: int) -> bool:
        """The guard has dropped what it had, and has so much room: it gets everything. False: that
        is more."""
        copy = FullCopy(
            self._store,
            answers=self._answers(),
            tagged=self._tagged(),
            one_copy=self.one_copy,
            now_s=time.monotonic(),
        )
        if copy.total_bytes > free_bytes:
            copy.close()
            return False
        self.copy = copy
        self.log.begin_copy(
            Entry(steps=copy.steps(), is_copy=True, let_go=lambda: self._end_copy(copy))
        )
        self._send()
        return True

    def answered(self, *, is_made: bool) -> None:
        """See `CopyLog.answered`."""
        self.log.answered(self._complete, is_made=is_made)

    def _complete(self) -> Entry:
        # Also called when it was given up before its answer: then the phase is another one already.
        return Entry(steps=complete_steps(), let_go=self._tell_completed)

    def _end_copy(self, copy: FullCopy) -> None:
        self.copy = None
        copy.close()
        self._on_free()

    def _let_go(self, lease: int) -> None:
        self._store.release(READER, [lease])
        self._on_free()
