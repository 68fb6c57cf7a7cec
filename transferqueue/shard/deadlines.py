"""How long a shard keeps what it set aside for clients that it cannot watch. No clock here."""

from __future__ import annotations

SILENCE_S = 30.0
"""A client that has not moved its next chunk for so long is given up. A connection over a link
that was down is made anew well before that (`net.sockets`)."""


class Deadlines:
    """When to give up on clients that nobody can watch: those of other hosts.

    They never touch this shard's memory themselves, so a deadline is enough: what they send or ask
    for after it is refused. While chunks are to come, silence ends a transfer. Once all have been
    moved the client may be busy with another shard, so it keeps what it has until its own deadline.
    """

    def __init__(self) -> None:
        self._final_s: dict[int, float] = {}
        self._due_s: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, number: int, final_s: float) -> None:
        """``number``: of a put or a lease. ``final_s``: the deadline of the client itself."""
        self._final_s[number] = self._due_s[number] = final_s

    def heard(self, number: int, now_s: float, *, more_to_come: bool) -> None:
        """A chunk was moved. Nothing, of one that has no deadline."""
        final_s = self._final_s.get(number)
        if final_s is not None:
            self._due_s[number] = min(final_s, now_s + SILENCE_S) if more_to_come else final_s

    def drop(self, number: int) -> None:
        """It ended otherwise, or was not here."""
        self._due_s.pop(number, None)
        self._final_s.pop(number, None)

    def pass_by(self, now_s: float) -> list[int]:
        """Take out those whose deadline has passed."""
        passed = [number for number, due_s in self._due_s.items() if due_s <= now_s]
        for number in passed:
            self.drop(number)
        return passed

    def next_s(self) -> float | None:
        """When the next deadline is."""
        return min(self._due_s.values(), default=None)
