"""A slot of device memory, as a reader is told of it; `devices.slots` has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from transferqueue.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRef:
    """What a reader knows of a slot that it was lent. Plain, to be sent."""

    pool: str
    epoch: int
    generation: int
    offset: int
    nbytes: int

    def to_plain(self) -> list[Any]:
        return [self.pool, self.epoch, self.generation, self.offset, self.nbytes]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> Self:
        """`Malformed` when these are not a ref's values."""
        if len(plain) != 5 or [type(value) for value in plain] != [str, int, int, int, int]:
            raise Malformed(f"not a slot of device memory: {plain!r:.80}")
        pool, epoch, generation, offset, nbytes = plain
        return cls(pool=pool, epoch=epoch, generation=generation, offset=offset, nbytes=nbytes)
