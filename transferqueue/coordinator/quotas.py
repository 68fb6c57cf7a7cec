"""How much may be in a partition: which puts are let in, and which claims can never be served.

Symbols, all of one partition: ``used`` rows are in or being freed, ``credit`` rows are promised to
shards, ``limit`` is ``max_rows``; bytes likewise. A put of p new rows is let in, in order of
arrival, when ``used + credit + p <= limit``.

That rule alone can stand still. Limit 7, puts of 4, a task claims 5: 4 rows are in, the second put
waits for room, the claim waits for a fifth row. So there is one exception, and it is arithmetic,
not a guess about who is slow. Let a claim of task t wait for n rows, and ``available`` be the rows
t can still get (free or claimed, and credit). If ``available < n`` the task is held up: it takes no
row before a put comes. Let ``idle`` be the rows that some task that is held up has neither acked
nor out under a claim. Nobody can free those before a put comes. If ``idle + p > limit``, none can
ever move, and the put is let in. Each brings nearer a claim of n <= limit rows (a larger one had
been refused), so the limit is passed by less than n rows and a put. All tasks that are held up
count together: of 8 rows, 4 acked by t alone and 4 by u alone, each with a claim that waits for 6,
neither task holds more than half.

Alternatives: refusing such claims needs the size of all later puts; counting the limit as a
high-water mark passes it also when nothing is stuck; splitting a put breaks its atomicity.

`samples_per_insert` makes ties of its own, and of the two limits it is the one that gives way. A
put that has room and is ahead of claims is let in when a claim waits for rows, or is itself held
back by the ratio. A claim that has its rows and is ahead of puts, as it is when rows are given back
again and again, is served when the first put is kept out by idle rows alone.

Of a claim of whole groups, or with a condition, nobody can say which later put it waits for: rows
that it does not want can fill a partition, and then it and the put end at their deadlines, the
put's error naming who holds the rows. Letting puts in for such a claim would have no end.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transferqueue.coordinator.effects import Admitted, Effect, Refuse, Reply
from transferqueue.errors import InvalidInput, QuotaExceeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transferqueue.coordinator.effects import WaiterId
    from transferqueue.coordinator.policy import PartitionPolicy, SamplesPerInsert
    from transferqueue.coordinator.waiters import PutWaiter


class FieldBytes:
    """Bytes and cells held by field."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._cells: dict[str, int] = {}
        self.total = 0

    def add(self, field: str, num_cells: int, num_bytes: int) -> None:
        """Cells have come."""
        self._bytes[field] = self._bytes.get(field, 0) + num_bytes
        self._cells[field] = self._cells.get(field, 0) + num_cells
        self.total += num_bytes

    def remove(self, field: str, num_cells: int, num_bytes: int | None = None) -> int:
        """Cells have gone, with this many bytes, or with their share. Returns the bytes."""
        held, cells = self._bytes.get(field, 0), self._cells.get(field, 0)
        if num_bytes is None:
            num_bytes = held * num_cells // cells if cells else 0
        num_bytes = held if num_cells >= cells else min(num_bytes, held)
        self._bytes[field] = held - num_bytes
        self._cells[field] = max(0, cells - num_cells)
        self.total -= num_bytes
        return num_bytes

    def of_a_cell(self) -> dict[str, float]:
        """Bytes of one cell of each field, on the average."""
        return {field: self._bytes[field] / cells for field, cells in self._cells.items() if cells}

    def by_field(self) -> dict[str, int]:
        """Bytes of each field that holds any cell."""
        return {field: self._bytes[field] for field, cells in self._cells.items() if cells}


@dataclass(slots=True)
class Room:
    """Rows and bytes."""

    rows: int = 0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a waiting claim's task can get, and what waiting claims hold, for the exception."""

    n: int
    available_rows: int
    idle_rows: int
    """Those that no task that is held up has acked, or has out under a claim."""


