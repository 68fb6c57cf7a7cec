"""Which uids a restored service may give: none that any service before it could have given.

Symbols: a *life* is a service from its start, or from a restore, to its end. Life 0, which was
started empty, gives uids below 2**62: slot s from s·2**48 on. Life n ≥ 1 has the 2**36 uids from
2**62 + n·2**36 on, cut evenly into one part for each of its shards and as many that may be added.

A life's number is above that of the checkpoint it comes from, above every one that was noted in
the checkpoint's folder or on this host, and at least the time in steps of 8 s. So two restores of
one checkpoint never share uids, nor do two on one host; two restores of different checkpoints on
different hosts only if both come within 8 s, and neither folder knows of the other. A counter alone
would repeat after a return to an older folder; random numbers would not rise, which the index
relies on.

2**26 lives of 8 s are 17 years. Cost: 62 bits of a uid are 16 bits of shard slot and sequence, or
26 of life and 36 within; 64 shards of one life have 5·10**8 rows each.
"""

from __future__ import annotations

from dataclasses import dataclass

from transferqueue.errors import ConfigError
from transferqueue.homes import UidRange

FIRST_UID = 1 << 62
LIFE_BITS, LIFE_UID_BITS = 26, 36
STEP_S = 8
EPOCH_UNIX_S = 1_767_225_600
"""2026-01-01."""

MIN_PARTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The uids of one restored service with so many shards."""

    number: int
    num_shards: int

    def __post_init__(self) -> None:
        if not 0 < self.number < 1 << LIFE_BITS:
            raise ConfigError(f"no uids are left for life {self.number} of this service")

    @property
    def uids(self) -> UidRange:
        start = FIRST_UID + (self.number << LIFE_UID_BITS)
        return UidRange(start=start, stop=start + (1 << LIFE_UID_BITS))

    @property
    def num_parts(self) -> int:
        """Shards that it can have."""
        return max(MIN_PARTS, 1 << (2 * self.num_shards - 1).bit_length())

    def part(self, slot: int) -> UidRange:
        """What the shard of this slot gives. `ConfigError` for a slot beyond `num_parts`."""
        if not 0 <= slot < self.num_parts:
            raise ConfigError(
                f"a service restored onto {self.num_shards} shards can have {self.num_parts}; "
                f"checkpoint it and restore it onto more"
            )
        size = (1 << LIFE_UID_BITS) // self.num_parts
        start = self.uids.start + slot * size
        return UidRange(start=start, stop=start + size)


def next_life(*, saved: int, noted: int, now_unix_s: float) -> int:
    """The number of a life that begins now. ``saved``: of the checkpoint; ``noted``: the highest
    that is known to have begun."""
    return max(saved + 1, noted + 1, int((now_unix_s - EPOCH_UNIX_S) // STEP_S))
