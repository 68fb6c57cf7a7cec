"""What one borrow has of the device memory of shards, from its beginning to its end."""

from __future__ import annotations

import logging
import time
import weakref
from typing import TYPE_CHECKING

from transferqueue.errors import OwnerLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDict

    from transferqueue.client.caller import Caller
    from transferqueue.client.device_side import DeviceSide
    from transferqueue.client.part_gets import PartGet
    from transferqueue.devices.base import Event

FAREWELL_S = 5.0
"""How long shards have to say that what they lent was there to the end."""

_log = logging.getLogger(__name__)


class Mark:
    """Lives as long as any tensor that looks at borrowed memory."""

    __slots__ = ("__weakref__",)


class Borrowed:
    """``tensors``: what was asked for, until the `end`."""

    tensors: TensorDict

    def __init__(self, caller: Caller, side: DeviceSide | None, lease_s: float) -> None:
        """``side``: where tensors are wanted; ``None``: on the host, where a get holds a lease of
        its own on what it maps, and nothing is to be given back here."""
        self.lease_s = lease_s
        self.fields: list[str] = []
        """Whose tensors are memory of a shard."""
        self._caller, self._side = caller, side
        self._marks: list[weakref.ref[Mark]] = []
        self._parts: list[PartGet] = []
        self._until_s = 0.0

    def begin(self) -> None:
        """Another attempt to get the columns."""
        self.fields.clear()
        self._marks.clear()

    def mark(self, field: str) -> Mark:
        """For the tensor of a field, to be kept by it."""
        mark = Mark()
        self.fields.append(field)
        self._marks.append(weakref.ref(mark))
        return mark

    def keep(self, parts: Sequence[PartGet]) -> None:
        """Of what was lent for these parts the end is told at the `end`."""
        self._parts = [part for part in parts if part.has_loan]
        self._until_s = time.monotonic() + self.lease_s

    @property
    def is_seen(self) -> bool:
        """Whether some tensor looks at the memory still."""
        return any(mark() is not None for mark in self._marks)

    async def end(self) -> None:
        """Empty the TensorDict, and give the memory back. `OwnerLost` and `StaleGeneration` when
        what was read from it may have been anything."""
        self.tensors.unlock_().clear()
        if self._side is None or not self._parts:
            return
        parts, self._parts = self._parts, []
        read = self._side.device.after_torch()  # what was given to the device reads it still
        try:
            await self._caller.to_its_end(read.wait)
        except BaseException:
            self._postpone(self._side, parts, read)
            raise
        over_s = time.monotonic() - self._until_s
        if over_s > 0:
            _log.warning("%s were borrowed for %.1f s longer than asked for", self.fields, over_s)
        if self.is_seen:
            self._lend_on(self._side, parts)
            return
        lent = [access for part in parts for access in part.lent_of]
        calls = [part.give_back() for part in parts]
        try:
            for access in lent:
                self._side.check(access)
        except OwnerLost:
            await self._caller.tell(calls)
            raise
        await self._caller.shards(calls, timeout_s=FAREWELL_S)

    async def give_up(self) -> None:
        """It came to no block: give back what was lent, once nothing looks at it any more."""
        if self._side is None or not self._parts:
            return
        parts, self._parts = self._parts, []
        self._postpone(self._side, parts, self._side.device.after_torch())
        await self._caller.tell(self._side.due())

    def _postpone(self, side: DeviceSide, parts: Sequence[PartGet], read: Event) -> None:
        for part in parts:
            side.postpone(part.give_back(), lambda: not self.is_seen and read.is_done())
        self._caller.memory.returns.tell_later(of=side)

    def _lend_on(self, side: DeviceSide, parts: Sequence[PartGet]) -> None:
        _log.warning(
            "tensors of %s outlive the block that borrowed them: their memory stays lent until "
            "they are gone",
            self.fields,
        )
        for part in parts:
            side.postpone(part.give_back(), lambda: not self.is_seen)
        self._caller.memory.returns.tell_later(of=side)