class Quota:
    """The room of one partition."""

    def __init__(self, partition: str, policy: PartitionPolicy) -> None:
        self._partition = partition
        self.policy = policy
        self.used_rows = 0
        self.field_bytes = FieldBytes()
        self.rows_put = 0
        self.rows_handed_out = 0
        self.num_let_past = 0
        """Puts that the exception let in."""
        self._credit: dict[int, Room] = {}
        self.waiting: OrderedDict[WaiterId, PutWaiter] = OrderedDict()

    @property
    def _max_rows(self) -> int | None:
        return self.policy.max_rows

    @property
    def _max_bytes(self) -> int | None:
        return self.policy.max_bytes

    @property
    def _ratio(self) -> SamplesPerInsert | None:
        return self.policy.samples_per_insert

    # -- room -----------------------------------------------------------------------------------

    @property
    def credit(self) -> Room:
        """Promised to shards and not used yet."""
        rooms = self._credit.values()
        return Room(sum(r.rows for r in rooms), sum(r.num_bytes for r in rooms))

    def check_put(self, num_rows: int, num_bytes: int) -> None:
        """InvalidInput if such a put could never be let in."""
        for what, asked, limit in (
            ("rows", num_rows, self._max_rows),
            ("bytes", num_bytes, self._max_bytes),
        ):
            if limit is not None and asked > limit:
                raise InvalidInput(
                    f"partition {self._partition!r}: a put of {asked:,} {what} can never fit, "
                    f"max_{what} is {limit:,}; put fewer rows at a time, or raise it"
                )

    def check_claim(self, n: int, *, repeats: bool = False) -> str:
        """Why so many rows could never be ready at once, with the arithmetic; "" if they could.
        ``repeats``: a row may come more than once, so a few of them are enough."""
        if self._max_rows is not None and n > self._max_rows and not repeats:
            return f"a claim of {n:,} rows, but max_rows lets in {self._max_rows:,} at once"
        slack = None if self._ratio is None else 2 * self._ratio.slack_rows
        if slack is not None and n > slack:
            return f"a claim of {n:,} rows, but samples_per_insert has 2 x slack_rows = {slack:g}"
        # How large rows are to be is only known from those that are there, once they fill it.
        is_full = self._max_bytes is not None and (
            self.used_rows > 0 and self.field_bytes.total + self._mean_bytes > self._max_bytes
        )
        return self._never_in_bytes(n) if is_full and not repeats else ""

    @property
    def _mean_bytes(self) -> float:
        """Of a row that is in."""
        return self.field_bytes.total / max(1, self.used_rows)

    def _fits(self, put: PutWaiter) -> bool:
        credit = self.credit
        if self._max_rows is not None and (
            self.used_rows + credit.rows + put.num_rows > self._max_rows
        ):
            return False
        return self._max_bytes is None or (
            self.field_bytes.total + credit.num_bytes + put.num_bytes <= self._max_bytes
        )

    def _in_ratio(self, put: PutWaiter) -> bool:
        if self._ratio is None:
            return True
        rows = self.rows_put + self.credit.rows + put.num_rows
        lead = self._ratio.ratio * (rows - self._ratio.min_rows) - self.rows_handed_out
        return lead <= self._ratio.slack_rows

    def may_hand_out(self, n: int) -> bool:
        """Whether ``samples_per_insert`` lets a claim have ``n`` rows now."""
        if self._ratio is None:
            return True
        lead = self._ratio.ratio * (self.rows_put - self._ratio.min_rows) - self.rows_handed_out
        return lead - n >= -self._ratio.slack_rows

    # -- puts -----------------------------------------------------------------------------------

    def park(self, put: PutWaiter) -> None:
        """The put waits behind the others; ``admit`` answers it, maybe at once."""
        self.waiting[put.waiter_id] = put

    def admit(self) -> list[Effect]:
        """Let in the puts that have waited longest, as far as there is room."""
        effects: list[Effect] = []
        while self.waiting:
            put = next(iter(self.waiting.values()))
            if not (self._fits(put) and self._in_ratio(put)):
                break
            effects.append(self._let_in(put))
        return effects

    def _let_in(self, put: PutWaiter) -> Effect:
        self.leave(put)
        room = self._credit.setdefault(put.slot, Room())
        room.rows += put.num_rows
        room.num_bytes += put.num_bytes
        payload = Admitted(num_rows=put.num_rows, num_bytes=put.num_bytes)
        return Reply(waiter_id=put.waiter_id, payload=payload)

    def break_tie(self, demand: Demand, *, ratio_blocks: bool) -> list[Effect] | str:
        """Let the first waiting put in past the limit if else it and this claim wait forever.

        ``ratio_blocks``: the claim waits for ``samples_per_insert`` alone. Returns the effects, or
        why the claim can never be served.
        """
        put = next(iter(self.waiting.values()))
        if self._fits(put):  # so only the ratio is in its way
            stuck = ratio_blocks or demand.available_rows < demand.n
        else:
            if demand.available_rows >= demand.n:
                return []
            never = self._never_in_bytes(demand.n)
            if never:
                return never
            stuck = self._block(put, demand.idle_rows)
        if not stuck:
            return []
        self.num_let_past += 1
        return [self._let_in(put)]

    def waits_for_claims(self, demand: Demand) -> bool:
        """Whether the first waiting put can get room only if this task claims what it has."""
        put = next(iter(self.waiting.values()))
        if self._fits(put) or demand.available_rows < demand.n:
            return False
        return self._block(put, demand.idle_rows)

    def _never_in_bytes(self, n: int) -> str:
        mean_bytes = self._mean_bytes
        if self._max_bytes is None or n * mean_bytes <= self._max_bytes:
            return ""
        return (
            f"a claim of {n:,} rows of {mean_bytes:,.0f} bytes is {n * mean_bytes:,.0f} bytes, "
            f"but max_bytes is {self._max_bytes:,}"
        )

    def _block(self, put: PutWaiter, idle_rows: int) -> bool:
        if self._max_rows is not None and idle_rows + put.num_rows > self._max_rows:
            return True
        return self._max_bytes is not None and (
            idle_rows * self._mean_bytes + put.num_bytes > self._max_bytes
        )

    def of_slot(self, slot: int) -> list[PutWaiter]:
        """The puts of one shard that wait."""
        return [put for put in self.waiting.values() if put.slot == slot]

    def leave(self, put: PutWaiter) -> None:
        """The put waits no more."""
        del self.waiting[put.waiter_id]

    def give_up(self, put: PutWaiter, holders: str) -> Refuse:
        """The put's deadline has come."""
        error = self.over_limit(put, holders)
        self.leave(put)
        return Refuse(waiter_id=put.waiter_id, error=error)

    def over_limit(self, put: PutWaiter, holders: str) -> QuotaExceeded:
        """Why the put is not let in, with the numbers. One that only waits for others has these
        among what is used."""
        used = self.credit
        used.rows += self.used_rows
        used.num_bytes += self.field_bytes.total
        ahead = list(itertools.takewhile(lambda other: other is not put, self.waiting.values()))
        if self._fits(put) and all(map(self._in_ratio, [*ahead, put])):
            used.rows += sum(other.num_rows for other in ahead)
            used.num_bytes += sum(other.num_bytes for other in ahead)
            holders += f"; puts that came before it: {len(ahead)}"
        elif self._fits(put):
            holders = "samples_per_insert: claims are behind"
        what, limit, held, asked = "rows", self._max_rows, used.rows, put.num_rows
        if limit is None or held + asked <= limit:
            what, limit = "bytes", self._max_bytes
            held, asked = used.num_bytes, put.num_bytes
        return QuotaExceeded(self._partition, what, limit or 0, held, asked, holders)

    # -- what comes and goes --------------------------------------------------------------------

    def use(self, slot: int, num_rows: int, num_bytes: int) -> None:
        """New rows of a slot are in; they use up its credit first."""
        self.used_rows += num_rows
        self.rows_put += num_rows
        if num_rows:
            self.return_credit(slot, num_rows, num_bytes)

    def return_credit(self, slot: int, num_rows: int, num_bytes: int) -> None:
        """A slot's credit is less by this much."""
        room = self._credit.get(slot)
        if room is None:
            return
        room.rows = max(0, room.rows - num_rows)
        room.num_bytes = max(0, room.num_bytes - num_bytes)
        if not room.rows:  # what is left of the bytes was too high an estimate
            del self._credit[slot]

    def void_credit(self, slot: int) -> None:
        """The shard is another process now, which knows of no credit."""
        self._credit.pop(slot, None)

    def free(self, cells: Mapping[str, int], num_rows: int, nbytes: Mapping[str, int]) -> None:
        """Rows are gone, with this many cells of each field."""
        self.used_rows -= num_rows
        for field, num_cells in cells.items():
            self.field_bytes.remove(field, num_cells, nbytes.get(field))
