"""What a home has the coordinator write down of its second copy. No socket, no clock.

A home that lacks its rows, and a guard that is to take its place, ask the coordinator which mirror
holds all that was acknowledged. So a home that is about to acknowledge what its guard does not
have says so first, and goes on when that is written down: from then on nobody relies on the mirror.
When the guard has everything again that is written down too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class OnRecord:
    """``on_asked`` is called when there is something to be told soon. Only what was asked for last
    counts: an answer to an earlier one is passed over."""

    def __init__(self, on_asked: Callable[[], None]) -> None:
        self._on_asked = on_asked
        self._number = 0
        self._copy: str | None = None
        self._guard: int | None = None
        self._then: Callable[[], None] | None = None

    @property
    def is_asking_for_none(self) -> bool:
        """Whether it is to be written down that no mirror has everything."""
        return self._then is not None and self._copy is None

    def ask(self, copy: str | None, guard: int | None, then: Callable[[], None]) -> None:
        """``copy``: the generation of the mirror that has everything; ``None``: none has.
        ``guard``: whose it is. ``then`` is called when it is written down, unless something else
        is asked for before."""
        self._number += 1
        self._copy, self._guard, self._then = copy, guard, then
        self._on_asked()

    def to_plain(self) -> dict[str, Any]:
        """Told again and again."""
        return {"number": self._number, "copy": self._copy, "guard": self._guard}

    def hear(self, number: int) -> None:
        """What was asked for under this number is written down."""
        if number == self._number and self._then is not None:
            then, self._then = self._then, None
            then()
