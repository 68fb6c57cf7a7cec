"""Which mirrors of a guard may be read just now. No socket, no clock.

A home that goes on without its guard has the coordinator write down first that its mirror is of no
use any more. So a guard reads from a mirror only for `LEASE_S` after it asked whether that is
written down, and the coordinator lets no home go on before that time is over: whoever reads from a
mirror sees everything that was acknowledged before the read began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LEASE_S = 1.0


class ReliedOn:
    """By generation of a mirror, as its home named it."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}
        self._wanted: dict[str, tuple[int, float]] = {}
        """Slot, and when somebody wanted to read it last."""

    def may_read(self, slot: int, generation: str, now_s: float) -> bool:
        """From now on it is asked for, for a while, so that who reads on need not wait again."""
        self._wanted[generation] = slot, now_s
        return now_s < self._until_s.get(generation, now_s)

    def to_ask(self, now_s: float) -> list[list[Any]]:
        """Slot and generation of each that is to be asked for."""
        self._wanted = {g: (s, at) for g, (s, at) in self._wanted.items() if now_s - at < LEASE_S}
        return [[slot, generation] for generation, (slot, _) in self._wanted.items()]

    def hear(self, answers: Iterable[Sequence[Any]], asked_s: float) -> set[str]:
        """``answers``: slot, generation and whether it may be relied on, asked for at ``asked_s``.
        Returns the generations that may not be."""
        refused = set()
        for _, generation, is_so in answers:
            if is_so:
                self._until_s[generation] = asked_s + LEASE_S
            else:
                refused.add(str(generation))
        self._until_s = {g: until for g, until in self._until_s.items() if until > asked_s}
        return refused
