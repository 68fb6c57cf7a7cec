"""What of a home's changes its guard has: when each becomes visible, and when it is acknowledged.
No socket, no clock, no bytes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from transferqueue.replication.changes import Step


class Phase(StrEnum):
    """How a home and its guard stand."""

    UNKNOWN = "guard away"
    """A mirror may be on record that lacks what changes now: they wait until none is."""
    ALONE = "one copy"
    """No mirror is of any use: changes are made at once."""
    COPYING = "copying"
    """As `ALONE`; all that is there is on its way to the guard, and what changes goes after it."""
    IN_STEP = "in step"
    """A change is made when the guard has made it."""


def _nothing() -> None:
    """The default of what there is to do for an entry."""


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """A change, or something else that has its place among them."""

    steps: Generator[Step] | None = None
    """``None``: the guard is not told of it; it only comes after what was before it."""
    carry_out: Callable[[], None] | None = None
    """Makes the change at home. ``None``: it was made before."""
    refuse: Callable[[], None] = _nothing
    """Instead of `carry_out`, when the guard has no room for it."""
    let_go: Callable[[], None] = _nothing
    """Once, when it is not sent any more."""
    is_copy: bool = False


class CopyLog:
    """Invariant: entries are in the order in which their changes are made, here and at the guard.

    ``is_complete``: every acknowledged change is in the guard's mirror, and the guard knows that.
    """

    def __init__(self) -> None:
        self.phase = Phase.UNKNOWN
        self.is_complete = False
        self._entries: deque[Entry] = deque()
        """Not answered yet."""
        self._num_begun = 0
        """Of them, those that `next_entry` has given out."""

    @property
    def num_waiting(self) -> int:
        """Changes that are not made yet."""
        return sum(entry.carry_out is not None for entry in self._entries)

    def submit(self, entry: Entry) -> None:
        """A change comes. It is made now or when the guard has answered."""
        assert entry.carry_out is not None
        if self.phase in (Phase.UNKNOWN, Phase.IN_STEP):
            self._entries.append(entry)
            return
        carry_out, entry.carry_out = entry.carry_out, None
        if self.phase is Phase.ALONE:
            carry_out()
            entry.let_go()
        else:
            self._entries.append(entry)
            carry_out()

    def after_waiting(self, carry_out: Callable[[], None]) -> None:
        """Do this when all changes that wait now are made: at once when none does."""
        if self.num_waiting:
            self._entries.append(Entry(carry_out=carry_out))
        else:
            carry_out()

    # -- what is sent, and its answers ----------------------------------------------------------

    def next_entry(self) -> Entry | None:
        """The next whose steps are to be sent."""
        if self.phase not in (Phase.COPYING, Phase.IN_STEP):
            return None
        while self._num_begun < len(self._entries):
            entry = self._entries[self._num_begun]
            self._num_begun += 1
            if entry.steps is not None:
                return entry
        return None

    def answered(self, complete: Callable[[], Entry], *, is_made: bool) -> None:
        """The guard has answered the last step of the oldest entry. ``is_made``: else it had no
        room. ``complete`` makes the entry that tells the guard what it has."""
        entry = self._pop()
        if entry.carry_out is None and not is_made:
            entry.let_go()
            self.guard_is_empty()  # it lacks something that was made here: of no use
            return
        if entry.carry_out is not None:
            (entry.carry_out if is_made else entry.refuse)()
        entry.let_go()
        if entry.is_copy:
            self.phase = Phase.IN_STEP
            self._entries.append(complete())
        while self._entries and self._entries[0].steps is None:
            self._carry_out(self._pop())

    # -- how it stands --------------------------------------------------------------------------

    def note_complete(self) -> None:
        """The guard knows that it has a complete mirror, unless it is given up just now."""
        self.is_complete = self.phase is Phase.IN_STEP

    def guard_is_empty(self) -> None:
        """Whoever is the guard holds nothing of this home that counts, or was told to drop it:
        what waits is made now."""
        self.is_complete = False
        self.phase = Phase.UNKNOWN  # until all are made: what comes meanwhile comes after them
        while self._entries:
            self._carry_out(self._pop())
        self.phase = Phase.ALONE

    def lost_sight(self) -> None:
        """It is not known any more what the guard has. What was made goes on being so; the rest
        waits, until it is known that the guard holds nothing."""
        self.is_complete = False
        self.phase = Phase.UNKNOWN
        made = [entry for entry in self._entries if entry.carry_out is None]
        self._entries = deque(entry for entry in self._entries if entry.carry_out is not None)
        self._num_begun = 0
        for entry in made:
            entry.let_go()

    def begin_copy(self, copy: Entry) -> None:
        """All that the home shows now goes to a guard that has just dropped what it had."""
        assert self.phase is Phase.ALONE
        assert copy.is_copy
        assert not self._entries
        self.phase = Phase.COPYING
        self._entries.append(copy)

    def _pop(self) -> Entry:
        self._num_begun = max(0, self._num_begun - 1)
        return self._entries.popleft()

    @staticmethod
    def _carry_out(entry: Entry) -> None:
        if entry.carry_out is not None:
            entry.carry_out()
        entry.let_go()
