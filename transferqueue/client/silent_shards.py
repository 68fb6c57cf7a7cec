"""Shards that said nothing lately, and when to try them again. No socket.

It takes `SILENCE_S` to find out that a shard is away. Without a memory of it every get of its rows
would take so long, though its second copy answers in a millisecond. So one that was silent is
passed over for `PASS_OVER_S`; then one request, and no other meanwhile, tries it again, and gives
it less time. Each time in vain it is passed over for twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

SILENCE_S = 1.0
"""A shard that says nothing at all for so long may be gone: a get goes to the second copy, where
there is one, and back when that does not answer either. One that is there says within
milliseconds that it is working."""

PROBE_SILENCE_S = 0.25
"""Of a shard that was silent before."""

PASS_OVER_S, PASS_OVER_AT_MOST_S = 2.0, 16.0


class Turn(Enum):
    """What a request does about a shard."""

    ASK = auto()
    PROBE = auto()
    """Ask it, with less patience."""
    PASS_OVER = auto()


@dataclass(slots=True)
class _Silent:
    until_s: float
    pass_over_s: float


class SilentShards:
    """By slot."""

    def __init__(self) -> None:
        self._silent: dict[int, _Silent] = {}

    def turn(self, slot: int, now_s: float) -> Turn:
        """For a request that is about to be sent. After `PROBE` it is known which of `was_silent`
        and `answered` comes, or none if the request is given up."""
        silent = self._silent.get(slot)
        if silent is None:
            return Turn.ASK
        if now_s < silent.until_s:
            return Turn.PASS_OVER
        silent.until_s = now_s + silent.pass_over_s  # nobody else tries meanwhile
        return Turn.PROBE

    def is_passed_over(self, slot: int, now_s: float) -> bool:
        """Whether others are asked instead, where that is the same."""
        silent = self._silent.get(slot)
        return silent is not None and now_s < silent.until_s

    def was_silent(self, slot: int, now_s: float) -> None:
        before = self._silent.get(slot)
        pass_over_s = PASS_OVER_S
        if before is not None:
            pass_over_s = min(PASS_OVER_AT_MOST_S, 2 * before.pass_over_s)
        self._silent[slot] = _Silent(until_s=now_s + pass_over_s, pass_over_s=pass_over_s)

    def answered(self, slot: int) -> None:
        """Also when it is another one, or at another place."""
        self._silent.pop(slot, None)
