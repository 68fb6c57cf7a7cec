"""Which slots of a device arena are whose: generations, loans, quarantine.

A *slot* is a range that was reserved, on one block of device memory that other processes have open;
when some of it is freed, what is left are slots of the same generation. What is different from
shared memory, where a dead process cannot touch a page any more and a successor finds the bytes
again:

* A reader has the whole block open and can look at any byte at any time, so what it was lent is
  named by a **generation**, a number that no other slot of this pool ever has. A `SlotRef` with
  another one is stale, and `check` says so.
* The memory ends with its owner. A ref names the **epoch** of the owner that gave it; one of an
  earlier epoch is `OwnerLost`, whatever lies at its offset now.
* A copy that a process gave to its device may still run when the process is dead. What it read is
  nobody's, but what it *wrote* would land in the next owner's bytes. So the slots of a dead process
  are kept apart for ``quarantine_s`` before they are given out again.
* A loan has an end that its reader was told of. Time alone never takes a slot from a live reader,
  who may be copying; a loan that is not given back by then is reported, once, by `Overdue`.

Invariants: a byte that was ever given out is free in the allocator, or of exactly one slot, so
``allocator.used_bytes`` is the sum of the slots. No byte of a slot that is lent or in quarantine
becomes free, whatever is asked: it is *held* until the last loan and the quarantine end.
Generations rise.

Nothing here reads a clock, a socket or a device: ``now_s`` comes from the caller.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from transferqueue.errors import OwnerLost, StaleGeneration
from transferqueue.memory.allocator import sorted_pieces
from transferqueue.memory.free_ranges import merge_adjacent
from transferqueue.wire.slot_ref import SlotRef

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from transferqueue.memory.allocator import RangeAllocator

    Int64s = NDArray[np.int64]

QUARANTINE_S = 2.0
"""Drivers tear a dead process down, copies included, within a fraction of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """What a reader has until it gives it back."""

    loan_id: int
    reader: str
    refs: tuple[SlotRef, ...]
    """The slots, whole, each once."""
    until_s: float | None
    """``None``: until it is given back, or its reader is gone."""

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for ref in self.refs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A loan that its reader has kept for longer than it was lent."""

    loan_id: int
    reader: str
    nbytes: int
    over_s: float


@dataclass(slots=True)
class _Slot:
    start: int
    end: int
    generation: int
    is_sealed: bool = False
    num_loans: int = 0
    quarantined_until_s: float | None = None
    held: list[tuple[int, int]] = field(default_factory=list)
    """Starts and ends of what was freed and may not be yet."""

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    @property
    def is_guarded(self) -> bool:
        return self.num_loans > 0 or self.quarantined_until_s is not None


class SlotTable:
    """The slots of one pool, over the allocator that gives out its bytes."""

    def __init__(
        self,
        allocator: RangeAllocator,
        *,
        pool: str,
        epoch: int,
        quarantine_s: float = QUARANTINE_S,
    ) -> None:
        """``pool`` names the block of memory, ``epoch`` the process that owns it."""
        self.pool, self.epoch = pool, epoch
        self._allocator = allocator
        self._quarantine_s = quarantine_s
        self._slots: dict[int, _Slot] = {}  # by start
        self._starts: list[int] = []  # rising
        self._last_generation = 0
        self._loans: dict[int, Loan] = {}
        self._last_loan_id = 0
        self._reported: set[int] = set()
        self._quarantined: set[int] = set()  # starts

    def __len__(self) -> int:
        """Slots that are in use, held ones among them."""
        return len(self._slots)

    @property
    def num_loans(self) -> int:
        return len(self._loans)

    @property
    def live_bytes(self) -> int:
        """Of all slots, held bytes among them."""
        return sum(slot.nbytes for slot in self._slots.values())

    @property
    def held_bytes(self) -> int:
        """Freed, and kept for a loan or a quarantine."""
        return sum(end - start for slot in self._slots.values() for start, end in slot.held)

    @property
    def quarantined_bytes(self) -> int:
        return sum(self._slots[start].nbytes for start in self._quarantined)

    # -- a slot's life --------------------------------------------------------------------------

    def enter(self, addresses: Int64s, extents: Int64s) -> None:
        """The allocator has just given out these ranges. Empty ones are no slots."""
        for start, nbytes in zip(addresses.tolist(), extents.tolist(), strict=True):
            if nbytes:
                self._last_generation += 1
                self._add(_Slot(start, start + nbytes, self._last_generation))

    def seal(self, addresses: Int64s) -> None:
        """The slots that begin here are complete: only now may they be lent."""
        for start in addresses.tolist():
            slot = self._slots.get(start)
            if slot is not None:
                slot.is_sealed = True

    def free(self, addresses: Int64s, nbytes: Int64s) -> None:
        """As the allocator's ``free_many``; bytes of guarded slots follow when nothing holds them.

        ``ValueError``, and no change, when some of the bytes are not in use or are named twice.
        """
        starts, ends = merge_adjacent(*sorted_pieces(addresses, nbytes))
        pieces = [
            piece
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            for piece in self._cut(start, end)
        ]
        for slot, low, high in pieces:
            if any(start < high and low < end for start, end in slot.held):
                raise ValueError(f"bytes in [{low}, {high}) are free already")
        for slot, low, high in pieces:
            if slot.is_guarded:
                slot.held.append((low, high))
        self._free_now([piece for piece in pieces if not piece[0].is_guarded])

    # -- loans ----------------------------------------------------------------------------------

    def lend(
        self,
        reader: str,
        addresses: Iterable[int],
        until_s: float | None = None,
        *,
        loan_id: int | None = None,
    ) -> Loan:
        """The slots that hold these bytes. ``ValueError`` for bytes that nobody may read.

        ``loan_id``: the caller's own number, not in use; ``None``: the next one.
        """
        slots = {slot.start: slot for slot in map(self._slot_at, addresses)}
        for slot in slots.values():
            if not slot.is_sealed:
                raise ValueError(f"the slot at {slot.start} is not complete")
        self._last_loan_id += loan_id is None
        loan = Loan(
            loan_id=self._last_loan_id if loan_id is None else loan_id,
            reader=reader,
            refs=tuple(map(self._ref, slots.values())),
            until_s=until_s,
        )
        for slot in slots.values():
            slot.num_loans += 1
        self._loans[loan.loan_id] = loan
        return loan

    def give_back(self, reader: str, loan_ids: Iterable[int], now_s: float) -> list[Overdue]:
        """End loans; those that this reader does not have are passed over. Returns those that came
        back late and were not reported before."""
        late = []
        for loan_id in loan_ids:
            loan = self._loans.get(loan_id)
            if loan is not None and loan.reader == reader:
                late += self._overdue(loan, now_s)
                self._end(loan)
        return late

    def check(self, ref: SlotRef) -> None:
        """Whether what lies there is still what the ref was given for. `OwnerLost`,
        `StaleGeneration`."""
        if (ref.pool, ref.epoch) != (self.pool, self.epoch):
            raise OwnerLost(ref.pool, f"the owner of epoch {ref.epoch}")
        slot = self._find(ref.offset)
        found = 0 if slot is None else slot.generation
        if slot is None or found != ref.generation or slot.end < ref.offset + ref.nbytes:
            raise StaleGeneration(self.pool, ref.offset, ref.generation, found)

    def refs_of(self, loan_id: int) -> tuple[SlotRef, ...] | None:
        """Of a loan that is out; else ``None``."""
        loan = self._loans.get(loan_id)
        return None if loan is None else loan.refs

    def of_readers(self) -> Mapping[str, int]:
        """Bytes that each reader has been lent; a slot that it has twice counts twice."""
        total: dict[str, int] = {}
        for loan in self._loans.values():
            total[loan.reader] = total.get(loan.reader, 0) + loan.nbytes
        return total

    # -- the dead, and time ---------------------------------------------------------------------

    def process_gone(self, reader: str, written: Iterable[int], now_s: float) -> None:
        """A process is dead: its loans end, and what it had, or was ``written`` by it and never
        sealed (bytes of such slots), goes into quarantine."""
        loans = [loan for loan in self._loans.values() if loan.reader == reader]
        touched = {ref.offset for loan in loans for ref in loan.refs}
        touched.update(self._slot_at(address).start for address in written)
        for start in touched if self._quarantine_s > 0 else ():
            self._slots[start].quarantined_until_s = now_s + self._quarantine_s
            self._quarantined.add(start)
        for loan in loans:
            self._end(loan)

    def tick(self, now_s: float) -> list[Overdue]:
        """End quarantines that are over. Returns loans that are overdue since the last time."""
        for start in list(self._quarantined):
            slot = self._slots[start]
            assert slot.quarantined_until_s is not None
            if slot.quarantined_until_s <= now_s:
                self._quarantined.discard(start)
                slot.quarantined_until_s = None
                self._let_go(slot)
        return [over for loan in self._loans.values() for over in self._overdue(loan, now_s)]

    def next_s(self) -> float | None:
        """When `tick` is due."""
        ends = [self._slots[start].quarantined_until_s for start in self._quarantined]
        ends += [
            loan.until_s for loan in self._loans.values() if loan.loan_id not in self._reported
        ]
        return min((at_s for at_s in ends if at_s is not None), default=None)

    # -- steps ----------------------------------------------------------------------------------

    def _ref(self, slot: _Slot) -> SlotRef:
        return SlotRef(
            pool=self.pool,
            epoch=self.epoch,
            generation=slot.generation,
            offset=slot.start,
            nbytes=slot.end - slot.start,
        )

    def _add(self, slot: _Slot) -> None:
        self._slots[slot.start] = slot
        insort(self._starts, slot.start)

    def _remove(self, slot: _Slot) -> None:
        del self._slots[slot.start]
        del self._starts[bisect_left(self._starts, slot.start)]

    def _find(self, address: int) -> _Slot | None:
        at = bisect_right(self._starts, address) - 1
        slot = self._slots[self._starts[at]] if at >= 0 else None
        return slot if slot is not None and address < slot.end else None

    def _slot_at(self, address: int) -> _Slot:
        slot = self._find(address)
        if slot is None:
            raise ValueError(f"byte {address} is not in use")
        return slot

    def _overdue(self, loan: Loan, now_s: float) -> list[Overdue]:
        if loan.until_s is None or now_s <= loan.until_s or loan.loan_id in self._reported:
            return []
        self._reported.add(loan.loan_id)
        over_s = now_s - loan.until_s
        return [
            Overdue(loan_id=loan.loan_id, reader=loan.reader, nbytes=loan.nbytes, over_s=over_s)
        ]

    def _end(self, loan: Loan) -> None:
        del self._loans[loan.loan_id]
        self._reported.discard(loan.loan_id)
        for ref in loan.refs:
            slot = self._slots[ref.offset]
            slot.num_loans -= 1
            self._let_go(slot)

    def _let_go(self, slot: _Slot) -> None:
        """Free what was held, if nothing guards the slot any more."""
        if not slot.is_guarded and slot.held:
            held, slot.held = slot.held, []
            self._free_now([(slot, low, high) for low, high in held])

    def _cut(self, start: int, end: int) -> list[_Piece]:
        """A range as pieces of single slots. ``ValueError`` where it is of none."""
        pieces = []
        while start < end:
            slot = self._slot_at(start)
            pieces.append((slot, start, min(end, slot.end)))
            start = slot.end
        return pieces

    def _free_now(self, pieces: Sequence[_Piece]) -> None:
        """Pieces of slots that nothing guards, disjoint. What is left of each are slots too."""
        of_slot: dict[int, list[_Piece]] = {}
        for piece in pieces:
            of_slot.setdefault(piece[0].start, []).append(piece)
        for cuts in of_slot.values():
            self._split(cuts[0][0], sorted((low, high) for _, low, high in cuts))
        starts = np.array([low for _, low, _ in pieces], np.int64)
        ends = np.array([high for _, _, high in pieces], np.int64)
        self._allocator.free_many(starts, ends - starts)

    def _split(self, slot: _Slot, cuts: Sequence[tuple[int, int]]) -> None:
        self._remove(slot)
        start = slot.start
        for low, high in [*cuts, (slot.end, slot.end)]:
            if start < low:
                self._add(_Slot(start, low, slot.generation, slot.is_sealed))
            start = high


_Piece = tuple[_Slot, int, int]
"""Of a slot, from a byte to another."""
